"""One run from claim to ledger: what bodies receive, and what their end becomes."""

from __future__ import annotations

import asyncio
import gc
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from datetime import timedelta

import pytest

from reltask import App, Cancel, Context, Retry, Snooze, Stopped, events
from reltask.model.job import State
from reltask.model.settings import LimitSettings, WorkerSettings
from reltask.service import LoopHost
from reltask.testing import START
from reltask.worker.run import Run
from reltask.worker.worker import Worker
from tests.worker.worker_harness import HarnessApp, WorkerHarness


def run_once(
    harness: WorkerHarness, app: HarnessApp, task: str, count: int = 1
) -> list[tuple[str, str | None, str | None]]:
    """Enqueue the task, run what is due, and read the ledger: outcome, result, error."""

    async def scenario() -> list[tuple[str, str | None, str | None]]:
        for _ in range(count):
            await app.get_task(task).enqueue()
        await app.drain()
        return [(run.outcome, run.result, run.error) for run in await app.ledger()]

    return harness.run(scenario())


# Returning


def test_successful_task_execution_updates_last_run_time(harness: WorkerHarness) -> None:
    """A recurring job shows when it last succeeded; a one-off leaves its ledger row, with the result as JSON."""
    app = harness.app()

    @app.task(every="10m")
    async def tick() -> None:
        await asyncio.sleep(5)

    @app.task
    async def answer() -> dict[str, int]:
        return {"answer": 42}

    async def scenario() -> None:
        await answer.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 2)
        job = await app.one_job()
        assert job.last_run_time == harness.now()
        assert job.slot_no == 2
        (run,) = await app.runs(task="answer")
        assert (run.outcome, run.result, run.attempt) == ("succeeded", '{"answer":42}', 1)
        assert run.finished_at == run.claimed_at

    harness.run(scenario())


class Broken:
    """A model that raises when it is serialised."""

    def model_dump(self, **_: object) -> object:
        raise LookupError("no such field\x00")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (object(), "object cannot be stored"),
        (float("nan"), "nan cannot be stored"),
        ("x" * 2000, "exceed the limit"),
        (Broken(), "no such field"),
    ],
)
def test_result_that_cannot_be_stored_is_still_a_success(harness: WorkerHarness, value: object, why: str) -> None:
    """The work is done: a result that JSON cannot hold, or is too long, is left out; event and ledger say why."""
    app = harness.app(settings={"limits.result": 1000})

    @app.task
    async def give() -> object:
        return value

    ((outcome, result, error),) = run_once(harness, app, "give")
    assert (outcome, result, (error or "")[:26]) == ("succeeded", None, "Its result was not stored:")
    (event,) = app.log.of(events.ResultNotStored)
    assert why in event.reason
    assert why in (error or "")
    assert "\x00" not in (error or "")


def test_coroutine_that_a_body_returns_has_not_run(harness: WorkerHarness) -> None:
    """A forgotten `await` is a failure, not a success without a result."""
    app = harness.app()

    async def work() -> None: ...

    @app.task(max_attempts=1)
    async def forgetful() -> object:
        return work()

    async def scenario() -> list[str]:
        await forgetful.enqueue()
        await app.drain()
        return await app.outcomes()

    assert harness.run(scenario()) == ["failed"]


def test_context_carries_the_facts_of_the_run(harness: WorkerHarness) -> None:
    """The context has job, slot, fence, attempt, idempotency key, worker and the lifespan's value."""

    @asynccontextmanager
    async def lifespan(_: App) -> AsyncIterator[str]:
        yield "the user's own pool"

    app = harness.app(lifespan=lifespan)
    seen = []

    @app.task
    async def look(ctx: Context, number: int) -> None:
        seen.append((ctx.task, ctx.job_id, ctx.slot_no, ctx.fence, ctx.attempt, ctx.state, number, ctx.cancelled))
        assert ctx.idempotency_key == f"{ctx.job_id}:1"
        assert ctx.nominal_time == harness.now()
        assert ctx.worker.count("_") >= 2
        assert ctx.logger.extra == {"worker": ctx.worker, "job": str(ctx.job_id), "slot": 1, "fence": 1}

    async def scenario() -> None:
        job = await look.enqueue(7)
        await app.drain()
        assert seen == [("look", job.id, 1, 1, 1, "the user's own pool", 7, False)]

    harness.run(scenario())
    assert app.log.of(events.RunFailed) == []


