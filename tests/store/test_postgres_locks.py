"""Row locks on PostgreSQL: which verb skips a locked row, which waits for it, and what is checked afterwards.

An operator's open transaction holds a row, as another worker's statement or a psql session would.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from reltask.model.job import Claim, ClaimRequest, Completion, Failure, Hold, NewJob, Outcome, Release
from reltask.stores.postgres.connections import PostgresOptions
from reltask.stores.postgres.store import PostgresStore

MINUTE = timedelta(minutes=1)
WAITING = """
select count(*) from pg_stat_activity
where application_name = 'reltask' and datname = current_database() and wait_event_type = 'Lock'
"""

TAKE_AWAY = "update reltask.jobs set locked_by = 'rival', fence = fence + 1 where id = $1"


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A store with a short timeout, so that a statement that waits where it must not fails."""
    store = PostgresStore(postgres_url, options=PostgresOptions(command_timeout=2.0))
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def operator(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


@asynccontextmanager
async def locked(operator: asyncpg.Connection, job_id: UUID) -> AsyncIterator[None]:
    """The row is held during the block; the operator's change is committed at the end."""
    async with operator.transaction():
        await operator.execute("select from reltask.jobs where id = $1 for update", job_id)
        yield


async def add(store: PostgresStore, count: int) -> list[UUID]:
    ids = [uuid4() for _ in range(count)]
    await store.enqueue_jobs([NewJob(id=job_id, task="t") for job_id in ids])
    return ids


async def claim(store: PostgresStore, worker: str = "w", lock_timeout: timedelta = MINUTE) -> list[Claim]:
    request = ClaimRequest(
        worker=worker,
        token=uuid4(),
        queues=["default"],
        tasks=["t"],
        limit=100,
        lock_timeout=lock_timeout,
        isolated=True,
        alive_for=MINUTE,
    )
    return (await store.claim_jobs(request)).claims


async def until_waiting(operator: asyncpg.Connection) -> None:
    while not await operator.fetchval(WAITING):
        await operator.execute("select pg_stat_clear_snapshot()")


async def test_claim_skips_a_locked_row(store: PostgresStore, operator: asyncpg.Connection) -> None:
    """A claim takes free rows and does not wait for the others."""
    held, *free = await add(store, 3)
    async with locked(operator, held):
        assert {one.job_id for one in await claim(store)} == set(free)
    assert [one.job_id for one in await claim(store)] == [held]


async def test_heartbeat_skips_a_locked_row(store: PostgresStore, operator: asyncpg.Connection) -> None:
    """A heartbeat never waits: the locked row is missing from the answer, and is no stray."""
    await add(store, 3)
    held, *free = (one.hold for one in await claim(store))
    async with locked(operator, held.job_id):
        answer = await store.heartbeat_jobs("w", [held, *free], alive_for=MINUTE)
        assert await store.read_holds("w", [held]) == {held}
    assert answer.renewed == set(free)
    assert answer.strays == []


async def test_reclaim_skips_a_locked_row(store: PostgresStore, operator: asyncpg.Connection) -> None:
    """An expired claim that is being written is left for the next reclaim."""
    await add(store, 2)
    held, free = (one.hold for one in await claim(store, lock_timeout=timedelta(milliseconds=1)))
    async with locked(operator, held.job_id):
        assert [one.job_id for one in await store.reclaim_jobs()] == [free.job_id]


async def test_heartbeat_and_claim_do_not_wait_for_the_workers_own_row(
    store: PostgresStore, operator: asyncpg.Connection
) -> None:
    """Showing life is optional: it must not delay a heartbeat."""
    await operator.execute("""
        insert into reltask.workers
        values ('w', 'h', 1, '1', null, '[]', '[]', 1, now(), now() - interval '1 hour', now())
    """)
    await add(store, 1)
    async with operator.transaction():
        await operator.execute("select from reltask.workers for update")
        (one,) = await claim(store)
        assert (await store.heartbeat_jobs("w", [one.hold], alive_for=MINUTE)).renewed == {one.hold}


VERBS = ["complete", "finish", "fail", "release"]


@pytest.mark.parametrize("verb", VERBS)
async def test_settlement_skips_a_locked_row(store: PostgresStore, operator: asyncpg.Connection, verb: str) -> None:
    """A held row delays its own outcome only, and a committed read shows that the claim is not lost."""
    await add(store, 3)
    held, *free = (one.hold for one in await claim(store))
    async with locked(operator, held.job_id):
        assert await settle(store, verb, [held, *free]) == sorted(free)
        assert set(await store.read_outcomes([held, *free])) == set(free)
        assert await store.read_holds("w", [held, *free]) == {held}
        assert await settle(store, verb, [held]) == []
    assert await settle(store, verb, [held]) == [held]


@pytest.mark.parametrize("verb", VERBS)
async def test_settlement_of_a_row_that_was_held_checks_the_fence_again(
    store: PostgresStore, operator: asyncpg.Connection, verb: str
) -> None:
    """A claim lost while its row was held is refused: no ledger row, the new owner's state stays."""
    await add(store, 2)
    lost, kept = (one.hold for one in await claim(store))
    async with locked(operator, lost.job_id):
        await operator.execute(TAKE_AWAY, lost.job_id)
        assert await settle(store, verb, [kept, lost]) == [kept]
        assert await store.read_holds("w", [lost]) == {lost}
    assert await settle(store, verb, [lost]) == []
    assert set(await store.read_outcomes([lost, kept])) == {kept}
    view = await store.read_job(lost.job_id)
    assert view is not None
    assert (view.locked_by, view.fence) == ("rival", lost.fence + 1)


@pytest.mark.parametrize("is_lost", [True, False])
async def test_completion_in_a_transaction_waits_and_checks_the_fence_again(
    store: PostgresStore, operator: asyncpg.Connection, is_lost: bool
) -> None:
    """A task's own writes must not be rolled back only because its row is locked for a moment."""
    await add(store, 1)
    (hold,) = (one.hold for one in await claim(store))

    async def complete() -> bool:
        async with store.transaction(timeout=MINUTE) as transaction:
            return await transaction.complete_job("w", Completion(hold=hold))

    async with locked(operator, hold.job_id):
        completing = asyncio.ensure_future(complete())
        await until_waiting(operator)
        if is_lost:
            await operator.execute(TAKE_AWAY, hold.job_id)
    assert await completing is not is_lost
    assert set(await store.read_outcomes([hold])) == (set() if is_lost else {hold})


async def settle(store: PostgresStore, verb: str, holds: list[Hold]) -> list[Hold]:
    if verb in ("complete", "finish"):
        next_time = datetime(2100, 1, 1, tzinfo=UTC) if verb == "complete" else None
        settled = await store.complete_jobs("w", [Completion(hold=hold, next_run_time=next_time) for hold in holds])
    elif verb == "fail":
        settled = await store.fail_jobs("w", [Failure(hold=hold, error="e", delay=MINUTE) for hold in holds])
    else:
        releases = [Release(hold=hold, outcome=Outcome.RELEASED) for hold in holds]
        settled = await store.release_jobs("w", releases)
    return sorted(one.hold for one in settled)


@pytest.mark.slow
async def test_batches_in_any_order_do_not_deadlock(store: PostgresStore) -> None:
    """Settlements and heartbeats over the same rows, shuffled and at once: each run ends once, without a deadlock."""
    rng = random.Random(7)
    for _ in range(15):
        ids = await add(store, 60)
        holds = [one.hold for one in await claim(store)]
        batches = [rng.sample(holds, k=40) for _ in range(6)]
        beats = [store.heartbeat_jobs("w", rng.sample(holds, k=60), alive_for=MINUTE) for _ in range(4)]
        beating = asyncio.gather(*beats)
        settled = await asyncio.gather(*(settle(store, "finish", batch) for batch in batches))
        await beating
        done = [hold for batch in settled for hold in batch]
        assert len(done) == len(set(done))
        rest = [hold for hold in holds if hold not in done]
        assert await settle(store, "finish", rest) == sorted(rest)
        assert len(ids) == len(done) + len(rest)
