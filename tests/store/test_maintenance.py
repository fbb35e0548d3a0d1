"""Maintenance on every database: workers that died, history that is pruned, metrics that are counted."""

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
from tests.store.bench import ALIVE, START, Bench, new_job, recurring, worker_record
from tests.store.test_leases import TTL, waits, won

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
MOMENT = timedelta(microseconds=1)
MINUTE = datetime.fromisoformat("2025-03-30T00:59:00Z")
"""In which START lies."""
MANY = 1_000_000


async def prune(store: Store, *, older_than: timedelta = DAY, most: int = MANY, limit: int = 1_000) -> int:
    return await store.prune_runs(older_than=older_than, most=most, leader=None, limit=limit)


async def ran(bench: Bench, count: int = 1, *, every: timedelta = timedelta(seconds=1)) -> list[UUID]:
    """So many one-offs, one after the other, each of which succeeded."""
    done = []
    for _ in range(count):
        claim = await bench.claimed()
        bench.now.value += every
        assert await bench.complete(claim)
        done.append(claim.job_id)
    return done


async def left(bench: Bench) -> set[UUID]:
    return {run.job_id for run in await bench.store.list_runs(limit=MANY)}


# Dead workers


async def test_a_worker_past_its_promise_is_marked_dead_once(bench: Bench) -> None:
    """Neither one that is alive, nor one that has stopped, nor one that is marked already."""
    for name in ("late", "gone"):
        await bench.store.register_worker(worker_record(name))
    await bench.store.stop_worker("gone")
    bench.now.value = START + ALIVE
    await bench.store.register_worker(worker_record("new"))
    assert await bench.store.mark_dead_workers(leader=None) == []
    bench.now.value += MOMENT
    assert await bench.store.mark_dead_workers(leader=None) == ["late"]
    assert await bench.store.mark_dead_workers(leader=None) == []
    states = {view.id: view.state for view in await bench.store.list_workers()}
    assert states == {"late": "dead", "new": "alive", "gone": "stopped"}


async def _beat(bench: Bench) -> None:
    await bench.store.heartbeat_jobs("alice", [], alive_for=ALIVE)


async def _claim(bench: Bench) -> None:
    await bench.claim("alice")


async def _register(bench: Bench) -> None:
    await bench.store.register_worker(worker_record())


@pytest.mark.parametrize("sign", [_beat, _claim, _register])
async def test_a_sign_of_life_revives_a_worker(bench: Bench, sign: Callable[[Bench], Awaitable[None]]) -> None:
    """Dead was a guess: whoever beats, claims or introduces itself again is alive."""
    await bench.store.register_worker(worker_record(alive_for=timedelta(seconds=1)))
    bench.now.advance(seconds=2)
    assert await bench.store.mark_dead_workers(leader=None) == ["alice"]
    await sign(bench)
    assert [view.state for view in await bench.store.list_workers()] == ["alive"]


# Pruning the ledger


async def test_history_past_its_age_is_pruned_oldest_first(bench: Bench) -> None:
    """In batches; what is younger stays, to the moment."""
    first, second, third = await ran(bench, 3)
    bench.now.value = START + DAY + timedelta(seconds=2) + MOMENT
    assert await prune(bench.store, limit=1) == 1
    assert await left(bench) == {second, third}
    assert await prune(bench.store) == 1
    assert await left(bench) == {third}
    assert await prune(bench.store) == 0
    assert first not in await left(bench)


async def test_history_beyond_the_number_is_pruned(bench: Bench) -> None:
    """The newest stay, whatever their age."""
    runs = await ran(bench, 5)
    bench.now.value += 2 * HOUR
    assert await prune(bench.store, older_than=365 * DAY, most=5) == 0
    assert await prune(bench.store, older_than=365 * DAY, most=3) == 2
    assert await left(bench) == set(runs[2:])


async def test_rows_of_one_moment_stay_together(bench: Bench) -> None:
    """A batch ends at one time. Where the number to keep falls into it, more are kept, never fewer."""
    await ran(bench, 1)
    await ran(bench, 4, every=timedelta(0))
    bench.now.value += 2 * HOUR
    assert await prune(bench.store, older_than=365 * DAY, most=2) == 0


async def test_nothing_younger_than_an_hour_is_pruned(bench: Bench) -> None:
    """Whatever was asked for: lost answers are settled by these rows, and the audit relies on them."""
    await ran(bench, 3)
    bench.now.value = START + timedelta(seconds=1) + HOUR
    assert await prune(bench.store, older_than=timedelta(0), most=1) == 0
    bench.now.value += MOMENT
    assert await prune(bench.store, older_than=timedelta(0), most=1) == 1


