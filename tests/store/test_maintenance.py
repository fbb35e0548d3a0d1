"""Maintenance on every database: dead workers, pruned history, counted metrics."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from uuid import UUID

import pytest

from reltask.model.audit import KEPT_FOR
from reltask.model.job import Outcome
from reltask.model.lease import Term
from reltask.model.views import MetricView
from reltask.stores.store import Store
from tests.store.store_harness import ALIVE, START, StoreHarness, new_job, recurring, worker_record
from tests.store.test_leases import TTL, waits, won

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MOMENT = timedelta(microseconds=1)
MINUTE = datetime.fromisoformat("2025-03-30T00:59:00Z")
"""The minute of START."""
MANY = 1_000_000


async def prune(store: Store, *, older_than: timedelta = DAY, most: int = MANY, limit: int = 1_000) -> int:
    return await store.prune_runs(older_than=older_than, most=most, leader=None, limit=limit)


async def ran(harness: StoreHarness, count: int = 1, *, every: timedelta = timedelta(seconds=1)) -> list[UUID]:
    """`count` one-offs, one after the other, each of which succeeded."""
    done = []
    for _ in range(count):
        claim = await harness.claimed()
        harness.now.value += every
        assert await harness.complete(claim)
        done.append(claim.job_id)
    return done


async def left(harness: StoreHarness) -> set[UUID]:
    return {run.job_id for run in await harness.store.list_runs(limit=MANY)}


# Dead workers


async def test_a_worker_past_its_alive_time_is_marked_dead_once(harness: StoreHarness) -> None:
    """Not one that is alive, has stopped, or is already marked."""
    for name in ("late", "gone"):
        await harness.store.register_worker(worker_record(name))
    await harness.store.stop_worker("gone")
    harness.now.value = START + ALIVE
    await harness.store.register_worker(worker_record("new"))
    assert await harness.store.mark_dead_workers(leader=None) == []
    harness.now.value += MOMENT
    assert await harness.store.mark_dead_workers(leader=None) == ["late"]
    assert await harness.store.mark_dead_workers(leader=None) == []
    states = {view.id: view.state for view in await harness.store.list_workers()}
    assert states == {"late": "dead", "new": "alive", "gone": "stopped"}


async def _beat(harness: StoreHarness) -> None:
    await harness.store.heartbeat_jobs("alice", [], alive_for=ALIVE)


async def _claim(harness: StoreHarness) -> None:
    await harness.claim("alice")


async def _register(harness: StoreHarness) -> None:
    await harness.store.register_worker(worker_record())


@pytest.mark.parametrize("sign", [_beat, _claim, _register])
async def test_a_sign_of_life_revives_a_worker(
    harness: StoreHarness, sign: Callable[[StoreHarness], Awaitable[None]]
) -> None:
    """A worker marked dead that beats, claims or registers again is alive."""
    await harness.store.register_worker(worker_record(alive_for=timedelta(seconds=1)))
    harness.now.advance(seconds=2)
    assert await harness.store.mark_dead_workers(leader=None) == ["alice"]
    await sign(harness)
    assert [view.state for view in await harness.store.list_workers()] == ["alive"]


# Pruning the ledger


async def test_history_past_its_age_is_pruned_oldest_first(harness: StoreHarness) -> None:
    """In batches; younger rows stay, to the microsecond."""
    first, second, third = await ran(harness, 3)
    harness.now.value = START + DAY + timedelta(seconds=2) + MOMENT
    assert await prune(harness.store, limit=1) == 1
    assert await left(harness) == {second, third}
    assert await prune(harness.store) == 1
    assert await left(harness) == {third}
    assert await prune(harness.store) == 0
    assert first not in await left(harness)


async def test_history_beyond_the_number_is_pruned(harness: StoreHarness) -> None:
    """The newest stay, whatever their age."""
    runs = await ran(harness, 5)
    harness.now.value += 2 * HOUR
    assert await prune(harness.store, older_than=365 * DAY, most=5) == 0
    assert await prune(harness.store, older_than=365 * DAY, most=3) == 2
    assert await left(harness) == set(runs[2:])


async def test_rows_of_one_moment_stay_together(harness: StoreHarness) -> None:
    """A batch ends at one time.

    If the number to keep falls into it, more rows are kept, never fewer.
    """
    await ran(harness, 1)
    await ran(harness, 4, every=timedelta(0))
    harness.now.value += 2 * HOUR
    assert await prune(harness.store, older_than=365 * DAY, most=2) == 0


async def test_nothing_younger_than_an_hour_is_pruned(harness: StoreHarness) -> None:
    """Whatever the settings: these rows settle lost answers, and the audit relies on them."""
    await ran(harness, 3)
    harness.now.value = START + timedelta(seconds=1) + HOUR
    assert await prune(harness.store, older_than=timedelta(0), most=1) == 0
    harness.now.value += MOMENT
    assert await prune(harness.store, older_than=timedelta(0), most=1) == 1


async def test_rows_are_counted_rarely(harness: StoreHarness, rival: Store) -> None:
    """Counting a million rows takes a tenth of a second; the answer is used for a while, and errs towards keeping."""
    await ran(harness, 2)
    harness.now.value += 2 * HOUR
    assert await prune(harness.store, older_than=365 * DAY, most=2) == 0
    await ran(harness, 2)
    harness.now.value += 2 * HOUR
    assert await prune(harness.store, older_than=365 * DAY, most=2) == 0
    assert await prune(rival, older_than=365 * DAY, most=2) == 2


async def test_an_audit_after_pruning_finds_nothing(harness: StoreHarness) -> None:
    """A history may start anywhere, once it is old enough to have been pruned."""
    job = recurring()
    await harness.add(job)
    await ran(harness, 2)
    for _ in range(4):
        claim = await harness.claim_one()
        await harness.fail(claim)
        again = await harness.claim_one()
        harness.now.advance(minutes=20)
        assert await harness.complete(again, next_run_time=harness.now())
    lost = await harness.claim_one()
    await harness.lose(lost)
    for _ in range(12):
        await prune(harness.store, older_than=timedelta(0), limit=1)
        assert await harness.store.audit_slots(kept_for=KEPT_FOR) == []
        harness.now.advance(minutes=10)
    assert await left(harness) == set()


async def test_a_pruned_job_is_not_forgotten_while_it_lives(harness: StoreHarness) -> None:
    """A job's row keeps its slot and fence: the next ones follow from it, not from the ledger."""
    claim = await harness.claimed(recurring())
    await harness.complete(claim, next_run_time=START + DAY)
    harness.now.value = START + 2 * DAY
    assert await prune(harness.store) == 1
    again = await harness.claim_one()
    assert (again.slot_no, again.fence) == (2, 2)


