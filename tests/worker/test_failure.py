"""Failures, retries, dead letters, and jobs that kill their worker."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from datetime import timedelta
from itertools import pairwise

import pytest

from reltask import Backoff, Context, events
from reltask.errors import UnknownJob
from reltask.model.job import Outcome, State
from tests.worker.worker_harness import HarnessApp, WorkerHarness


def test_task_failure_releases_lock_immediately(harness: WorkerHarness) -> None:
    """A failure clears the lock in the transaction that records it, before the lock timeout."""
    app = harness.app()

    @app.task(every="10m", backoff="1h")
    async def fail() -> None:
        raise ValueError("boom")

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunFailed)
            job = await app.one_job()
            assert (job.locked_by, job.lock_expires_at, job.state) == (None, None, State.READY)
            assert harness.seconds() == 0.0

    harness.run(scenario())


def test_task_failure_preserves_next_run_time_for_retry(harness: WorkerHarness) -> None:
    """The slot stays: same number, same nominal time; only `due_at` moves, by the backoff."""
    app = harness.app()

    @app.task(every="10m", backoff="90s")
    async def flaky(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise ValueError("boom")

    async def scenario() -> None:
        before = harness.now()
        async with app.worker():
            await app.log.wait(events.RunFailed)
            job = await app.one_job()
            assert (job.slot_no, job.next_run_time, job.attempt) == (1, before, 1)
            assert job.due_at == before + timedelta(seconds=90)
            await app.log.wait(events.RunSucceeded)
        failed, succeeded = await app.ledger()
        assert (failed.slot_no, succeeded.slot_no) == (1, 1)
        assert failed.nominal_time == succeeded.nominal_time == before
        job = await app.one_job()
        assert job.next_run_time == before + timedelta(minutes=10), "every counts from the slot's first claim"
        assert (job.slot_no, job.attempt) == (2, 0)

    harness.run(scenario())


def test_backoff_grows_and_ends_in_a_dead_letter(harness: WorkerHarness) -> None:
    """A one-off is tried five times, each wait about twice the last; then it is a dead letter."""
    app = harness.app()
    times = []

    @app.task
    async def fail() -> None:
        times.append(harness.seconds())
        raise ValueError("boom")

    async def scenario() -> None:
        job = await fail.enqueue()
        async with app.worker():
            dead = await app.log.wait(events.RunFailed, dead=True)
            assert (dead.attempt, dead.recurring) == (5, False)
            await asyncio.sleep(2 * 3600)
        assert [view.id for view in await app.jobs(state=State.DEAD)] == [job.id]
        assert (await app.status()).dead == 1

    harness.run(scenario())
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert len(times) == 5
    assert all(0.7 * 5 * 2**n <= wait <= 1.4 * 5 * 2**n for n, wait in enumerate(waits))


def test_dead_letter_can_be_retried_and_discarded(harness: WorkerHarness) -> None:
    """Retrying gives a dead job new attempts at once; discarding removes it, with a ledger row."""
    app = harness.app()
    healed: list[bool] = []

    @app.task(max_attempts=1)
    async def fail() -> None:
        if not healed:
            raise ValueError("boom")

    async def scenario() -> None:
        first, second = await fail.enqueue(), await fail.enqueue()
        await app.drain()
        assert len(await app.jobs(state=State.DEAD)) == 2
        healed.append(True)
        await app.job(first.id).retry()
        await app.job(second.id).discard()
        await app.drain()
        assert [run.outcome for run in await first.runs()] == ["succeeded", "failed"]
        assert [run.outcome for run in await second.runs()] == ["discarded", "failed"]
        assert await app.jobs() == []
        with pytest.raises(UnknownJob, match="is not there"):
            await app.job(second.id).retry()

    harness.run(scenario())


def test_recurring_job_past_its_limit_is_dead_until_it_is_retried(harness: WorkerHarness) -> None:
    """max_attempts applies to a slot of a schedule too: it is dead, reported, and continues after a retry."""
    app = harness.app()
    healed: list[bool] = []

    @app.task(every="10m", max_attempts=2)
    async def tick() -> None:
        if not healed:
            raise ValueError("boom")

    async def scenario() -> None:
        async with app.worker():
            dead = await app.log.wait(events.RunFailed, dead=True)
            assert (dead.attempt, dead.recurring) == (2, True)
            await asyncio.sleep(2 * 3600)
            assert await app.outcomes() == ["failed", "failed"]
            healed.append(True)
            await app.job(dead.job_id).retry()
            await app.log.wait(events.RunSucceeded, slot_no=2)

    harness.run(scenario())


def test_recurring_task_is_retried_at_once_first(harness: WorkerHarness) -> None:
    """A recurring slot: the first retry comes at once, later ones wait longer each time, without a limit."""
    app = harness.app()
    times = []

    @app.task(every="1h")
    async def fail(ctx: Context) -> None:
        times.append(harness.seconds())
        if ctx.attempt <= 12:
            raise ValueError("boom")

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded)

    harness.run(scenario())
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert waits[0] < 0.05
    assert 0.7 < waits[1] < 1.4
    assert max(waits) <= 600.1
    assert len(times) == 13


def test_own_backoff_is_used(harness: WorkerHarness) -> None:
    """`backoff=` replaces the default waits."""
    app = harness.app()
    times = []

    @app.task(max_attempts=4, backoff=Backoff(first=timedelta(seconds=1), factor=10.0, jitter=0.0))
    async def fail() -> None:
        times.append(harness.seconds())
        raise ValueError("boom")

    async def scenario() -> None:
        await fail.enqueue()
        async with app.worker():
            await app.log.wait(events.RunFailed, dead=True)

    harness.run(scenario())
    assert [round(later - earlier) for earlier, later in pairwise(times)] == [1, 10, 100]


# Workers that die


def test_stale_lock_is_reclaimed_and_the_slot_runs_again(harness: WorkerHarness) -> None:
    """A dead worker's slot is taken over when its lock ends: not before, and without waiting for a poll."""
    dying, heir = harness.app(), harness.app()
    for app in (dying, heir):

        @app.task(name="job", every="1h")
        async def job(ctx: Context) -> None:
            if ctx.fence == 1:
                await asyncio.sleep(10_000)

    async def scenario() -> None:
        async with dying.frozen_worker():
            await dying.log.wait(events.RunStarted)
        async with heir.worker():
            reclaimed = await heir.log.wait(events.JobReclaimed)
            assert 120.0 < harness.seconds() < 121.0
            assert (reclaimed.owner, reclaimed.fence, reclaimed.dead) == (dying.log.events[0].worker, 1, False)
            await heir.log.wait(events.RunSucceeded, fence=2)
            assert harness.seconds() < 121.5
        assert await heir.outcomes() == ["lost", "succeeded"]

    harness.run(scenario())