async def test_the_number_is_counted_seldom(bench: Bench, rival: Store) -> None:
    """Counting a million rows costs a tenth of a second; the answer is used for a while, and errs towards keeping."""
    await ran(bench, 2)
    bench.now.value += 2 * HOUR
    assert await prune(bench.store, older_than=365 * DAY, most=2) == 0
    await ran(bench, 2)
    bench.now.value += 2 * HOUR
    assert await prune(bench.store, older_than=365 * DAY, most=2) == 0
    assert await prune(rival, older_than=365 * DAY, most=2) == 2


async def test_an_audit_after_pruning_finds_nothing(bench: Bench) -> None:
    """History may start anywhere, once it is old enough to have been pruned."""
    job = recurring()
    await bench.add(job)
    await ran(bench, 2)
    for _ in range(4):
        claim = await bench.claim_one()
        await bench.fail(claim)
        again = await bench.claim_one()
        bench.now.advance(minutes=20)
        assert await bench.complete(again, next_run_time=bench.now())
    lost = await bench.claim_one()
    await bench.lose(lost)
    for _ in range(12):
        await prune(bench.store, older_than=timedelta(0), limit=1)
        assert await bench.store.audit_slots(kept_for=KEPT_FOR) == []
        bench.now.advance(minutes=10)
    assert await left(bench) == set()


async def test_a_pruned_job_is_not_forgotten_while_it_lives(bench: Bench) -> None:
    """A job's own row keeps its slot and fence: what is next follows from there, not from the ledger."""
    claim = await bench.claimed(recurring())
    await bench.complete(claim, next_run_time=START + DAY)
    bench.now.value = START + 2 * DAY
    assert await prune(bench.store) == 1
    again = await bench.claim_one()
    assert (again.slot_no, again.fence) == (2, 2)


# Pruning records


async def test_workers_that_ended_long_ago_are_removed(bench: Bench) -> None:
    """Stopped and dead ones; the living and the lately ended stay."""
    for name in ("stopped", "dead"):
        await bench.store.register_worker(worker_record(name, alive_for=timedelta(0)))
    await bench.store.stop_worker("stopped")
    bench.now.value += MOMENT
    await bench.store.mark_dead_workers(leader=None)
    bench.now.value = START + DAY + MOMENT
    await bench.store.register_worker(worker_record("new"))
    assert await bench.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    bench.now.value += MOMENT
    assert await bench.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    assert [view.id for view in await bench.store.list_workers()] == ["new"]


async def test_old_metrics_and_waits_that_are_over_are_removed(bench: Bench) -> None:
    """They are kept for as long as was asked, not for ever."""
    await ran(bench, every=timedelta(0))
    await bench.store.roll_up_runs(leader=None)
    await won(bench.store)
    await waits(bench.store, "bob")
    assert await bench.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 0
    bench.now.value = MINUTE + DAY
    assert await bench.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    assert (await bench.snapshot())["lease_waiters"] == []
    bench.now.value += MOMENT
    assert await bench.store.prune_records(workers=DAY, metrics=DAY, leader=None) == 1
    assert await metrics(bench) == []


# Metrics


async def metrics(bench: Bench) -> list[MetricView]:
    return await bench.store.list_metrics(since=30 * DAY)


async def test_runs_are_counted_by_minute_and_task(bench: Bench) -> None:
    """How many ended well and how many otherwise, how long they took, and how late they began."""
    await bench.add(new_job(), new_job())
    bench.now.value = MINUTE + timedelta(minutes=2)
    first = await bench.claim_one()
    second = await bench.claim_one()
    bench.now.advance(seconds=5)
    await bench.complete(first)
    bench.now.advance(seconds=5)
    await bench.fail(second)
    assert await bench.store.roll_up_runs(leader=None) == 1
    late = (MINUTE + timedelta(minutes=2) - START).total_seconds()
    (metric,) = await metrics(bench)
    assert (metric.minute, metric.task) == (MINUTE + timedelta(minutes=2), "greet")
    assert (metric.succeeded, metric.failed) == (1, 1)
    assert (metric.seconds, metric.seconds_most) == (15.0, 10.0)
    assert [metric.late, metric.late_most] == pytest.approx([2 * late, late])


async def test_runs_that_were_given_back_are_not_counted(bench: Bench) -> None:
    """Released and snoozed runs ended neither well nor badly; lost ones did not end well."""
    await bench.release(await bench.claimed(), outcome=Outcome.RELEASED)
    await bench.claim_one()
    await bench.release(await bench.claimed(new_job(task="other")), outcome=Outcome.ABANDONED)
    bench.now.advance(minutes=3)
    assert len(await bench.store.reclaim_jobs()) == 1
    await bench.store.roll_up_runs(leader=None)
    assert [(view.task, view.succeeded, view.failed) for view in await metrics(bench)] == [
        ("greet", 0, 1),
        ("other", 0, 1),
    ]


