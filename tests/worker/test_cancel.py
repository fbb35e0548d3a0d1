"""`job.cancel()`: what waits ends at once, what runs is stopped, and the answer is what the ledger says."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

import pytest

from reltask import Again, Cancellation, Context, JobCancelled, UnknownJob, events
from reltask.errors import AmbiguousError
from tests.worker.worker_harness import HarnessApp, WorkerHarness

LEASE: dict[str, object] = {"maintenance.coordination": "lease"}


def holding(app: HarnessApp, **options: Any) -> tuple[Any, list[str]]:
    """A task that runs until it is stopped, and what its bodies did."""
    said: list[str] = []

    @app.task(**options)
    async def hold() -> None:
        said.append("began")
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            said.append("stopped")
            raise

    return hold, said


def test_a_waiting_job_is_cancelled_at_once(harness: WorkerHarness) -> None:
    """No worker is needed. Asked again, the answer is the same; a result that is awaited is JobCancelled."""
    app = harness.app()
    hold, said = holding(app)

    async def scenario() -> None:
        job = await hold.using(delay="1d").enqueue()
        assert await job.cancel() is Cancellation.CANCELLED
        assert await job.cancel() is Cancellation.CANCELLED
        with pytest.raises(JobCancelled):
            await job.result()
        with pytest.raises(UnknownJob):
            await app.job(uuid4()).cancel()
        assert await app.outcomes() == ["cancelled"]

    harness.run(scenario())
    assert said == []


def test_a_running_body_is_stopped_at_once(harness: WorkerHarness) -> None:
    """In the same process without a signal of the database; it ends as cancelled, and is not tried again."""
    app = harness.app()
    hold, said = holding(app)

    async def scenario() -> None:
        async with app.worker():
            job = await hold.enqueue()
            await app.log.wait(events.RunStarted)
            assert await job.cancel() is Cancellation.STOPPING
            with pytest.raises(JobCancelled, match="cancelled by request"):
                await job.result()
            assert await job.cancel() is Cancellation.CANCELLED
        assert (await app.outcomes(), harness.seconds() < 1) == (["cancelled"], True)

    harness.run(scenario())
    assert said == ["began", "stopped"]


def test_without_signals_a_heartbeat_says_it(harness: WorkerHarness) -> None:
    """Another process cancels, and no signal arrives: the body stops at the next heartbeat, after 30 s."""
    app, other = harness.app(), harness.app()
    hold, said = holding(app)

    async def scenario() -> None:
        async with app.worker():
            job = await hold.enqueue()
            await app.log.wait(events.RunStarted)
            assert await other.job(job.id).cancel() is Cancellation.STOPPING
            await app.log.wait(events.RunEnded, outcome="cancelled")
        assert 29 < harness.seconds() < 31

    harness.run(scenario())
    assert said == ["began", "stopped"]


def test_a_body_that_finishes_all_the_same_has_succeeded(harness: WorkerHarness) -> None:
    """Its effects are made: the ledger says so, and a second cancel says that it had ended."""
    app = harness.app()

    @app.task
    async def stubborn() -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return 7
        return 0

    async def scenario() -> None:
        async with app.worker():
            job = await stubborn.enqueue()
            await app.log.wait(events.RunStarted)
            assert await job.cancel() is Cancellation.STOPPING
            assert await job.result() == 7
            assert await job.cancel() is Cancellation.ENDED
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())


def test_an_error_while_it_stops_is_not_tried_again(harness: WorkerHarness) -> None:
    """The failure is recorded, and the job ends as cancelled without another body, at once."""
    app = harness.app()
    calls: list[int] = []

    @app.task(backoff="1h")
    async def clumsy() -> None:
        calls.append(1)
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("while cleaning up")

    async def scenario() -> None:
        async with app.worker():
            job = await clumsy.enqueue()
            await app.log.wait(events.RunStarted)
            await job.cancel()
            await app.log.wait(events.RunEnded, outcome="cancelled")
        assert (await app.outcomes(), harness.seconds() < 60) == (["failed", "cancelled"], True)

    harness.run(scenario())
    assert calls == [1]


def test_the_next_slot_of_a_recurring_job_follows(harness: WorkerHarness) -> None:
    """The slot ends as cancelled, whether it waits or runs; the schedule goes on."""
    app = harness.app()
    _, said = holding(app, every="1h")

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunStarted)
            job = app.job((await app.one_job()).id)
            assert await job.cancel() is Cancellation.STOPPING  # it runs
            await app.log.wait(events.RunEnded, count=1)
            assert await job.cancel() is Cancellation.STOPPING  # the second slot waits for an hour
            await app.log.wait(events.RunEnded, count=2)
            view = await app.one_job()
            assert (view.slot_no, view.due_at > harness.now()) == (3, True)
            await app.log.wait(events.RunStarted, slot_no=3)
        assert (await app.outcomes())[:2] == ["cancelled", "cancelled"]

    harness.run(scenario())
    assert said == ["began", "stopped", "began", "stopped"]  # slot 1, and slot 3 at the shutdown


def test_a_function_that_goes_on_with_again_ends(harness: WorkerHarness) -> None:
    """The slot that was running is over, and the next one of the same job does not begin."""
    app = harness.app()
    calls: list[int] = []

    @app.task
    async def poll(cursor: int = 0) -> None:
        calls.append(cursor)
        if cursor == 1:
            assert await app.job((await app.one_job()).id).cancel() is Cancellation.STOPPING
        raise Again(poll.call(cursor + 1))

    async def scenario() -> None:
        await poll.enqueue()
        async with app.worker():
            await app.log.wait(events.RunEnded, outcome="cancelled")
        assert await app.jobs() == []

    harness.run(scenario())
    assert calls == [0, 1]


def test_a_suspended_function_ends_with_its_children_and_theirs(harness: WorkerHarness) -> None:
    """Those that wait and those that run, at once: not when the maintenance next looks."""
    app = harness.app(settings=LEASE)
    hold, said = holding(app)

    @app.task
    async def middle(ctx: Context) -> None:
        await ctx.run("hold", hold.call())

    @app.task
    async def top(ctx: Context) -> None:
        await ctx.run_all("all", [middle.call(), hold.call(), hold.using(delay="1d").call()])

    async def scenario() -> None:
        async with app.worker():
            job = await top.enqueue()
            await app.log.wait(events.RunStarted, task="hold", count=2)
            await app.log.wait(events.RunEnded, task="top", outcome="suspended")
            assert await job.cancel() is Cancellation.CANCELLED
            await app.log.wait(events.RunEnded, task="hold", outcome="cancelled", count=2)
            assert await app.jobs() == []
        assert harness.seconds() < 10
        assert (await app.outcomes("hold"), (await app.outcomes("top"))[-1]) == (["cancelled"] * 3, "cancelled")
        report = await app.audit()
        assert report.breaks == []

    harness.run(scenario())
    assert said.count("stopped") == 2


def test_a_running_function_takes_its_children_with_it(harness: WorkerHarness) -> None:
    """The worker that ends it ends them."""
    app = harness.app()
    hold, said = holding(app)

    @app.task
    async def top(ctx: Context) -> None:
        await asyncio.gather(ctx.run("child", hold.call()), asyncio.sleep(3600))

    async def scenario() -> None:
        async with app.worker():
            job = await top.enqueue()
            await app.log.wait(events.RunStarted, task="hold")
            assert await job.cancel() is Cancellation.STOPPING
            await app.log.wait(events.RunEnded, task="hold", outcome="cancelled")
            await app.log.wait(events.RunEnded, task="top", outcome="cancelled")
            assert await app.jobs() == []

    harness.run(scenario())
    assert said == ["began", "stopped"]


def test_a_child_of_an_ended_parent_is_stopped_by_the_maintenance(harness: WorkerHarness) -> None:
    """A running child of a discarded parent does not go on to its end."""
    app = harness.app(settings=LEASE)
    hold, said = holding(app)

    @app.task
    async def top(ctx: Context) -> None:
        await ctx.run("child", hold.call())

    async def scenario() -> None:
        async with app.worker():
            job = await top.enqueue()
            await app.log.wait(events.RunStarted, task="hold")
            await app.log.wait(events.RunEnded, task="top", outcome="suspended")
            await job.discard()
            await app.log.wait(events.RunEnded, task="hold", outcome="cancelled")
        assert harness.seconds() < 150  # the sweep, and a heartbeat: this app hears no signals

    harness.run(scenario())
    assert said == ["began", "stopped"]


def test_a_lost_answer_changes_nothing(harness: WorkerHarness) -> None:
    """The caller asks again, and gets what the ledger says."""
    app = harness.app()
    hold, _ = holding(app)

    async def scenario() -> None:
        job = await hold.enqueue()
        app.faults.losing["cancel_job"] = 1
        with pytest.raises(AmbiguousError):
            await job.cancel()  # the store of this harness has no retries
        assert await job.cancel() is Cancellation.CANCELLED

    harness.run(scenario())
