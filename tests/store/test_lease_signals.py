"""Signals of released leases, and locks that end with their connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from reltask.errors import UsageError
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.store import Store
from reltask.stores.waking import News
from tests.store.store_harness import Backend, MssqlBackend, Now, SqliteBackend, StoreHarness
from tests.store.test_leases import won

END = """
select pg_terminate_backend(pid) from pg_stat_activity
where application_name = 'reltask' and datname = current_database()
"""
COUNT = END.replace("pg_terminate_backend(pid)", "count(*)")


class SignalRecorder:
    """Records what a listener receives."""

    def __init__(self) -> None:
        self.woken: asyncio.Queue[News] = asyncio.Queue()
        self.leases: asyncio.Queue[str | None] = asyncio.Queue()

    def forget(self) -> None:
        for queue in (self.woken, self.leases):
            while not queue.empty():
                queue.get_nowait()


@pytest.fixture
def signalling(harness: StoreHarness) -> StoreHarness:
    """A database with signals; SQL Server has none."""
    if isinstance(harness.backend, MssqlBackend):
        pytest.skip("SQL Server has no signals")
    return harness


async def test_without_signals_no_listener_is_called(harness: StoreHarness, rival: Store) -> None:
    """A database without signals says so, so that its workers poll; signalling is no error."""
    if not isinstance(harness.backend, MssqlBackend):
        pytest.skip("this database has signals")
    received = SignalRecorder()
    async with harness.store.listen(received.woken.put_nowait, received.leases.put_nowait) as listening:
        assert not listening
        await rival.signal()
        await rival.signal_lease("reports")
    assert received.woken.empty()
    assert received.leases.empty()


async def test_waiters_are_notified_of_a_resignation(signalling: StoreHarness, rival: Store) -> None:
    """By its name if the database can send it, otherwise that something has changed."""
    harness, received = signalling, SignalRecorder()
    grant = await won(rival)
    async with harness.store.listen(received.woken.put_nowait, received.leases.put_nowait) as listening:
        assert listening
        received.forget()
        await rival.resign_lease(grant)
        await rival.signal_lease("reports")
        heard = await asyncio.wait_for(received.leases.get(), 10)
    assert heard == (None if isinstance(harness.backend, SqliteBackend) else "reports")


async def test_a_listener_for_jobs_gets_no_lease_signals(signalling: StoreHarness, rival: Store) -> None:
    """Without `lease` no listener is called, and nothing fails."""
    received = SignalRecorder()
    async with signalling.store.listen(received.woken.put_nowait):
        await rival.signal_lease("reports")
        await rival.stop_worker("unknown")
        await won(rival)
        await rival.signal()
        await asyncio.wait_for(received.woken.get(), 10)


@pytest.fixture
async def store_on_postgres(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url)
    yield store
    await store.close()


@pytest.fixture
async def operator(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def test_several_listen_on_one_connection(store_on_postgres: PostgresStore, operator: asyncpg.Connection) -> None:
    """A worker and a waiter for a lease share a store; each gets its own signals, until it stops listening."""
    one, other = SignalRecorder(), SignalRecorder()
    async with store_on_postgres.listen(one.woken.put_nowait, one.leases.put_nowait):
        async with store_on_postgres.listen(other.woken.put_nowait, other.leases.put_nowait):
            await store_on_postgres.signal_lease("first")
            assert await asyncio.wait_for(other.leases.get(), 10) in (None, "first")
        other.forget()
        await store_on_postgres.signal_lease("second")
        while await asyncio.wait_for(one.leases.get(), 10) != "second":
            pass
    assert other.leases.empty()
    assert await operator.fetchval(COUNT) == 1


async def test_a_listener_that_lost_its_connection_checks_all_leases(
    store_on_postgres: PostgresStore, operator: asyncpg.Connection
) -> None:
    """Any lease may have been released meanwhile."""
    received = SignalRecorder()
    async with store_on_postgres.listen(received.woken.put_nowait, received.leases.put_nowait):
        received.forget()
        await operator.execute(END)
        assert await asyncio.wait_for(received.leases.get(), 10) is None


# Advisory locks


async def test_an_advisory_lock_has_one_holder(store_on_postgres: PostgresStore, postgres_url: str) -> None:
    """A try never waits; other names are other locks; after the block the lock is free."""
    rival = PostgresStore(postgres_url)
    async with store_on_postgres.advisory_lock("maintenance") as is_alive:
        assert is_alive is not None
        assert await is_alive()
        async with rival.advisory_lock("maintenance") as refused, rival.advisory_lock("other") as free:
            assert refused is None
            assert free is not None
    async with rival.advisory_lock("maintenance") as taken:
        assert taken is not None


async def test_an_advisory_lock_notices_the_death_of_its_connection(
    store_on_postgres: PostgresStore, operator: asyncpg.Connection
) -> None:
    """The server has released the lock by then: a check says so, and leaving the block is no error."""
    async with store_on_postgres.advisory_lock("maintenance") as is_alive:
        assert is_alive is not None
        await operator.execute(END)
        assert not await is_alive()
        async with store_on_postgres.advisory_lock("maintenance") as taken:
            assert taken is not None


async def test_advisory_locks_are_refused_where_they_cannot_hold(postgres_url: str, backend: Backend, now: Now) -> None:
    """Behind PgBouncer, and on SQLite, where the error names the alternatives."""
    with pytest.raises(UsageError, match="PgBouncer"):
        async with PostgresStore(f"{postgres_url}?pgbouncer=true").advisory_lock("maintenance"):
            pass
    if isinstance(backend, SqliteBackend):
        with pytest.raises(UsageError, match='"lease", "everyone" or "stealing"'):
            backend.store(now).advisory_lock("maintenance")
