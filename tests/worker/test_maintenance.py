"""Maintenance in virtual time: what is done, how often, by which worker, and what happens if it fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from reltask import events
from reltask.errors import PermanentError, TransientError
from reltask.leases.candidacy import STALLED
from reltask.model.job import Outcome, WorkerRecord
from reltask.model.lease import MAINTENANCE, Term
from reltask.stores.postgres.listening import EVERY
from reltask.worker.coordination import MaintenanceLease, Turn
from tests.worker.worker_harness import HarnessApp, WorkerHarness

LEASE: dict[str, object] = {"maintenance.coordination": "lease"}
WRITES = {"mark_dead_workers", "roll_up_runs", "prune_runs", "prune_records"}
"""The verbs that carry a term."""


def with_task(app: HarnessApp, *, max_attempts: int = 1) -> HarnessApp:
    @app.task(max_attempts=max_attempts)
    async def work(number: int = 0) -> None:
        if number < 0:
            raise ValueError(number)

    return app


async def enqueue(app: HarnessApp, *numbers: int) -> None:
    for number in numbers:
        await app.get_task("work").enqueue(number)


async def dead_worker(app: HarnessApp, name: str) -> None:
    """A worker that registered and sends nothing more."""
    store = app.sound_store()
    await store.open()
    minute = timedelta(minutes=1)
    record: dict[str, Any] = {"host": "far", "pid": 7, "version": "1", "queues": [], "tasks": [], "concurrency": 1}
    await store.register_worker(WorkerRecord(id=name, app_version=None, alive_for=minute, **record))
    await store.close()


# Cost


@pytest.mark.slow
def test_200_idle_workers_send_at_most_5_statements_a_second(harness: WorkerHarness) -> None:
    """Polls, heartbeats, tries and maintenance together, with the lease: see the module's docstring."""
    app = with_task(harness.app(settings={**LEASE, "maintenance.lease_ttl": "10s"}))
    seconds = 1200

    async def scenario() -> Counter[str]:
        async with AsyncExitStack() as workers:
            for _ in range(200):
                await workers.enter_async_context(app.worker())
            await asyncio.sleep(300)
            before = app.faults.calls.copy()
            await asyncio.sleep(seconds)
            return app.faults.calls - before

    sent = harness.run(scenario())
    maintenance = {"reclaim_jobs"} | WRITES
    assert sent.total() / seconds <= 5
    assert sent["claim_jobs"] / seconds == pytest.approx(2, rel=0.05)
    assert sent["read_overdue"] / seconds == pytest.approx(1, rel=0.05)
    assert sent["read_status"] == 2
    assert sent["heartbeat_lease"] / seconds == pytest.approx(0.5, rel=0.05)
    assert sent["acquire_lease"] / seconds <= 0.5 * 1.05
    assert sum(sent[verb] for verb in maintenance) / seconds == pytest.approx(2 / 30 + 3 / 60, rel=0.1)


@pytest.mark.slow
def test_1000_workers_that_start_together_soon_send_at_most_5_statements_a_second(harness: WorkerHarness) -> None:
    """From their third minute on, when each has looked twice and knows how many they are.

    On PostgreSQL a listener's sign of life every five seconds is added.
    """
    app = with_task(harness.app(settings={**LEASE, "maintenance.lease_ttl": "10s"}))
    count, starting, seconds = 1000, 30.0, 60

    async def scenario() -> list[Counter[str]]:
        async with AsyncExitStack() as workers:
            for _ in range(count):
                await workers.enter_async_context(app.worker())
                await asyncio.sleep(starting / count)
            await asyncio.sleep(2 * seconds)
            return [await sent_in(seconds) for _ in range(3)]

    async def sent_in(seconds: float) -> Counter[str]:
        before = app.faults.calls.copy()
        await asyncio.sleep(seconds)
        return app.faults.calls - before

    for sent in harness.run(scenario()):
        assert sent.total() / seconds + 1 / EVERY <= 5
        assert sent["acquire_lease"] / seconds <= 0.5 * 1.1


def test_a_worker_that_ends_soon_does_no_maintenance(harness: WorkerHarness) -> None:
    """`worker --once` does not wait for it, and holds no lease."""
    app = with_task(harness.app(settings=LEASE))

    async def scenario() -> None:
        await enqueue(app, 1)
        await app.drain()

    harness.run(scenario())
    assert app.faults.calls["acquire_lease"] == 0
    assert app.log.of(events.WorkerStopped)


# What is done