def test_progress_shows_in_the_row(harness: WorkerHarness) -> None:
    """ctx.progress publishes a JSON value, at most once a second.

    It is removed when the run has ended.
    """
    app = harness.app()
    shown = []

    @app.task(every="1h")
    async def work(ctx: Context) -> None:
        for done in (1, 2):
            await ctx.progress({"done": done})
            shown.append((await app.one_job()).progress)
        await asyncio.sleep(1.0)
        await ctx.progress({"done": 3})
        shown.append((await app.one_job()).progress)

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert (await app.one_job()).progress is None

    harness.run(scenario())
    assert shown == ['{"done":1}', '{"done":1}', '{"done":3}']


def test_the_last_progress_of_a_slot_reaches_its_next_run(harness: WorkerHarness) -> None:
    """A run that failed or was suspended hands on how far it came; the first run of the next slot has nothing."""
    app = harness.app()
    seen: list[object] = []

    @app.task(every="1h", backoff="1m", max_attempts=3)
    async def work(ctx: Context) -> None:
        seen.append(ctx.last_progress)
        if ctx.slot_no == 1 and len(seen) == 1:
            await ctx.progress({"done": 3})
            raise ValueError
        await ctx.sleep("rest", "5m")

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, count=2)

    harness.run(scenario())
    assert seen == [None, {"done": 3}, {"done": 3}, None, None]


# Raising


def test_failure_keeps_the_traceback_of_the_tasks_own_code(harness: WorkerHarness) -> None:
    """The ledger has the whole traceback from the task's function on, without the worker's frames."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def fail() -> None:
        raise ZeroDivisionError("by nought")

    ((outcome, _, error),) = run_once(harness, app, "fail")
    assert (outcome, error and error.count("File ")) == ("failed", 1)
    assert error is not None
    assert error.startswith("Traceback (most recent call last):")
    assert "in fail" in error
    assert error.rstrip().endswith("ZeroDivisionError: by nought")


def test_long_traceback_is_cut_in_the_middle(harness: WorkerHarness) -> None:
    """Tracebacks are capped. Both ends are kept: they show cause and message."""
    app = harness.app(settings={"limits.traceback": 600})

    @app.task(max_attempts=1)
    async def fail() -> None:
        raise RuntimeError("begin " + "x" * 5000 + " end")

    ((_, _, error),) = run_once(harness, app, "fail")
    assert error is not None
    assert len(error) < 700
    assert "characters left out" in error
    assert error.startswith("Traceback")
    assert error.rstrip().endswith("end")


def test_retry_counts_the_attempt_and_waits_as_asked(harness: WorkerHarness) -> None:
    """Retry(delay=…) is a failure with a wait chosen by the task."""
    app = harness.app()
    times = []

    @app.task
    async def flaky(ctx: Context) -> None:
        times.append(harness.seconds())
        if ctx.attempt < 3:
            raise Retry("not yet", delay="90s")

    async def scenario() -> list[str]:
        async with app.worker():
            await flaky.enqueue()
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["failed", "failed", "succeeded"]
    assert [round(second) for second in times] == [0, 90, 180]


def test_snooze_gives_the_attempt_back(harness: WorkerHarness) -> None:
    """Snooze is no failure: the slot runs again later, with the same attempt number, any number of times."""
    app = harness.app()
    attempts = []

    @app.task(max_attempts=1)
    async def wait(ctx: Context) -> None:
        attempts.append((ctx.attempt, ctx.fence, ctx.slot_no, round(harness.seconds())))
        if len(attempts) < 4:
            raise Snooze("1h", "not before noon")

    async def scenario() -> list[str]:
        async with app.worker():
            await wait.enqueue()
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes()

    assert harness.run(scenario()) == ["snoozed", "snoozed", "snoozed", "succeeded"]
    assert attempts == [(1, 1, 1, 0), (1, 2, 1, 3600), (1, 3, 1, 7200), (1, 4, 1, 10800)]


def test_cancel_ends_the_slot(harness: WorkerHarness) -> None:
    """Cancel ends a one-off for good; a recurring job goes on with its next slot."""
    app = harness.app()

    @app.task
    async def once() -> None:
        raise Cancel("no longer wanted")

    @app.task(every="1h")
    async def again() -> None:
        raise Cancel

    async def scenario() -> None:
        await once.enqueue()
        await app.drain()
        job = await app.one_job()
        assert (job.task, job.slot_no, job.state) == ("again", 2, State.READY)
        assert {(r.task, r.outcome, r.error) for r in await app.runs()} == {
            ("once", "cancelled", "no longer wanted"),
            ("again", "cancelled", "cancelled by the task"),
        }

    harness.run(scenario())


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt(), StopIteration(), GeneratorExit(), asyncio.CancelledError(), Stopped()],
)
def test_body_cannot_end_the_worker(harness: WorkerHarness, error: BaseException) -> None:
    """sys.exit, KeyboardInterrupt, StopIteration and an unrequested cancellation are failures like any other."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def rude() -> None:
        raise error

    @app.task
    async def polite() -> str:
        return "still here"

    assert [run[0] for run in run_once(harness, app, "rude")] == ["failed"]
    assert app.log.of(events.RunFailed)[0].dead