async def test_counting_again_changes_nothing_until_something_happens(bench: Bench) -> None:
    """The same rows give the same numbers; a row more, even a late one, is counted the next time."""
    await ran(bench)
    assert await bench.store.roll_up_runs(leader=None) == 1
    before = await bench.snapshot()
    assert await bench.store.roll_up_runs(leader=None) == 0
    assert await bench.snapshot() == before
    bench.now.advance(minutes=2)
    await ran(bench)
    await bench.store.roll_up_runs(leader=None)
    bench.now.advance(minutes=-2)
    await ran(bench)
    bench.now.advance(minutes=2)
    assert await bench.store.roll_up_runs(leader=None) == 1
    assert [view.succeeded for view in await metrics(bench)] == [1, 2]


async def test_a_gap_is_caught_up_in_parts(bench: Bench) -> None:
    """Of the last hour, some minutes at a time; nothing in between is left out."""
    for _ in range(30):
        await ran(bench)
        bench.now.advance(seconds=59)
    written = [await bench.store.roll_up_runs(leader=None) for _ in range(5)]
    assert sum(written) == 30
    assert max(written) <= 13
    assert [view.succeeded for view in await metrics(bench)] == [1] * 30


async def test_a_quiet_time_does_not_stop_the_counting(bench: Bench) -> None:
    """The first run after a long pause is counted at once."""
    await ran(bench)
    await bench.store.roll_up_runs(leader=None)
    bench.now.advance(minutes=50)
    await ran(bench)
    assert await bench.store.roll_up_runs(leader=None) == 1
    bench.now.advance(hours=5)
    await ran(bench)
    assert await bench.store.roll_up_runs(leader=None) == 1
    assert len(await metrics(bench)) == 3


async def test_what_is_not_counted_does_not_hold_the_counting_up(bench: Bench) -> None:
    """A task that snoozes every minute leaves rows that are never counted; a run behind them is counted at once."""
    await ran(bench)
    await bench.store.roll_up_runs(leader=None)
    for _ in range(20):
        bench.now.advance(minutes=1)
        await bench.release(await bench.claimed(new_job(task="poller")), outcome=Outcome.SNOOZED)
    await ran(bench)
    assert await bench.store.roll_up_runs(leader=None) == 1
    assert [view.succeeded for view in await metrics(bench)] == [1, 1]


async def test_counting_again_after_pruning_takes_nothing_away(bench: Bench) -> None:
    """Where rows may be gone, nothing is counted again: metrics outlive the ledger."""
    await ran(bench, 3)
    await bench.store.roll_up_runs(leader=None)
    before = await metrics(bench)
    for _ in range(65):
        bench.now.advance(minutes=1)
        await prune(bench.store, older_than=timedelta(0), limit=1)
        await bench.store.roll_up_runs(leader=None)
        assert await metrics(bench) == before
    assert await left(bench) == set()


async def test_metrics_are_listed_newest_first_by_time_and_task(bench: Bench) -> None:
    """As far back as was asked, and of one task if one is named."""
    for task in ("b", "a"):
        await bench.complete(await bench.claimed(new_job(task=task)))
    bench.now.advance(minutes=5)
    await ran(bench, every=timedelta(0))
    await bench.store.roll_up_runs(leader=None)
    listed = [(view.minute - MINUTE, view.task) for view in await metrics(bench)]
    assert listed == [(timedelta(minutes=5), "greet"), (timedelta(0), "a"), (timedelta(0), "b")]
    assert [view.task for view in await bench.store.list_metrics(since=timedelta(minutes=1))] == ["greet"]
    assert [view.task for view in await bench.store.list_metrics(since=HOUR, task="b")] == ["b"]


# Terms

VERBS: dict[str, Callable[[Store, Term], Awaitable[list[str] | int]]] = {
    "mark_dead_workers": lambda store, term: store.mark_dead_workers(leader=term),
    "prune_runs": lambda store, term: store.prune_runs(older_than=timedelta(0), most=1, leader=term),
    "prune_records": lambda store, term: store.prune_records(workers=HOUR, metrics=HOUR, leader=term),
    "roll_up_runs": lambda store, term: store.roll_up_runs(leader=term),
}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_leader_writes_under_its_term_alone(bench: Bench, verb: str) -> None:
    """Nothing of an old term, of one to come, or of a lease given back is written; the leader's own is."""
    act = VERBS[verb]
    await bench.store.register_worker(worker_record("stopped"))
    await bench.store.stop_worker("stopped")
    await ran(bench, 2)
    bench.now.value += 2 * HOUR
    await bench.store.register_worker(worker_record("late", alive_for=timedelta(0)))
    await ran(bench, 2)
    old = await won(bench.store)
    bench.now.value += TTL
    leader = await won(bench.store, "bob")
    before = await bench.snapshot()
    for term in (old.term, Term("reports", 3), Term("nothing", 2)):
        assert not await act(bench.store, term)
    assert await bench.snapshot() == before
    assert await act(bench.store, leader.term)
    await bench.store.resign_lease(leader)
    await ran(bench, 1)
    before = await bench.snapshot()
    assert not await act(bench.store, leader.term)
    assert await bench.snapshot() == before