@pytest.mark.parametrize("coordination", ["lease", "everyone", "stealing"])
def test_history_is_pruned_by_age(harness: WorkerHarness, coordination: str) -> None:
    """Runs older than the limit are pruned while a worker runs; younger ones stay."""
    app = with_task(harness.app(settings={"maintenance.coordination": coordination, "maintenance.keep_runs": "2h"}))

    async def scenario() -> int:
        async with app.worker() as worker:
            await enqueue(app, 1, 2, 3)
            await worker.drained()
            await asyncio.sleep(3600)
            await enqueue(app, 4)
            await worker.drained()
            assert len(await app.ledger()) == 4
            await asyncio.sleep(3700)
            return len(await app.ledger())

    assert harness.run(scenario()) == 1
    assert sum(event.count for event in app.log.of(events.RunsPruned)) == 3


def test_history_is_pruned_by_count_but_for_the_last_hour(harness: WorkerHarness) -> None:
    """Beyond the count the oldest are pruned, but none of the last hour: they settle lost answers."""
    app = with_task(harness.app(settings={**LEASE, "maintenance.keep_runs_count": "2"}))

    async def scenario() -> tuple[int, int]:
        async with app.worker() as worker:
            for number in range(5):
                await enqueue(app, number)
                await worker.drained()
            await asyncio.sleep(3500)
            kept = len(await app.ledger())
            await asyncio.sleep(200)
            return kept, len(await app.ledger())

    assert harness.run(scenario()) == (5, 2)


def test_a_long_history_is_pruned_in_batches_with_pauses(harness: WorkerHarness) -> None:
    """A full batch means that there is more: the next one comes soon, but never at once."""
    app = with_task(harness.app(settings={"maintenance.coordination": "stealing", "maintenance.keep_runs": "1h"}))
    times: list[float] = []

    async def scenario() -> None:
        async with app.worker() as worker:
            await enqueue(app, *range(250))
            await worker.drained()
            app.subscribe(lambda e: times.append(harness.seconds()) if isinstance(e, events.RunsPruned) else None)
            await app.log.wait(events.RunsPruned, 3)

    harness.run(scenario())
    assert [event.count for event in app.log.of(events.RunsPruned)] == [100, 100, 50]
    assert all(0.05 <= later - earlier < 1 for earlier, later in pairwise(times))


def test_a_silent_worker_is_marked_as_dead_once(harness: WorkerHarness) -> None:
    """It is reported once, logged, and shown."""
    app = with_task(harness.app(settings=LEASE))

    async def scenario() -> dict[str, str]:
        await dead_worker(app, "gone")
        async with app.worker():
            await app.log.wait(events.WorkerDied)
            await asyncio.sleep(600)
            return {worker.id: worker.state for worker in await app.workers()}

    states = harness.run(scenario())
    assert states.pop("gone") == "dead"
    assert list(states.values()) == ["alive"]
    assert [event.who for event in app.log.of(events.WorkerDied)] == ["gone"]


def test_a_task_that_no_worker_knows_is_reported(harness: WorkerHarness) -> None:
    """A due job whose name no living worker knows would wait for ever: a warning names it, from time to time."""
    old, new = with_task(harness.app(settings=LEASE)), with_task(harness.app())
    new.task(name="newcomer")(lambda: None)

    async def scenario() -> None:
        await new.get_task("newcomer").enqueue()
        async with old.worker():
            await asyncio.sleep(1200)

    harness.run(scenario())
    assert [event.counts for event in old.log.of(events.TasksUnknown)] == [{"newcomer": 1}] * 2


def test_metrics_agree_with_the_ledger(harness: WorkerHarness) -> None:
    """Counts, failures, durations and lateness by task are those of the ledger's rows."""
    app = with_task(harness.app(settings=LEASE))

    async def scenario() -> None:
        async with app.worker() as worker:
            for number in (1, 2, -1, 3, -2):
                await enqueue(app, number)
                await worker.drained()
                await asyncio.sleep(50)
            await asyncio.sleep(120)
            runs = await app.ledger()
            (stats,) = await app.stats(since=timedelta(hours=1))
            lengths = [(run.finished_at - (run.claimed_at or run.finished_at)).total_seconds() for run in runs]
            lates = [((run.claimed_at or run.due_at) - run.due_at).total_seconds() for run in runs]
            assert (stats.task, stats.runs, stats.failed) == ("work", 5, 2)
            assert stats.failed == sum(run.outcome is not Outcome.SUCCEEDED for run in runs)
            assert stats.seconds_mean == pytest.approx(sum(lengths) / 5, abs=1e-6)
            assert stats.seconds_most == pytest.approx(max(lengths), abs=1e-6)
            assert stats.late_mean == pytest.approx(sum(lates) / 5, abs=1e-6)
            assert stats.late_most == pytest.approx(max(lates), abs=1e-6)

    harness.run(scenario())


