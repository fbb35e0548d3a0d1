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
from reltask.stores.verbs import VERBS as SENT

STATEMENTS = sorted(Path(mssql.__file__).parent.glob("sql/*.sql"))
VERBS = ["complete_jobs", "fail_jobs", "release_jobs", "reclaim_jobs", "record_steps", "suspend_jobs"]
_WRITE = re.compile(r"^ +(?:UPDATE|DELETE) (?:job|FROM reltask\.Jobs|reltask\.Jobs)\b[^;]*;", re.MULTILINE)
_COUNTED = re.compile(r"IF @\S+ <> @\w+\s+THROW (\d+), N'(.+)', 1;\s+COMMIT TRANSACTION;")


def shipped(verb: str) -> str:
    """The file itself: `read_sql` may rewrite it for the server of the tests."""
    return next(path for path in STATEMENTS if path.stem == verb).read_text(encoding="utf-8")


@pytest.mark.parametrize("verb", VERBS)
def test_locked_rows_are_not_skipped(verb: str) -> None:
    """The first write locks. A later one that skips rows could leave a row whose end is recorded."""
    _, *later = _WRITE.findall(shipped(verb))
    assert later
    for write in later:
        assert "READPAST" not in write
        assert re.search(r"WITH \(INDEX \((PK_Jobs|UQ_Jobs_RowNo)\), UPDLOCK, ROWLOCK\)", write)
        assert "OPTION (LOOP JOIN, FORCE ORDER)" in write


@pytest.mark.parametrize("verb", VERBS)
def test_missed_rows_undo_everything(verb: str) -> None:
    """Locked and written rows are counted before the commit; a difference means: not applied, send again."""
    counted = _COUNTED.search(shipped(verb))
    assert counted is not None
    error = answered(int(counted[1]), counted[2], verb=verb, writes=True)
    assert type(error) is TransientError
    assert "rolled back" in str(error)


@pytest.mark.parametrize("file", STATEMENTS, ids=lambda file: file.name)
def test_durations_are_added_as_minutes(file: Path) -> None:
    """DATEADD takes an int, too small for a hundred years in seconds: a long delay would be refused."""
    assert not re.search(r"DATEADD\(\s*SECOND,(?!\s*-?\d+,)", file.read_text())


def reads_on(file: Path) -> bool:
    """Whether a batch that is not simply sent again reads tables after its COMMIT."""
    how = SENT.get(file.stem)
    _, commit, after = file.read_text(encoding="utf-8").rpartition("COMMIT TRANSACTION;")
    once = how is not None and not how.resend_ambiguous
    return once and bool(commit) and "reltask." in after.partition("END TRY")[0]


def test_a_batch_that_reads_on_after_its_commit_says_that_it_has_committed() -> None:
    """An error of such a read is no proof that nothing was applied; claims that are given up would be orphaned."""
    found = [file for file in STATEMENTS if reads_on(file)]
    assert {file.stem for file in found} >= {"claim_jobs", "claim_limited"}
    for file in found:
        sql = file.read_text(encoding="utf-8")
        assert re.search(r"COMMIT TRANSACTION;\n +SET @committed = 1;\n", sql), file
        assert "AS error_message,\n           @committed AS committed;\nEND CATCH;" in sql, file


# Durable functions


def reads_of(table: str, sql: str) -> list[str]:
    """The hints of each FROM and JOIN of a table; an empty text where there are none."""
    return re.findall(rf"(?:FROM|JOIN) reltask\.{table}(?: AS \w+)?(?:\s+WITH \(((?:[^()]|\([^()]*\))*)\))?", sql)


def taken_for_gone(sql: str) -> list[str]:
    """Questions whether a job is gone that skip locked rows: a locked one would be taken for gone."""
    asked = re.findall(r"NOT EXISTS \(\s*SELECT 1\s+FROM reltask\.Jobs.*?WHERE", sql, re.DOTALL)
    return [question for question in asked if "READPAST" in question]


@pytest.mark.parametrize("file", STATEMENTS, ids=lambda file: file.name)
def test_a_locked_job_is_not_taken_for_gone(file: Path) -> None:
    """Its marks would be removed unseen, and its children cancelled."""
    assert taken_for_gone(file.read_text()) == []


def test_the_rule_sees_such_a_question() -> None:
    """With the hint, and only with it."""
    skips = "WHERE NOT EXISTS (\n SELECT 1\n FROM reltask.Jobs AS job WITH (READPAST, ROWLOCK)\n WHERE job.Id = @id)"
    assert taken_for_gone(skips) != []
    assert taken_for_gone(skips.replace("READPAST, ", "")) == []


def test_a_signal_keeps_no_lock_on_a_job() -> None:
    """Sent in a long transaction it would keep heartbeats and settlements from the row."""
    sql = shipped("send_signals")
    hints = reads_of("Jobs", sql)
    assert len(hints) == 3
    assert all("READCOMMITTED" in hint and not re.search("LOCK", hint) for hint in hints)
    assert not re.search(r"(?:UPDATE|INTO|DELETE FROM) reltask\.Jobs", sql)


def test_marks_are_counted_before_what_they_announce_is_read() -> None:
    """In the other order a signal could come and be counted in between, and the run would sleep on."""
    sql = shipped("read_waits")
    first, second, *_ = re.findall(r"^    SELECT .*?;", sql, re.MULTILINE | re.DOTALL)
    assert "@wake_seq = WakeSeq" in first
    assert (reads_of("Jobs", first), reads_of("Jobs", second)) == (["INDEX (PK_Jobs)"], [])
    assert [len(reads_of(table, second)) for table in ("Signals", "ChildEnds")] == [1, 1]


@pytest.mark.parametrize("verb", ["fold_marks", "cancel_children"])
def test_maintenance_of_functions_waits_for_no_job(verb: str) -> None:
    """The first write skips locked rows, and only rows that it has locked are written afterwards."""
    sql = shipped(verb)
    first, *later = _WRITE.findall(sql)
    assert "INTO @locked" in first
    assert "READPAST, UPDLOCK, ROWLOCK, READCOMMITTEDLOCK" in first
    assert later
    assert sql.index("INTO @locked") < sql.index("THROW 51222") < sql.index("COMMIT TRANSACTION")
    for write in later:
        assert "WITH (INDEX (PK_Jobs), UPDLOCK, ROWLOCK)" in write


@pytest.mark.parametrize("path", STATEMENTS, ids=lambda path: path.stem)
def test_a_batch_that_locks_reads_committed_rows(path: Path) -> None:
    """A task may have chosen another isolation level: with SERIALIZABLE or SNAPSHOT, READPAST is an error (650)."""
    text = path.read_text(encoding="utf-8")
    settings = "SET XACT_ABORT ON;\nSET TRANSACTION ISOLATION LEVEL READ COMMITTED;\n"
    assert settings in text or "SET XACT_ABORT ON" not in text
