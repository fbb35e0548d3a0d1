"""A statement of the user's that ends the block's transaction: nothing is completed, and the run says why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reltask import Context
from reltask.errors import UsageError
from tests.store.connections import ON_POSTGRES, ON_SQLITE, ConnectionKind
from tests.store.user_database import UserDatabase, sqlite_url
from tests.worker.test_borrowed_transaction import BorrowedConnection

pytestmark = pytest.mark.slow
ENDS = {"rollback": [], "commit": ["before"]}
"""Statements that end a transaction, and the notes that remain."""
ENDS_AND_BEGINS = {"rollback; begin": [], "commit and chain": ["before"], "commit; begin": ["before"]}
"""The same, and another transaction is open afterwards."""


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UserDatabase]:
    if request.param == "sqlite":
        database = UserDatabase(sqlite_url(tmp_path), ON_SQLITE[0])
    else:
        database = UserDatabase(request.getfixturevalue("postgres_url"), ON_POSTGRES[0])
    database.clear()
    yield database
    database.app.close()


def run_block(database: UserDatabase, statement: str, *, complete: bool, raw: bool = False, go_on: bool = False) -> str:
    """Run a task whose block contains this statement; return the error in the ledger."""

    @database.app.task(max_attempts=1)
    async def ending(ctx: Context) -> None:
        async with ctx.transaction(complete=complete) as tx:
            await tx.execute("insert into effects (note) values ('before')")
            try:
                await (tx.connection if raw else tx).execute(statement)
            except UsageError:
                if not go_on:
                    raise

    ending.enqueue_sync()
    database.work()
    (run,) = database.app.runs_sync()
    assert run.outcome == "failed"
    return str(run.error)


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("statement", ENDS)
@pytest.mark.parametrize("go_on", [True, False])
def test_block_whose_transaction_was_ended_completes_nothing(
    database: UserDatabase, statement: str, *, complete: bool, go_on: bool
) -> None:
    """The writes and the completion can no longer commit together: the run fails, also if the body goes on."""
    error = run_block(database, statement, complete=complete, go_on=go_on)
    assert "ended inside the block" in error
    assert "savepoint" in error
    assert database.notes() == ENDS[statement]


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("raw", [True, False])
@pytest.mark.parametrize("statement", [*ENDS, *ENDS_AND_BEGINS])
def test_postgres_notices_whatever_ends_the_transaction(
    postgres_url: str, statement: str, *, complete: bool, raw: bool
) -> None:
    """Also a transaction that was replaced by another one, and statements on the driver's own connection."""
    database = UserDatabase(postgres_url, ON_POSTGRES[0])
    database.clear()
    error = run_block(database, statement, complete=complete, raw=raw)
    assert "ended inside the block" in error
    assert database.notes() == {**ENDS, **ENDS_AND_BEGINS}[statement]
    database.app.close()


def test_savepoints_stay_allowed(database: UserDatabase) -> None:
    """A part of the block may be rolled back alone."""

    @database.app.task(max_attempts=1)
    async def partly(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("savepoint part")
            await tx.execute("insert into effects (note) values ('gone')")
            await tx.execute("rollback to part")
            await tx.execute("insert into effects (note) values ('kept')")

    partly.enqueue_sync()
    database.work()
    assert (database.notes(), database.outcomes()) == (["kept"], ["succeeded"])


@pytest.mark.parametrize("kind", [*ON_SQLITE, *ON_POSTGRES], ids=repr)
def test_block_on_a_user_s_connection_notices_too(
    request: pytest.FixtureRequest, tmp_path: Path, kind: ConnectionKind
) -> None:
    """A ROLLBACK by SQL, which the library does not see, and a BEGIN after it, complete nothing."""
    url = sqlite_url(tmp_path) if kind in ON_SQLITE else request.getfixturevalue("postgres_url")
    borrowed = BorrowedConnection(url, kind)
    borrowed.clear()

    async def end(_ctx: Any, tx: Any, connection: Any) -> None:
        await kind.write(connection, "gone")
        for statement in ("rollback", *(["begin"] if kind in ON_POSTGRES else [])):
            done = tx.execute(statement)
            if kind.is_async:
                await done

    assert "ended inside the block" in str(borrowed.run_until_failed(end))
    assert (borrowed.notes(), "succeeded" in borrowed.outcomes()) == ([], False)
    borrowed.app.close()