def test_body_that_was_cancelled_before_it_began_is_a_failure(harness: WorkerHarness) -> None:
    """Cancelling all tasks of a loop also hits bodies that have not begun: each of them frees its place."""
    app = harness.app(settings={"worker.concurrency": 10})

    @app.task(priority=0)
    async def rude() -> None:
        here = asyncio.current_task()
        for task in asyncio.all_tasks():
            if task is not here and "Body" in str(task.get_coro()):
                task.cancel()

    @app.task(max_attempts=1)
    async def victim() -> None: ...

    async def scenario() -> list[str]:
        for _ in range(3):
            await victim.enqueue()
        await rude.enqueue()
        await app.drain()
        return sorted(await app.outcomes())

    assert harness.run(scenario()) == ["failed", "failed", "failed", "succeeded"]


def test_run_leaves_nothing_for_the_garbage_collector(harness: WorkerHarness) -> None:
    """A worker makes millions of runs and rarely collects cycles: an ended run must be freed without the collector."""
    app = harness.app(settings={"worker.concurrency": 10})

    @app.task(max_attempts=1)
    async def once(ctx: Context, how: str) -> None:
        assert ctx.attempt == 1
        if how == "raise":
            raise ValueError(how)

    async def scenario() -> int:
        async with app.worker() as worker:
            for how in ["return", "raise"] * 10:
                await once.enqueue(how)
            await worker.drained()
            return runs_alive()

    gc.collect()
    gc.disable()
    try:
        before = runs_alive()  # of earlier tests
        assert harness.run(scenario()) == before
    finally:
        gc.enable()


def runs_alive() -> int:
    return sum(type(thing) is Run for thing in gc.get_objects())  # isinstance would resolve lazy objects


