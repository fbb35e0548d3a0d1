"""Rules about the text of SQL Server's statements.

Locks and overflows can be seen on a server only.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from reltask.errors import TransientError
from reltask.stores import mssql
from reltask.stores.mssql.errors import answered
from reltask.stores.statement import read_sql

STATEMENTS = sorted(Path(mssql.__file__).parent.glob("sql/*.sql"))
VERBS = ["complete_jobs", "fail_jobs", "release_jobs", "reclaim_jobs"]
_WRITE = re.compile(r"^ +(?:UPDATE|DELETE) (?:job|FROM reltask\.Jobs|reltask\.Jobs)\b[^;]*;", re.MULTILINE)
_COUNTED = re.compile(r"IF @\S+ <> @\w+\s+THROW (\d+), N'(.+)', 1;\s+COMMIT TRANSACTION;")


@pytest.mark.parametrize("verb", VERBS)
def test_locked_rows_are_not_skipped(verb: str) -> None:
    """The first write locks. A later one that skips rows could leave a row whose end is recorded."""
    _, *later = _WRITE.findall(read_sql("mssql", verb))
    assert later
    for write in later:
        assert "READPAST" not in write
        assert re.search(r"WITH \(INDEX \((PK_Jobs|UQ_Jobs_RowNo)\), UPDLOCK, ROWLOCK\)", write)
        assert "OPTION (LOOP JOIN, FORCE ORDER)" in write


@pytest.mark.parametrize("verb", VERBS)
def test_missed_rows_undo_everything(verb: str) -> None:
    """Locked and written rows are counted before the commit; a difference means: not applied, send again."""
    counted = _COUNTED.search(read_sql("mssql", verb))
    assert counted is not None
    error = answered(int(counted[1]), counted[2], verb=verb, writes=True)
    assert type(error) is TransientError
    assert "rolled back" in str(error)


@pytest.mark.parametrize("file", STATEMENTS, ids=lambda file: file.name)
def test_durations_are_added_as_minutes(file: Path) -> None:
    """DATEADD takes an int, too small for a hundred years in seconds: a long delay would be refused."""
    assert not re.search(r"DATEADD\(\s*SECOND,(?!\s*-?\d+,)", file.read_text())