@pytest.mark.slow
@pytest.mark.parametrize("poll", ["50ms", "60s"])
def test_busy_worker_reclaims_all_the_same(harness: WorkerHarness, poll: str) -> None:
    """Neither frequent polls nor a stream of jobs delay the reclaim of an ended lock by more than a second."""
    app = harness.app(settings={"worker.poll": poll})
    ran: list[float] = []

    @app.task
    async def dropped() -> None:
        ran.append(harness.seconds())

    @app.task
    async def stream() -> None: ...

    async def scenario() -> None:
        await dropped.enqueue()
        await harness.claim_as("killed", app, lock_timeout=timedelta(seconds=5))
        async with app.worker():
            for _ in range(140):
                await stream.enqueue()
                await asyncio.sleep(0.05)

    harness.run(scenario())
    assert len(ran) == 1
    assert 5.0 < ran[0] < 6.0


def test_poison_job_ends_dead_and_harms_no_other(harness: WorkerHarness) -> None:
    """A job that kills its worker reaches its limit; every other job is hit at most twice, and succeeds."""
    died: list[HarnessApp] = []

    def generation() -> HarnessApp:
        """The worker process that a supervisor starts next."""
        app = harness.app()

        @app.task(name="poison", max_attempts=5)
        async def poison() -> None:
            died.append(app)
            app.faults.hanging.add("*")
            await asyncio.sleep(10_000)

        @app.task(name="bystander", max_attempts=3)
        async def bystander() -> None:
            await asyncio.sleep(30)

        return app

    async def scenario() -> None:
        app = generation()
        await app.get_task("poison").enqueue()
        bystanders = [await app.get_task("bystander").enqueue() for _ in range(5)]
        for _ in range(5):
            async with app.frozen_worker():
                await app.log.wait(events.RunStarted, task="poison")
            app = generation()
        async with app.worker() as worker:
            await app.log.wait(events.JobReclaimed, dead=True)
            await worker.drained()
        ended = [[run.outcome for run in await app.runs(job_id=job.id)] for job in bystanders]
        assert all(outcomes[0] == "succeeded" for outcomes in ended)
        assert max(outcomes.count(Outcome.LOST) for outcomes in ended) == 2
        (dead,) = await app.jobs(state=State.DEAD)
        assert (dead.task, dead.attempt) == ("poison", 5)
        assert await app.outcomes("poison") == ["lost"] * 5

    harness.run(scenario())
    assert len(set(died)) == 5


def test_one_crash_delays_no_other_job(harness: WorkerHarness) -> None:
    """The ten long jobs of a killed worker are taken over at once, and the worker goes on serving the rest."""
    app = harness.app(settings={"worker.concurrency": 20})
    started: list[tuple[str, float]] = []

    @app.task
    async def long() -> None:
        started.append(("long", harness.seconds()))
        await asyncio.sleep(1_000)

    @app.task
    async def short() -> None:
        started.append(("short", harness.seconds()))

    async def scenario() -> None:
        for _ in range(10):
            await long.enqueue()
        await harness.claim_as("killed", app)
        async with app.worker():
            await app.log.wait(events.RunStarted, 10, task="long")
            taken_over = harness.seconds()
            await short.enqueue()
            await app.log.wait(events.RunSucceeded, task="short")
            assert harness.seconds() - taken_over < 1

    harness.run(scenario())
    assert [name for name, _ in started] == ["long"] * 10 + ["short"]
    assert all(120 <= seconds < 122 for _, seconds in started)


def test_isolated_jobs_run_one_at_a_time_beside_the_rest(harness: WorkerHarness) -> None:
    """Of jobs that have lost two runs in a row a worker runs one; everything else is served meanwhile."""
    app = harness.app(settings={"worker.poll": "1h"})
    running: set[str] = set()
    most: list[int] = []

    @app.task
    async def suspect(name: str) -> None:
        running.add(name)
        most.append(len(running))
        await asyncio.sleep(60)
        running.discard(name)

    @app.task
    async def other() -> None:
        most.append(0)

    async def scenario() -> None:
        for name in "abc":
            await suspect.enqueue(name)
        with closing(sqlite3.connect(app.path)) as connection, connection:
            connection.execute("update reltask_jobs set losses = 2, isolated = 1, attempt = 2")
        async with app.worker():
            await app.log.wait(events.RunStarted, task="suspect")
            began = harness.seconds()
            await other.enqueue()
            await app.log.wait(events.RunSucceeded, task="other")
            assert harness.seconds() - began < 1
            await app.log.wait(events.RunSucceeded, 3, task="suspect")
            assert 180 <= harness.seconds() - began < 182, "the next one begins when the last one has ended"

    harness.run(scenario())
    assert most == [1, 0, 1, 1]
