"""A few rows of the matrix, one trial each, and the counting that all rows rely on. All of them: `make faults`."""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.cluster import table
from tests.faults.__main__ import play
from tests.faults.catalog import QUICK, ROWS
from tests.faults.stage import Database, Stage, opened
from tests.mssql_server import databases
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

CHOSEN: list[tuple[str, Database]] = [
    (name, database) for name, chosen in QUICK.items() for database in chosen if database in databases()
]


@pytest.mark.parametrize(("name", "database"), CHOSEN)
def test_nothing_is_doubled_or_lost(name: str, database: Database, postgres_server: PostgresServer) -> None:
    """One trial of the row ends as it must."""
    (row,) = [row for row in ROWS if row.name == name]
    entry = play(row, database, postgres_server, trials=1)
    assert (entry["trials"], entry["duplicates"], entry["lost"]) == (1, 0, 0)


def test_what_is_doubled_or_lost_is_counted_once() -> None:
    """A second row of one effect is a duplicate, an effect without an end is a loss; the next trial begins anew."""
    with opened("sqlite", None) as stage:
        assert counted(stage) == (0, 0)
        (job,) = stage.enqueue()
        stage.start()
        stage.done()
        assert counted(stage) == (0, 0)
        write(stage, str(job))
        assert counted(stage) == (1, 0)
        assert counted(stage) == (0, 0)
        write(stage, str(uuid4()))
        assert counted(stage) == (0, 1)
        table._run(stage.cluster.url, "delete from written")
        assert counted(stage) == (-1, 0)
        stage.cluster.enqueued.append(uuid4())
        assert counted(stage) == (0, 1)


def counted(stage: Stage) -> tuple[int, int]:
    verdict = stage.judge(None)
    return verdict.duplicates, verdict.lost


def write(stage: Stage, job: str) -> None:
    table._run(stage.cluster.url, f"insert into written values ('{job}', 1, 1)")