def test_timeout_is_a_failure(harness: WorkerHarness) -> None:
    """A run longer than its timeout is cancelled and fails; the retry gets the whole timeout again."""
    app = harness.app()

    @app.task(timeout="10s", max_attempts=2, backoff="1s")
    async def slow() -> None:
        await asyncio.sleep(60)

    async def scenario() -> None:
        async with app.worker():
            await slow.enqueue()
            await app.log.wait(events.RunFailed, dead=True)
        runs = await app.ledger()
        assert [(r.outcome, r.error) for r in runs] == [
            ("failed", "TimeoutError: the run took longer than its timeout of 10 s")
        ] * 2
        assert all(r.claimed_at and r.finished_at - r.claimed_at == timedelta(seconds=10) for r in runs)

    harness.run(scenario())


def test_body_that_ends_well_in_spite_of_its_timeout_has_succeeded(harness: WorkerHarness) -> None:
    """The deadline stops bodies, not outcomes: a body that cleans up and returns has succeeded."""
    app = harness.app()

    @app.task(timeout="10s")
    async def slow() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
        return "done"

    async def scenario() -> list[str | None]:
        async with app.worker():
            await slow.enqueue()
            await app.log.wait(events.RunSucceeded)
        return [run.result for run in await app.runs()]

    assert harness.run(scenario()) == ['"done"']


# Rows that do not fit


@pytest.mark.parametrize("args", ['{"number":"seven"}', '{"nombre":7}', "{}", '{"number":7,"more":1}'])
def test_arguments_that_no_longer_fit_are_a_failure(harness: WorkerHarness, args: str) -> None:
    """A row from an older version of the code fails with an error that names the mismatch; nothing is called."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def take(number: int) -> None:
        raise AssertionError(number)

    async def scenario() -> str | None:
        await take.enqueue(7)
        _edit(app, "update reltask_jobs set args = ?", args)
        await app.drain()
        ((run,), (job,)) = await app.runs(), await app.jobs()
        assert (run.outcome, job.state) == ("failed", State.DEAD)
        return run.error

    error = harness.run(scenario())
    assert error is not None
    assert "the stored arguments do not fit" in error


def test_unreadable_schedule_is_a_failure_not_a_stuck_run(harness: WorkerHarness) -> None:
    """A schedule that this version cannot read fails its slot; the claim is released, and the worker continues."""
    app = harness.app()

    @app.task(every="1h")
    async def tick() -> None: ...

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        _edit(app, "update reltask_jobs set schedule = ?, not_before = 0", '{"moon":"full"}')
        async with app.worker():
            failed = await app.log.wait(events.RunFailed)
            assert "is not a stored schedule" in failed.error
        job = await app.one_job()
        assert (job.state, job.slot_no, job.locked_by) == (State.READY, 2, None)

    harness.run(scenario())


def _edit(app: HarnessApp, statement: str, *values: str) -> None:
    with closing(sqlite3.connect(app.path)) as connection, connection:
        connection.execute(statement, values)


def test_a_worker_uses_the_parts_that_its_constructor_was_given(harness: WorkerHarness) -> None:
    """Store, clock, random numbers, settings, subscriber, the user's state, id: a worker looks for none of them."""
    app = harness.app()
    seen: list[object] = []
    heard: list[events.Event] = []

    @app.task
    async def look(ctx: Context) -> None:
        seen.append((ctx.worker, ctx.state, ctx.nominal_time))

    async def scenario() -> None:
        worker = Worker(
            app._make_store(),
            app.registry,
            settings=WorkerSettings(concurrency=1),
            limits=LimitSettings(),
            clock=harness.clock.clock,
            rng=random.Random(7),
            emit=heard.append,
            state="a pool",
            beater_host=LoopHost,
            identity="mine",
        )
        await look.enqueue()
        await worker.start()
        await worker.drained()
        await worker.stop()
        (registered,) = await app.workers()
        assert (registered.id, registered.concurrency) == ("mine", 1)

    harness.run(scenario())
    assert seen == [("mine", "a pool", START)]
    assert app.faults.calls["complete_jobs"] == 1
    assert [type(event) for event in heard if isinstance(event, events.RunSucceeded)] == [events.RunSucceeded]
    assert app.log.events == []