# Pruning records


async def test_workers_that_ended_long_ago_are_removed(harness: StoreHarness) -> None:
    """Stopped and dead ones; living and recently ended ones stay."""
    for name in ("stopped", "dead"):
        await harness.store.register_worker(worker_record(name, alive_for=timedelta(0)))
    await harness.store.stop_worker("stopped")
    harness.now.value += MOMENT
    await harness.store.mark_dead_workers(leader=None)
    harness.now.value = START + DAY + MOMENT
    await harness.store.register_worker(worker_record("new"))
    assert await harness.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    harness.now.value += MOMENT
    assert await harness.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    assert [view.id for view in await harness.store.list_workers()] == ["new"]


async def test_old_metrics_and_waits_that_are_over_are_removed(harness: StoreHarness) -> None:
    """They are kept as long as requested."""
    await ran(harness, every=timedelta(0))
    await harness.store.roll_up_runs(leader=None)
    await won(harness.store)
    await waits(harness.store, "bob")
    assert await harness.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 0
    harness.now.value = MINUTE + DAY
    assert await harness.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    assert (await harness.snapshot())["lease_waiters"] == []
    harness.now.value += MOMENT
    assert await harness.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    assert await metrics(harness) == []


# Metrics


async def metrics(harness: StoreHarness) -> list[MetricView]:
    return await harness.store.list_metrics(since=30 * DAY)


async def test_runs_are_counted_by_minute_and_task(harness: StoreHarness) -> None:
    """How many succeeded and how many did not, their durations, and their lateness."""
    await harness.add(new_job(), new_job())
    harness.now.value = MINUTE + timedelta(minutes=2)
    first = await harness.claim_one()
    second = await harness.claim_one()
    harness.now.advance(seconds=5)
    await harness.complete(first)
    harness.now.advance(seconds=5)
    await harness.fail(second)
    assert await harness.store.roll_up_runs(leader=None) == 1
    late = (MINUTE + timedelta(minutes=2) - START).total_seconds()
    (metric,) = await metrics(harness)
    assert (metric.minute, metric.task) == (MINUTE + timedelta(minutes=2), "greet")
    assert (metric.succeeded, metric.failed) == (1, 1)
    assert (metric.seconds, metric.seconds_most) == (15.0, 10.0)
    assert [metric.late, metric.late_most] == pytest.approx([2 * late, late])


async def test_released_runs_are_not_counted(harness: StoreHarness) -> None:
    """Released and snoozed runs count as neither; lost ones count as failed."""
    await harness.release(await harness.claimed(), outcome=Outcome.RELEASED)
    await harness.claim_one()
    await harness.release(await harness.claimed(new_job(task="other")), outcome=Outcome.ABANDONED)
    harness.now.advance(minutes=3)
    assert len(await harness.store.reclaim_jobs()) == 1
    await harness.store.roll_up_runs(leader=None)
    assert [(view.task, view.succeeded, view.failed) for view in await metrics(harness)] == [
        ("greet", 0, 1),
        ("other", 0, 1),
    ]


