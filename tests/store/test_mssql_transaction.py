"""What only SQL Server does: it may end a transaction in the middle, and commit later statements one by one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest

from reltask.errors import PermanentError, TransientError, UsageError
from reltask.model.job import Completion, Hold, NewJob
from tests.mssql_server import VARIABLE, is_babelfish
from tests.store.store_harness import MssqlBackend, new_job, request

if TYPE_CHECKING:
    from reltask.stores.mssql.store import MssqlStore

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no server")
PATIENCE = timedelta(minutes=2)
ADD = "INSERT INTO reltask.LeaseWaiters (Name, Holder, WaitingUntil) VALUES (:name, N'me', SYSUTCDATETIME())"
READ = "SELECT Name FROM reltask.LeaseWaiters ORDER BY Name"


@pytest.fixture
async def store(mssql_conformance: MssqlBackend) -> AsyncIterator[MssqlStore]:
    from reltask.stores.mssql.store import MssqlStore  # noqa: PLC0415 - the driver is an extra

    await mssql_conformance.clear()
    made = MssqlStore(mssql_conformance.url)
    yield made
    await made.close()


async def names(store: MssqlStore) -> list[str]:
    async with store.transaction(timeout=PATIENCE) as looking:
        return [row["Name"] for row in await looking.fetch(READ)]


async def test_values_by_position_or_by_name(store: MssqlStore) -> None:
    """In the driver's own style, or in that of the other databases."""
    async with store.transaction(timeout=PATIENCE) as writing:
        await writing.execute(ADD, name="a")
        await writing.execute(ADD.replace(":name", "?"), "b")
        with pytest.raises(TypeError, match="not both"):
            await writing.execute(ADD, "c", name="c")
    assert await names(store) == ["a", "b"]


async def test_a_transaction_continues_after_an_error_that_leaves_it_open(store: MssqlStore) -> None:
    """A duplicate raises the driver's own error, which the user may expect."""
    async with store.transaction(timeout=PATIENCE) as writing:
        await writing.execute(ADD, name="a")
        with pytest.raises(Exception, match=r"(?i)duplicate"):
            await writing.execute(ADD, name="a")
        await writing.execute(ADD, name="b")
    assert await names(store) == ["a", "b"]


async def deadlocked(store: MssqlStore, after: NewJob | str | None = None) -> None:
    """A transaction that the server ends in the middle; the user swallows the error, and may continue."""
    async with store.transaction(timeout=PATIENCE) as writing:
        await writing.execute(ADD, name="a")
        with pytest.raises(Exception, match="as by a deadlock"):
            await writing.execute("ROLLBACK TRANSACTION; THROW 50000, N'as by a deadlock', 1;")
        if isinstance(after, str):
            await writing.execute(ADD, name=after)
        elif after is not None:
            await writing.enqueue_jobs([after])


@pytest.mark.parametrize("after", [None, "b", new_job()], ids=["nothing", "statement", "verb"])
async def test_nothing_is_written_once_the_server_has_ended_the_transaction(
    store: MssqlStore, after: NewJob | str | None
) -> None:
    """Otherwise the rest would be committed at once, statement by statement, without the completion."""
    with pytest.raises(TransientError, match="rolled back"):
        await deadlocked(store, after)
    assert await names(store) == []
    assert await store.list_jobs() == []


async def begin_inside(store: MssqlStore) -> None:
    """A user's mistake."""
    async with store.transaction(timeout=PATIENCE) as writing:
        await writing.execute(ADD, name="a")
        await writing.execute("BEGIN TRANSACTION")


async def test_a_nested_transaction_left_open_is_an_error(store: MssqlStore) -> None:
    """COMMIT would only end the inner one: the writes would be lost with the connection."""
    with pytest.raises(PermanentError, match="begun inside the task's own"):
        await begin_inside(store)
    assert await names(store) == []


@pytest.mark.parametrize("statement", ["COMMIT TRANSACTION", "ROLLBACK TRANSACTION"])
async def test_a_transaction_that_the_user_ended_completes_nothing(store: MssqlStore, statement: str) -> None:
    """The completion would be committed without the writes."""

    async def complete() -> None:
        async with store.transaction(timeout=PATIENCE) as writing:
            await writing.execute(statement)
            await writing.complete_job("w", Completion(hold=Hold(uuid4(), 1)))

    with pytest.raises(UsageError, match="ended inside the block"):
        await complete()


async def test_settings_of_a_task_do_not_meet_the_next(store: MssqlStore) -> None:
    """A connection that is used again has its first settings, and no temporary table of an earlier task."""
    for _ in range(2):
        async with store.transaction(timeout=PATIENCE) as first:
            assert not (await first.fetch("SELECT OBJECT_ID(N'tempdb..#left_over') AS found"))[0]["found"]
            await first.execute("SET DATEFIRST 3")
            await first.execute("CREATE TABLE #left_over (A int)")
    async with store.transaction(timeout=PATIENCE) as later:
        assert (await later.fetch("SELECT @@DATEFIRST AS first"))[0]["first"] == 7


@pytest.mark.skipif(is_babelfish(), reason="Babelfish has no SERIALIZABLE")
async def test_isolation_level_of_a_task_does_not_meet_the_verbs(store: MssqlStore) -> None:
    """READPAST is an error in SERIALIZABLE: the completion inside of the task's transaction does not see it."""
    job = new_job()
    await store.enqueue_jobs([job])
    (claim,) = (await store.claim_jobs(request())).claims
    async with store.transaction(timeout=PATIENCE) as own:
        await own.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        assert await own.complete_job("alice", Completion(hold=claim.hold))
