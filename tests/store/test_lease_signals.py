"""Hearing that a lease was given back, and locks that end with their connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import datetime

import asyncpg
import pytest

from reltask.errors import UsageError
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.store import Store
from tests.store.store_harness import Backend, MssqlBackend, Now, SqliteBackend, StoreHarness
from tests.store.test_leases import won

END = """
select pg_terminate_backend(pid) from pg_stat_activity
where application_name = 'reltask' and datname = current_database()
"""
COUNT = END.replace("pg_terminate_backend(pid)", "count(*)")


class Ears:
    """Collects what a listener hears."""

    def __init__(self) -> None:
        self.woken: asyncio.Queue[datetime | None] = asyncio.Queue()
        self.leases: asyncio.Queue[str | None] = asyncio.Queue()

    def forget(self) -> None:
        for queue in (self.woken, self.leases):
            while not queue.empty():
                queue.get_nowait()


@pytest.fixture
def vocal(harness: StoreHarness) -> StoreHarness:
    """A database with signals of some kind; SQL Server has none."""
    if isinstance(harness.backend, MssqlBackend):
        pytest.skip("SQL Server has no signals")
    return harness


async def test_without_signals_nobody_is_called(harness: StoreHarness, rival: Store) -> None:
    """A database that cannot signal says so, so that its workers poll; signalling is no error."""
    if not isinstance(harness.backend, MssqlBackend):
        pytest.skip("this database has signals")
    ears = Ears()
    async with harness.store.listen(ears.woken.put_nowait, ears.leases.put_nowait) as listening:
        assert not listening
        await rival.signal()
        await rival.signal_lease("reports")
    assert ears.woken.empty()
    assert ears.leases.empty()


async def test_those_that_wait_hear_of_a_resignation(vocal: StoreHarness, rival: Store) -> None:
    """By its name where the database can say it, and otherwise that something has changed."""
    harness, ears = vocal, Ears()
    grant = await won(rival)
    async with harness.store.listen(ears.woken.put_nowait, ears.leases.put_nowait) as listening:
        assert listening
        ears.forget()
        await rival.resign_lease(grant)
        await rival.signal_lease("reports")
        heard = await asyncio.wait_for(ears.leases.get(), 10)
    assert heard == (None if isinstance(harness.backend, SqliteBackend) else "reports")


async def test_who_listens_for_jobs_alone_hears_of_no_leases(vocal: StoreHarness, rival: Store) -> None:
    """Without `lease` nobody is called, and nothing breaks."""
    ears = Ears()
    async with vocal.store.listen(ears.woken.put_nowait):
        await rival.signal_lease("reports")
        await rival.stop_worker("nobody")
        await won(rival)
        await rival.signal()
        await asyncio.wait_for(ears.woken.get(), 10)


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
    """A worker and somebody who waits for a lease share a store; each hears its own, until it stops listening."""
    one, other = Ears(), Ears()
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


async def test_a_listener_that_lost_its_connection_looks_at_all_leases(
    store_on_postgres: PostgresStore, operator: asyncpg.Connection
) -> None:
    """What was given back meanwhile is anybody's guess."""
    ears = Ears()
    async with store_on_postgres.listen(ears.woken.put_nowait, ears.leases.put_nowait):
        ears.forget()
        await operator.execute(END)
        assert await asyncio.wait_for(ears.leases.get(), 10) is None


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
    """The server has given the lock away by then: whoever asks is told, and leaving the block is no error."""
    async with store_on_postgres.advisory_lock("maintenance") as is_alive:
        assert is_alive is not None
        await operator.execute(END)
        assert not await is_alive()
        async with store_on_postgres.advisory_lock("maintenance") as taken:
            assert taken is not None


async def test_advisory_locks_are_refused_where_they_cannot_hold(postgres_url: str, backend: Backend, now: Now) -> None:
    """Behind PgBouncer, and on SQLite, which says what it offers instead."""
    with pytest.raises(UsageError, match="PgBouncer"):
        async with PostgresStore(f"{postgres_url}?pgbouncer=true").advisory_lock("maintenance"):
            pass
    if isinstance(backend, SqliteBackend):
        with pytest.raises(UsageError, match='"lease", "everyone" or "stealing"'):
            backend.store(now).advisory_lock("maintenance")
