"""A task's own transaction on PostgreSQL: what its session keeps, and how long its statements may take."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from reltask.stores.postgres.connections import PostgresOptions
from reltask.stores.postgres.store import PostgresStore

MINUTE = timedelta(minutes=1)
ONE = PostgresOptions(pool_size=1)
"""Every block uses the same connection."""


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(postgres_url, options=ONE)
    yield store
    await store.close()


KEPT = {
    "setting": ("set app.tenant = 'seven'", "select coalesce(current_setting('app.tenant', true), '') = ''"),
    "planner": ("set enable_seqscan = off", "select current_setting('enable_seqscan') = 'on'"),
    "time zone": ("set timezone = 'Asia/Tokyo'", "select current_setting('timezone') <> 'Asia/Tokyo'"),
    "role": ("set role pg_monitor", "select current_user = session_user"),
    "user": ("set session authorization pg_monitor", "select session_user <> 'pg_monitor'"),
    "advisory lock": ("select pg_advisory_lock(7)", "select count(*) = 0 from pg_locks where locktype = 'advisory'"),
    "temporary table": ("create temp table scratch (x int)", "select to_regclass('scratch') is null"),
    "listener": ("listen gossip", "select count(*) = 0 from pg_listening_channels()"),
    "prepared statement": ("prepare mine as select 1", "select not bool_or(from_sql) from pg_prepared_statements"),
    "cursor": ("declare mine cursor with hold for select 1", "select count(*) = 0 from pg_cursors where is_holdable"),
}
"""What a session keeps after a commit: a statement, and a query that says whether it is gone."""


@pytest.mark.parametrize("what", KEPT)
async def test_a_session_is_reset_before_the_next_task_uses_it(store: PostgresStore, what: str) -> None:
    """One tenant's settings, locks and tables never reach the next task's statements."""
    statement, is_gone = KEPT[what]
    async with store.transaction(timeout=MINUTE) as tx:
        (session,) = await tx.fetch("select pg_backend_pid() as pid")
        await tx.execute(statement)
    async with store.transaction(timeout=MINUTE) as tx:
        assert await tx.fetch("select pg_backend_pid() as pid") == [session]
        ((gone,),) = [tuple(row.values()) for row in await tx.fetch(is_gone)]
        assert gone


async def test_a_session_is_reset_after_an_error_of_the_user_s(store: PostgresStore) -> None:
    """A constraint's error keeps the connection, and not its state."""

    async def fail() -> None:
        async with store.transaction(timeout=MINUTE) as tx:
            await tx.execute("select pg_advisory_lock(7)")
            await tx.execute("create temp table one (x int unique)")
            await tx.execute("insert into one values (1), (1)")

    with pytest.raises(asyncpg.UniqueViolationError):
        await fail()
    async with store.transaction(timeout=MINUTE) as tx:
        assert await tx.fetch("select 1 as held from pg_locks where locktype = 'advisory'") == []


async def test_a_session_s_lock_ends_with_the_block(store: PostgresStore, postgres_url: str) -> None:
    """Another session need not wait until the connection is used again."""
    async with store.transaction(timeout=MINUTE) as tx:
        await tx.execute("select pg_advisory_lock(7)")
    other = await asyncpg.connect(postgres_url)
    assert await other.fetchval("select pg_try_advisory_lock(7)")
    await other.close()


async def test_listeners_of_a_task_end_with_it(store: PostgresStore) -> None:
    """A callback that a task has left on its connection hears nothing of the next task's channel."""
    heard: list[object] = []
    async with store.transaction(timeout=MINUTE) as tx:
        await tx.connection.add_listener("gossip", lambda *news: heard.append(news))
    async with store.transaction(timeout=MINUTE) as tx:
        await tx.execute("listen gossip")
        await tx.execute("notify gossip")
    assert heard == []


@pytest.mark.slow
async def test_a_statement_may_take_longer_than_reltask_s_own(postgres_url: str) -> None:
    """The lock timeout limits the user's statements, also on the driver's own connection."""
    store = PostgresStore(postgres_url, options=PostgresOptions(command_timeout=1.0))
    async with store.transaction(timeout=MINUTE) as tx:
        await tx.execute("select pg_sleep(1.3)")
        assert await tx.fetch("select 1 as one from pg_sleep(1.3)") == [{"one": 1}]
        assert await tx.connection.fetchval("select 1 from pg_sleep(1.3)") == 1
    await store.close()


async def test_the_server_ends_a_statement_at_the_lock_timeout(store: PostgresStore) -> None:
    """The server is first, so that the statement has certainly ended."""
    with pytest.raises(asyncpg.QueryCanceledError):
        async with store.transaction(timeout=timedelta(seconds=0.2)) as tx:
            await tx.execute("select pg_sleep(60)")
