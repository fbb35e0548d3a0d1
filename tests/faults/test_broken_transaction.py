"""A connection that breaks in a task's transaction raises one kind of error with every driver."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta

import asyncpg
import pytest

from reltask.errors import TransientError
from reltask.stores.postgres.store import PostgresStore
from tests.cluster import table
from tests.faults.proxy import Proxy
from tests.postgres_server import PostgresServer

MINUTE = timedelta(minutes=1)
INSERT = "insert into written values ('1', 1, 1)"


@pytest.fixture
async def store(postgres_server: PostgresServer, postgres_url: str) -> AsyncIterator[tuple[PostgresStore, Proxy]]:
    table.create(postgres_url)
    with Proxy(postgres_server.port) as proxy:
        store = PostgresStore(proxy.url(postgres_url))
        await store.open()
        yield store, proxy
        await store.close()


async def broken(store: PostgresStore, proxy: Proxy, query: str) -> None:
    async with store.transaction(timeout=MINUTE) as tx:
        await tx.execute(INSERT)
        proxy.reset()
        await getattr(tx, query)(INSERT)


async def test_broken_connection_is_transient_and_leaves_nothing(
    store: tuple[PostgresStore, Proxy], postgres_url: str
) -> None:
    """A user's statement raises TransientError: nothing was applied, and the next transaction works."""
    open_environment, proxy = store
    for query in ("execute", "fetch"):
        with pytest.raises(TransientError):
            await broken(open_environment, proxy, query)
        proxy.heal()
    async with open_environment.transaction(timeout=MINUTE) as tx:
        await tx.execute(INSERT)
    assert len(table.run(postgres_url, "select 1 from written")) == 1


async def test_connection_that_breaks_before_the_transaction_begins_is_transient(
    store: tuple[PostgresStore, Proxy],
) -> None:
    """A pooled connection that has died is not the task's error."""
    open_environment, proxy = store
    async with open_environment.transaction(timeout=MINUTE) as tx:
        await tx.execute(INSERT)
    aim = proxy.aim("BEGIN", "cut")
    with pytest.raises(TransientError):
        async with open_environment.transaction(timeout=MINUTE):
            pass
    assert aim.has_struck


async def test_mistake_in_the_user_s_own_sql_stays_the_driver_s_error(store: tuple[PostgresStore, Proxy]) -> None:
    """Only a broken connection is translated. The server's answers are for the user to handle."""
    open_environment, _ = store
    with pytest.raises(asyncpg.UndefinedTableError):
        async with open_environment.transaction(timeout=MINUTE) as tx:
            await tx.execute("select * from nowhere")
