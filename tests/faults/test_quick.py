"""A few rows of the matrix, one trial each, and the counting behind all rows.

All of them: `make faults`.
"""

from __future__ import annotations

from uuid import uuid4

import pytest

from tests.cluster import table
from tests.faults.__main__ import run_row
from tests.faults.catalog import QUICK, ROWS
from tests.faults.environment import Database, Environment, open_environment
from tests.mssql_server import databases
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.slow

CHOSEN: list[tuple[str, Database]] = [
    (name, database) for name, chosen in QUICK.items() for database in chosen if database in databases()
]


@pytest.mark.parametrize(("name", "database"), CHOSEN)
def test_nothing_is_doubled_or_lost(name: str, database: Database, postgres_server: PostgresServer) -> None:
    """One trial has no duplicate and no loss."""
    (row,) = [row for row in ROWS if row.name == name]
    entry = run_row(row, database, postgres_server, trials=1)
    assert (entry["trials"], entry["duplicates"], entry["lost"]) == (1, 0, 0)


def test_what_is_doubled_or_lost_is_counted_once() -> None:
    """A second row of an effect is a duplicate, an effect without an end is a loss; the next trial starts at zero."""
    with open_environment("sqlite", None) as env:
        assert counted(env) == (0, 0)
        (job,) = env.enqueue()
        env.start()
        env.done()
        assert counted(env) == (0, 0)
        write(env, str(job))
        assert counted(env) == (1, 0)
        assert counted(env) == (0, 0)
        write(env, str(uuid4()))
        assert counted(env) == (0, 1)
        table.run(env.cluster.url, "delete from written")
        assert counted(env) == (-1, 0)
        env.cluster.enqueued.append(uuid4())
        assert counted(env) == (0, 1)


def counted(env: Environment) -> tuple[int, int]:
    verdict = env.judge(None)
    return verdict.duplicates, verdict.lost


def write(env: Environment, job: str) -> None:
    table.run(env.cluster.url, f"insert into written values ('{job}', 1, 1)")
