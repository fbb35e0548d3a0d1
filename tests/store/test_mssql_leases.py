"""The guard of a lease on SQL Server: an application lock, which blocks takeovers but not heartbeats."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from reltask.model.lease import Grant, LeaseRequest, Term
from reltask.stores.store import Store
from tests.mssql_server import VARIABLE, open_connection, run
from tests.store.store_harness import MssqlBackend, Now

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no server"),
]
TTL = timedelta(seconds=10)
PATIENCE = timedelta(minutes=2)
TAKEOVER = """
BEGIN TRANSACTION;
EXEC sp_getapplock @Resource = N'reltask.lease reports', @LockMode = N'Exclusive', @LockOwner = N'Transaction';
UPDATE reltask.Leases SET Term = Term + 1 WHERE Name = N'reports';
"""


@pytest.fixture
async def stores(mssql_url: str) -> AsyncIterator[tuple[Store, Store, Now]]:
    """A leader's store, another one, and the time of both."""
    now, backend = Now(), MssqlBackend(mssql_url)
    one, other = backend.store(now), backend.store(now)
    yield one, other, now
    await one.close()
    await other.close()


async def tried(store: Store, holder: str, **fields: Any) -> tuple[int | None, Grant]:
    """Try to acquire the lease; return the term and the grant."""
    request = LeaseRequest(**{"name": "reports", "holder": holder, "acquisition": uuid4(), "ttl": TTL, **fields})
    term = (await store.acquire_lease(request)).term
    return term, Grant(term=Term("reports", term or 0), acquisition=request.acquisition)


async def test_a_guard_blocks_takeovers_and_allows_heartbeats(stores: tuple[Store, Store, Now]) -> None:
    """During the leader's transaction its heartbeats pass, and a try is refused although the lease has ended."""
    leader, rival, now = stores
    _, grant = await tried(leader, "alice")
    async with leader.transaction(timeout=PATIENCE) as transaction:
        assert await transaction.guard_lease(grant.term)
        assert await rival.heartbeat_lease(grant)
        now.value += TTL
        assert (await tried(rival, "bob"))[0] is None
    assert (await tried(rival, "bob"))[0] == 2


async def test_a_lease_released_under_a_guard_is_free_after_it(stores: tuple[Store, Store, Now]) -> None:
    """An operator can release it at once; the next holder waits for the last one's commit."""
    leader, rival, _ = stores
    _, grant = await tried(leader, "alice")
    async with leader.transaction(timeout=PATIENCE) as transaction:
        assert await transaction.guard_lease(grant.term)
        assert await rival.release_lease(grant.term)
        assert (await tried(rival, "bob"))[0] is None
    assert (await tried(rival, "bob"))[0] == 2


async def test_two_guards_of_one_leader_do_not_wait_for_each_other(stores: tuple[Store, Store, Now]) -> None:
    """The lock is shared, so a leader may write in two transactions at once."""
    leader, same, _ = stores
    _, grant = await tried(leader, "alice")
    async with leader.transaction(timeout=PATIENCE) as one, same.transaction(timeout=PATIENCE) as two:
        assert await one.guard_lease(grant.term)
        assert await two.guard_lease(grant.term)


async def test_a_takeover_under_way_is_waited_for(stores: tuple[Store, Store, Now], mssql_url: str) -> None:
    """The guard reads the term after it has the lock: it never sees the term from before a takeover's commit."""
    leader, _, _ = stores
    _, grant = await tried(leader, "alice")
    with closing(open_connection(mssql_url)) as rival:
        run(rival, TAKEOVER)
        async with leader.transaction(timeout=PATIENCE) as transaction:
            guard = asyncio.create_task(transaction.guard_lease(grant.term))
            await asyncio.wait([guard], timeout=1)  # time to be sent; whether it has answered does not matter
            run(rival, "COMMIT TRANSACTION")
            assert not await guard


async def test_writes_of_an_old_term(stores: tuple[Store, Store, Now]) -> None:
    """Maintenance under an old term writes nothing; under the current one it does."""
    leader, rival, now = stores
    _, old = await tried(leader, "alice")
    now.value += TTL
    await leader.acquire_lease(LeaseRequest(name="x", holder="gone", acquisition=uuid4(), ttl=TTL))
    await leader.acquire_lease(LeaseRequest(name="x", holder="waits", acquisition=uuid4(), ttl=TTL, waits=TTL))
    now.value += TTL
    term, new = await tried(rival, "bob")
    lengths = {"workers": TTL, "metrics": TTL}
    assert (term, await leader.prune_records(**lengths, leader=old.term)) == (2, 0)
    assert await rival.prune_records(**lengths, leader=new.term) == 1