def test_old_metrics_and_workers_are_pruned(harness: WorkerHarness) -> None:
    """Ended workers and counted minutes are removed when their retention is over."""
    settings = {**LEASE, "maintenance.keep_metrics": "2h", "maintenance.keep_workers": "1h"}
    app = with_task(harness.app(settings={**settings, "maintenance.keep_runs": "2h"}))

    async def scenario() -> tuple[list[str], int, int]:
        await enqueue(app, 1)
        await app.drain()
        async with app.worker() as worker:
            await asyncio.sleep(1800)
            before = len(await app.workers())
            await asyncio.sleep(3 * 3600)
            return (
                [w.id for w in await app.workers() if w.id != worker.id],
                before,
                len(await app.stats(since=timedelta(days=9))),
            )

    others, before, counted = harness.run(scenario())
    assert before == 2
    assert others == []
    assert counted == 0


def test_a_claim_reclaimed_by_maintenance_is_run_again(harness: WorkerHarness) -> None:
    """It is handled and reported like a poller's own: the slot runs again at once."""
    app = with_task(harness.app(settings={**LEASE, "worker.poll": "1h", "maintenance.reclaim": "10s"}), max_attempts=2)
    elsewhere = with_task(harness.app(), max_attempts=2)

    async def scenario() -> list[str]:
        async with app.worker() as worker:
            await worker.drained()
            await enqueue(elsewhere, 1)
            await harness.claim_as("gone", elsewhere, lock_timeout=timedelta(seconds=60))
            await app.log.wait(events.RunSucceeded)
            return await app.outcomes()

    assert harness.run(scenario()) == ["lost", "succeeded"]
    assert harness.seconds() < 120


def test_a_worker_reclaims_without_any_leader(harness: WorkerHarness) -> None:
    """Promise 3 does not depend on maintenance: with it switched off, a lost slot still runs again."""
    app = with_task(harness.app(), max_attempts=2)

    async def scenario() -> list[str]:
        await enqueue(app, 1)
        await harness.claim_as("gone", app, lock_timeout=timedelta(seconds=60))
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["lost", "succeeded"]
    assert app.faults.calls["acquire_lease"] == 0


# Which worker does it


def test_one_of_many_workers_does_it(harness: WorkerHarness) -> None:
    """With the lease, the others only wait; when the leader dies, another one continues."""
    first, second = (with_task(harness.app(settings=LEASE)) for _ in range(2))

    async def scenario() -> None:
        async with first.frozen_worker():
            await first.log.wait(events.LeaseAcquired)
            async with AsyncExitStack() as later:
                await later.enter_async_context(second.worker())
                await asyncio.sleep(300)
                assert second.faults.calls["prune_runs"] == 0
                waits = later.pop_all()
        async with waits:
            await second.log.wait(events.LeaseAcquired)
            before = second.faults.calls["prune_runs"]
            await asyncio.sleep(300)
            assert second.faults.calls["prune_runs"] - before >= 4

    harness.run(scenario())
    assert first.faults.calls["prune_runs"] > 1
    assert [event.term for event in second.log.of(events.LeaseAcquired)] == [2]


def test_rotation_passes_the_lease_on(harness: WorkerHarness) -> None:
    """With rotate_after, no worker leads for longer than that while another one waits."""
    apps = [with_task(harness.app(settings={**LEASE, "maintenance.rotate_after": "5m"})) for _ in range(2)]

    async def scenario() -> None:
        async with apps[0].worker(), apps[1].worker():
            await asyncio.sleep(3600)

    harness.run(scenario())
    terms = [len(app.log.of(events.LeaseAcquired)) for app in apps]
    assert min(terms) >= 4