async def test_counting_again_changes_nothing_until_something_happens(harness: StoreHarness) -> None:
    """The same rows give the same numbers; an additional row, even a late one, is counted the next time."""
    await ran(harness)
    assert await harness.store.roll_up_runs(leader=None) == 1
    before = await harness.snapshot()
    assert await harness.store.roll_up_runs(leader=None) == 0
    assert await harness.snapshot() == before
    harness.now.advance(minutes=2)
    await ran(harness)
    await harness.store.roll_up_runs(leader=None)
    harness.now.advance(minutes=-2)
    await ran(harness)
    harness.now.advance(minutes=2)
    assert await harness.store.roll_up_runs(leader=None) == 1
    assert [view.succeeded for view in await metrics(harness)] == [1, 2]


async def test_a_gap_is_counted_in_parts(harness: StoreHarness) -> None:
    """Of the last hour, some minutes at a time, without a gap."""
    for _ in range(30):
        await ran(harness)
        harness.now.advance(seconds=59)
    written = [await harness.store.roll_up_runs(leader=None) for _ in range(5)]
    assert sum(written) == 30
    assert max(written) <= 13
    assert [view.succeeded for view in await metrics(harness)] == [1] * 30


async def test_a_quiet_time_does_not_stop_the_counting(harness: StoreHarness) -> None:
    """The first run after a long pause is counted at once."""
    await ran(harness)
    await harness.store.roll_up_runs(leader=None)
    harness.now.advance(minutes=50)
    await ran(harness)
    assert await harness.store.roll_up_runs(leader=None) == 1
    harness.now.advance(hours=5)
    await ran(harness)
    assert await harness.store.roll_up_runs(leader=None) == 1
    assert len(await metrics(harness)) == 3


async def test_rows_that_are_not_counted_do_not_delay_the_counting(harness: StoreHarness) -> None:
    """A task that snoozes every minute leaves rows that are never counted; a run behind them is counted at once."""
    await ran(harness)
    await harness.store.roll_up_runs(leader=None)
    for _ in range(20):
        harness.now.advance(minutes=1)
        await harness.release(await harness.claimed(new_job(task="poller")), outcome=Outcome.SNOOZED)
    await ran(harness)
    assert await harness.store.roll_up_runs(leader=None) == 1
    assert [view.succeeded for view in await metrics(harness)] == [1, 1]


async def test_counting_again_after_pruning_takes_nothing_away(harness: StoreHarness) -> None:
    """Where rows may be gone, nothing is counted again: metrics outlive the ledger."""
    await ran(harness, 3)
    await harness.store.roll_up_runs(leader=None)
    before = await metrics(harness)
    for _ in range(65):
        harness.now.advance(minutes=1)
        await prune(harness.store, older_than=timedelta(0), limit=1)
        await harness.store.roll_up_runs(leader=None)
        assert await metrics(harness) == before
    assert await left(harness) == set()


async def test_metrics_are_listed_newest_first_by_time_and_task(harness: StoreHarness) -> None:
    """As far back as requested, and of one task if it is named."""
    for task in ("b", "a"):
        await harness.complete(await harness.claimed(new_job(task=task)))
    harness.now.advance(minutes=5)
    await ran(harness, every=timedelta(0))
    await harness.store.roll_up_runs(leader=None)
    listed = [(view.minute - MINUTE, view.task) for view in await metrics(harness)]
    assert listed == [(timedelta(minutes=5), "greet"), (timedelta(0), "a"), (timedelta(0), "b")]
    assert [view.task for view in await harness.store.list_metrics(since=timedelta(minutes=1))] == ["greet"]
    assert [view.task for view in await harness.store.list_metrics(since=HOUR, task="b")] == ["b"]


# Terms

VERBS: dict[str, Callable[[Store, Term], Awaitable[list[str] | int]]] = {
    "mark_dead_workers": lambda store, term: store.mark_dead_workers(leader=term),
    "prune_runs": lambda store, term: store.prune_runs(older_than=timedelta(0), most=1, leader=term),
    "prune_records": lambda store, term: store.prune_records(workers=HOUR, metrics=HOUR, leader=term),
    "roll_up_runs": lambda store, term: store.roll_up_runs(leader=term),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_leader_writes_under_its_term_alone(harness: StoreHarness, verb: str) -> None:
    """Nothing is written under an old term, a later one, or a released lease; under the leader's own it is."""
    act = VERBS[verb]
    await harness.store.register_worker(worker_record("stopped"))
    await harness.store.stop_worker("stopped")
    await ran(harness, 2)
    harness.now.value += 2 * HOUR
    await harness.store.register_worker(worker_record("late", alive_for=timedelta(0)))
    await ran(harness, 2)
    old = await won(harness.store)
    harness.now.value += TTL
    leader = await won(harness.store, "bob")
    before = await harness.snapshot()
    for term in (old.term, Term("reports", 3), Term("nothing", 2)):
        assert not await act(harness.store, term)
    assert await harness.snapshot() == before
    assert await act(harness.store, leader.term)
    await harness.store.resign_lease(leader)
    await ran(harness, 1)
    before = await harness.snapshot()
    assert not await act(harness.store, leader.term)
    assert await harness.snapshot() == before