def test_an_old_term_writes_nothing(harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that still thinks it leads changes nothing under an old term."""
    leader, late = (with_task(harness.app(settings={**LEASE, "maintenance.keep_runs": "1h"})) for _ in range(2))

    async def stale(_self: MaintenanceLease) -> Turn | None:
        return Turn(Term(MAINTENANCE, 1))

    async def scenario() -> None:
        await enqueue(leader, 1)
        await leader.drain()
        for term in (1, 2):
            async with leader.worker():
                await leader.log.wait(events.LeaseAcquired, term)
        await dead_worker(leader, "gone")
        await asyncio.sleep(2 * 3600)
        monkeypatch.setattr(MaintenanceLease, "turn", stale)
        async with late.worker():
            await asyncio.sleep(600)
        assert min(late.faults.calls[verb] for verb in WRITES) >= 9
        assert len(await late.ledger()) == 1
        assert late.log.of(events.RunsPruned) + late.log.of(events.WorkerDied) == []
        monkeypatch.undo()
        async with late.worker():
            await late.log.wait(events.RunsPruned)
            await late.log.wait(events.WorkerDied)

    harness.run(scenario())


# Failures


def test_a_step_that_fails_stops_neither_the_others_nor_the_worker(harness: WorkerHarness) -> None:
    """It is reported, and tried again at its next time; jobs continue to run."""
    app = with_task(harness.app(settings={**LEASE, "maintenance.keep_runs": "1h"}))
    app.faults.error, app.faults.verbs = lambda: PermanentError("no such column"), {"mark_dead_workers"}

    async def scenario() -> None:
        async with app.worker() as worker:
            await enqueue(app, 1)
            await worker.drained()
            await app.log.wait(events.RunsPruned)
            await enqueue(app, 2)
            await worker.drained()

    harness.run(scenario())
    failures = app.log.of(events.MaintenanceFailed)
    assert {(event.step, event.error, event.retry_in) for event in failures} == {
        ("mark dead workers", "no such column", 30.0)
    }
    assert len(failures) >= 3600 // 30 - 1
    assert len(app.log.of(events.RunSucceeded)) == 2
    assert app.log.of(events.LeaseLost) == []


def test_a_leader_that_finishes_nothing_resigns(harness: WorkerHarness) -> None:
    """A leader that finishes nothing for max_stall resigns, though it sends heartbeats, and another worker leads."""
    stuck, sound = (with_task(harness.app(settings=LEASE)) for _ in range(2))
    stuck.faults.error = lambda: PermanentError("permission denied")
    stuck.faults.verbs = {"reclaim_jobs"} | WRITES

    async def scenario() -> None:
        async with stuck.worker():
            await stuck.log.wait(events.LeaseAcquired)
            async with sound.worker():
                await sound.log.wait(events.LeaseAcquired)
                await asyncio.sleep(600)
                (lease,) = await sound.leases()
                assert lease.holder == sound.log.of(events.LeaseAcquired)[0].worker

    harness.run(scenario())
    assert [event.reason for event in stuck.log.of(events.LeaseLost)] == [STALLED]


def test_rare_steps_are_no_stall(harness: WorkerHarness) -> None:
    """With intervals longer than max_stall a leader is idle, not stuck."""
    hourly = {f"maintenance.{step}": "1h" for step in ("reclaim", "dead_workers", "roll_up", "prune")}
    app = with_task(harness.app(settings={**LEASE, **hourly}))

    async def scenario() -> None:
        async with app.worker():
            await asyncio.sleep(5 * 3600)

    harness.run(scenario())
    assert app.log.of(events.LeaseLost) == []
    assert app.faults.calls["prune_runs"] == 5


@pytest.mark.parametrize("verbs", [{"prune_runs"}, {"resign_lease"}, {"prune_runs", "resign_lease"}])
def test_a_database_that_hangs_does_not_hold_up_a_stop(harness: WorkerHarness, verbs: set[str]) -> None:
    """Neither a step nor the resignation delays the stop for long."""
    app = with_task(harness.app(settings=LEASE))
    app.faults.hanging |= verbs

    async def scenario() -> float:
        async with app.worker():
            await app.log.wait(events.LeaseAcquired)
            await asyncio.sleep(5)
            began = harness.seconds()
        return harness.seconds() - began

    assert harness.run(scenario()) <= 3.5


def test_an_outage_ends_the_leadership_and_the_next_one_begins_after_it(harness: WorkerHarness) -> None:
    """A worker that cannot send heartbeats does not lead.

    When the database answers again, maintenance resumes.
    """
    app = with_task(harness.app(settings=LEASE))

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.LeaseAcquired)
            app.faults.error = lambda: TransientError("connection refused")
            await app.log.wait(events.LeaseLost)
            await asyncio.sleep(600)
            app.faults.error = None
            await app.log.wait(events.LeaseAcquired, 2)
            before = app.faults.calls["prune_runs"]
            await asyncio.sleep(130)
            assert app.faults.calls["prune_runs"] - before >= 2

    harness.run(scenario())
