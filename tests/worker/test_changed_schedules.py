"""Schedules whose declaration in code changes or is removed, while workers of old and new versions run."""

from __future__ import annotations

import asyncio
import contextlib
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from reltask import Context, Snooze, events
from reltask.errors import AmbiguousError, ReltaskError, TransientError
from reltask.model.job import NewJob, Outcome, Release, State
from reltask.model.views import JobView
from reltask.worker.declare import AGAIN, AGAIN_MOST, BLOCKED, LOOK, is_older
from tests.worker.worker_harness import HarnessApp, WorkerHarness

# Changed declarations


def declared(
    harness: WorkerHarness, *, version: str | None = None, settings: dict[str, object] | None = None, **rhythm: Any
) -> HarnessApp:
    app = harness.app(version=version, settings=settings)

    @app.task(name="tick", **rhythm)
    async def tick(ctx: Context) -> None:
        await asyncio.sleep(30 if ctx.slot_no == 2 else 0)

    return app


async def schedule_of(app: HarnessApp) -> str | None:
    return (await app.one_job()).schedule


async def step_of(app: HarnessApp) -> timedelta:
    """How far the last end moved the job."""
    job = await app.one_job()
    assert job.last_run_time is not None
    return job.next_run_time - job.last_run_time


def test_changed_declaration_is_rewritten(harness: WorkerHarness) -> None:
    """A starting worker whose declaration differs rewrites the row, and moves its slot no further than needed."""
    before, after = declared(harness, every="1h"), declared(harness, every="5m")

    async def scenario() -> None:
        await before.drain()
        row = await before.one_job()
        await after.drain()
        job = await after.one_job()
        assert (job.id, job.slot_no, job.schedule) == (row.id, 2, '{"every":"5m"}')
        assert row.next_run_time - job.next_run_time > timedelta(minutes=54)

    harness.run(scenario())


def test_older_app_does_not_undo_a_newer_one(harness: WorkerHarness) -> None:
    """Old and new side by side during a deployment: the newer declaration stays, whichever starts last."""
    old, new = declared(harness, version="1.9.0", every="1h"), declared(harness, version="1.10.0", every="5m")

    async def scenario() -> None:
        await old.drain()
        assert await schedule_of(old) == '{"every":"1h"}'
        for app in (new, old, new, old):
            await app.drain()
            assert await schedule_of(app) == '{"every":"5m"}'

    harness.run(scenario())
    reported = [(event.task, event.version, event.newer) for event in old.log.of(events.DeclarationIgnored)]
    assert reported == [("tick", "1.9.0", "1.10.0")] * 2, "once per start of a worker that is ignored"
    assert new.log.of(events.DeclarationIgnored) == []


@pytest.mark.parametrize(
    ("ours", "theirs", "older"),
    [
        ("1.9.0", "1.10.0", True),
        ("1.10.0", "1.9.0", False),
        ("1.4", "1.4.1", True),
        ("v1.4", "1.4.0", False),
        ("1.4", "v1.4.0", False),
        ("0.0", "0.0.1", True),
        ("2.0", "2.0rc1", False),
        ("2.0rc1", "2.0", False),
        ("1.9.dev3+local.7", "2.0.post1", True),
        ("1.4-12-gdeadbee", "v1.5", True),
        ("2.0-3", "2.0-12", False),
        ("3fa9c1d", "9b01e22", False),
        ("3fa9c1d", "9", False),
        ("3a9c1d0", "9", False),
        ("9b01234", "12a4567", False),
        ("1a2b345", "9904521", False),
        ("7", "20261116", True),
        ("7-3-gdeadbee", "8", True),
        ("v2rc1", "v3", True),
        ("1", "3fa9c1d", False),
        ("build 3", "build 4", False),
        ("", "1", False),
        (None, "1", False),
        ("1", None, False),
    ],
)
def test_versions_are_compared_by_the_numbers_they_begin_with(
    ours: str | None, theirs: str | None, older: bool
) -> None:
    """What is not a version, such as a git SHA, is never older: its declaration counts as newer."""
    assert is_older(ours, theirs) is older


def test_change_at_run_time_stays_until_the_declaration_changes(harness: WorkerHarness) -> None:
    """What an operator changed survives restarts of the same code: a pause, and a due time."""
    app, changed = declared(harness, every="1h"), declared(harness, every="2h")

    async def scenario() -> None:
        await app.drain()
        job = await app.one_job()
        await app.job(job.id).pause()
        await app.drain()
        assert (await app.one_job()).state is State.PAUSED
        await changed.drain()
        assert await schedule_of(changed) == '{"every":"2h"}'
        assert (await app.one_job()).state is State.PAUSED

    harness.run(scenario())


@pytest.mark.parametrize("moved", ["run now", "snoozed"])
def test_changed_declaration_keeps_operators_changes(harness: WorkerHarness, moved: str) -> None:
    """A declaration that leaves the slot where it is keeps what an operator or the task itself has set."""

    def hourly(**options: Any) -> HarnessApp:
        app = harness.app()

        @app.task(cron="0 * * * *", name="tick", **options)
        async def tick() -> None:
            raise Snooze("10m")

        return app

    app, changed = hourly(), hourly(priority=2)

    async def scenario() -> None:
        await app.drain()
        await app.job((await app.one_job()).id).run_now()
        if moved == "snoozed":
            await app.drain()
        before = await app.one_job()
        assert before.due_at < before.next_run_time
        await changed.drain()
        job = await app.one_job()
        assert (job.priority, await app.outcomes()) == (2, ["snoozed"])
        assert (job.due_at == before.due_at) is (moved == "snoozed")

    harness.run(scenario())


def test_schedule_waits_for_a_one_off_with_its_key(harness: WorkerHarness) -> None:
    """A one-off may have the key of a schedule: that is reported, and the schedule is created when the job is done."""
    app = harness.app()

    @app.task
    async def report(number: int) -> None: ...

    app.schedule(report.call(5), key="k", every="1h")

    async def scenario() -> None:
        job = await report.using(key="k", delay="10s").enqueue(1)
        async with app.worker():
            await asyncio.sleep(9)
            assert [(event.key, event.job_id) for event in app.log.of(events.ScheduleBlocked)] == [("k", job.id)]
            await asyncio.sleep(1 + BLOCKED)
            assert (await app.one_job()).schedule == '{"every":"1h"}'
            assert app.faults.calls["read_declared"] <= 3
        assert await app.outcomes() == ["succeeded"]

    harness.run(scenario())


def test_schedule_that_changes_while_a_slot_runs(harness: WorkerHarness) -> None:
    """A claimed slot is never moved, and ends by the old rule; then the new one applies, without a restart."""
    app, changed = declared(harness, every="1h"), declared(harness, every="5m")

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunStarted, slot_no=2)
            row = await app.one_job()
            async with changed.worker():
                job = await changed.one_job()
                assert (job.locked_by, job.fence) == (row.locked_by, row.fence)
                assert (job.next_run_time, job.due_at) == (row.next_run_time, row.due_at)
                assert job.schedule == '{"every":"1h"}'
                await app.log.wait(events.RunSucceeded, slot_no=2)
                await asyncio.sleep(AGAIN_MOST)
                assert await schedule_of(changed) == '{"every":"5m"}'
                await asyncio.sleep(timedelta(minutes=6).total_seconds())
                assert {run.slot_no for run in await app.ledger()} == {1, 2, 3}

    harness.run(scenario())
    assert app.log.of(events.LateWriteRefused) == []


def test_declaring_again_backs_off_while_a_job_runs_elsewhere(harness: WorkerHarness) -> None:
    """Tries are up to a minute apart; the worker that claims the job itself rewrites it within a second."""
    app, changed = declared(harness, every="1h"), declared(harness, every="5m")

    async def scenario() -> int:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, slot_no=1)
        await asyncio.sleep(3600)
        (claim,) = (await harness.claim_as("other", app, lock_timeout=timedelta(days=1))).claims
        async with changed.worker():
            await asyncio.sleep(3600)
            tries = changed.faults.calls["read_declared"]
            store = app.sound_store()
            await store.open()
            assert await store.release_jobs("other", [Release(hold=claim.hold, outcome=Outcome.RELEASED)])
            await store.close()
            await changed.log.wait(events.RunStarted, slot_no=2)
            await asyncio.sleep(2 * LOOK)
            assert await schedule_of(changed) == '{"every":"5m"}'
            return tries

    assert harness.run(scenario()) <= 70


def test_schedule_that_changes_while_a_job_runs_back_to_back(harness: WorkerHarness) -> None:
    """A job that is always due when it ends is never seen unclaimed: its holder applies the new rule."""

    def busy(**rhythm: Any) -> HarnessApp:
        app = harness.app(settings={"worker.poll": "100ms"})

        @app.task(name="tick", **rhythm)
        async def tick() -> None:
            await asyncio.sleep(1.5)

        return app

    app, changed = busy(every="1s"), busy(every="1h")

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as running:
            async with app.worker():
                await app.log.wait(events.RunStarted, slot_no=2)
                await running.enter_async_context(changed.worker())
            await changed.log.wait(events.RunSucceeded, slot_no=2)
            await asyncio.sleep(1)
            job = await changed.one_job()
            assert (job.slot_no, job.schedule) == (3, '{"every":"1h"}')
            assert job.next_run_time - harness.now() > timedelta(minutes=50)

    harness.run(scenario())
    assert changed.log.of(events.LateWriteRefused) == []


def test_schedule_that_changes_while_its_next_slot_runs_early(harness: WorkerHarness) -> None:
    """A slot that was brought forward ends by the old rule; by the new one the next would be a year later."""
    app, changed = declared(harness, cron="0 0 1 1 *"), declared(harness, every="5m", settings={"worker.poll": "100ms"})

    async def scenario() -> None:
        async with contextlib.AsyncExitStack() as running:
            async with app.worker():
                job = await app.one_job()
                await app.job(job.id).run_now()
                await app.log.wait(events.RunSucceeded, slot_no=1)
                await app.job(job.id).run_now()
                await app.log.wait(events.RunStarted, slot_no=2)
                await running.enter_async_context(changed.worker())
            await changed.log.wait(events.RunSucceeded, slot_no=2)
            await asyncio.sleep(AGAIN_MOST)
            assert (await changed.one_job()).next_run_time - harness.now() <= timedelta(minutes=5)

    harness.run(scenario())


@pytest.mark.parametrize("error", [TransientError("away"), AmbiguousError("no answer")])
def test_slot_ends_by_the_rule_that_its_job_has(harness: WorkerHarness, error: ReltaskError) -> None:
    """A holder whose rewrite was certainly not applied ends the slot by the old rule; in doubt, by the new one."""
    app, changed = (declared(harness, every=every) for every in ("1h", "3h"))

    async def scenario() -> timedelta:
        async with contextlib.AsyncExitStack() as running:
            async with app.worker():
                await app.log.wait(events.RunStarted, slot_no=2)
                await running.enter_async_context(changed.worker())
                changed.faults.error, changed.faults.verbs = lambda: error, {"declare_job"}
            await changed.log.wait(events.RunSucceeded, slot_no=2)
            return await step_of(changed)

    every = timedelta(hours=1 if isinstance(error, TransientError) else 3)
    assert abs(harness.run(scenario()) - every) < timedelta(minutes=5)


def test_slot_ends_by_the_new_rule_when_its_rewriting_is_cut_off(harness: WorkerHarness) -> None:
    """A stopping worker does not wait for the answer: the row may have the new rule, so the slot ends by it."""
    app = declared(harness, every="1h")
    changed = declared(harness, every="3h", settings={"worker.poll": "100ms", "worker.shutdown_grace": "1h"})

    async def scenario() -> timedelta:
        async with contextlib.AsyncExitStack() as running:
            async with app.worker():
                await app.log.wait(events.RunStarted, slot_no=2)
                await running.enter_async_context(changed.worker())
            await changed.log.wait(events.RunStarted, slot_no=2)
            changed.faults.slow["declare_job"] = 3600.0
            await asyncio.sleep(2 * AGAIN)
            assert await schedule_of(app) == '{"every":"3h"}'
        assert await app.outcomes() == ["succeeded", "released", "succeeded"]
        return await step_of(app)

    assert abs(harness.run(scenario()) - timedelta(hours=3)) < timedelta(minutes=5)


def test_skipped_slot_ends_by_the_rule_that_it_has_claimed(harness: WorkerHarness) -> None:
    """Its end is computed at the claim: while that is under way, this worker may not change the job's rule."""

    def late(every: str) -> HarnessApp:
        app = harness.app(settings={"worker.poll": "100ms"})

        @app.task(name="tick", every=every, align=True, missed="skip", missed_grace="1s")
        async def tick() -> None: ...

        return app

    app, changed = late("1d"), late("5m")

    async def scenario() -> None:
        async with app.worker():
            job = await app.one_job()
        await asyncio.sleep((job.next_run_time - harness.now()).total_seconds() + 60)
        (claim,) = (await harness.claim_as("other", app)).claims
        changed.faults.error, changed.faults.verbs = lambda: TransientError("away"), {"complete_jobs"}
        async with changed.worker() as worker:
            store = app.sound_store()
            await store.open()
            assert await store.release_jobs("other", [Release(hold=claim.hold, outcome=Outcome.RELEASED)])
            await store.close()
            await changed.log.wait(events.DatabaseUnavailable)
            assert worker._places.run_of(claim.job_id, worker._clock.monotonic()) is None
            changed.faults.error = None
            await asyncio.sleep(5 * AGAIN)
            assert (await changed.one_job()).next_run_time - harness.now() <= timedelta(minutes=5)

    harness.run(scenario())


def test_workers_that_start_together_declare_one_job(harness: WorkerHarness) -> None:
    """Ten workers start at the same moment: one row."""
    apps = [declared(harness, every="1h") for _ in range(10)]

    async def scenario() -> int:
        async with asyncio.TaskGroup() as group:
            for app in apps:
                group.create_task(app.drain())
        return len(await apps[0].jobs())

    assert harness.run(scenario()) == 1


# Removed declarations


def test_schedule_that_is_no_longer_declared_is_reported(harness: WorkerHarness) -> None:
    """The job of a removed declaration continues; each starting worker that knows its task reports it."""
    before, after = declared(harness, every="1h"), declared(harness)

    async def scenario() -> JobView:
        await before.drain()
        job = await before.one_job()
        for _ in range(2):
            await after.drain()
        assert (await after.one_job()).id == job.id
        await after.job(job.id).discard()
        await after.drain()
        return job

    job = harness.run(scenario())
    reported = [(event.task, event.job_id, event.beside) for event in after.log.of(events.ScheduleLeftOver)]
    assert reported == [("tick", job.id, None)] * 2
    assert before.log.of(events.ScheduleLeftOver) == []


def test_schedule_that_the_code_never_declared_is_not_reported(harness: WorkerHarness) -> None:
    """Neither one made at run time or by hand, nor one-offs, nor one from a newer version of the app."""
    newer, older = declared(harness, version="2.0", every="1h"), declared(harness, version="1.0")

    @older.task
    async def chore() -> None: ...

    async def scenario() -> None:
        await newer.drain()
        by_hand = NewJob(id=uuid4(), task="chore", schedule='{"every":"1h"}')
        await older._client.run(lambda store: store.enqueue_jobs([by_hand]), name="enqueue")
        await older.get_task("tick").using(key="k", every="1h").enqueue()
        await older.get_task("tick").using(delay="1h").enqueue()
        await older.drain()
        assert len(await older.jobs()) == 4

    harness.run(scenario())
    assert older.log.of(events.ScheduleLeftOver) == []


def test_undeclared_schedule_of_a_renamed_task_is_reported(harness: WorkerHarness) -> None:
    """Renamed and removed from its schedule at once: the row of the old name is left."""
    before, after = declared(harness, every="1h"), harness.app()

    @after.task(name="tock", aliases=["tick"])
    async def tick() -> None: ...

    async def scenario() -> None:
        await before.drain()
        await after.drain()

    harness.run(scenario())
    assert [(event.task, event.beside) for event in after.log.of(events.ScheduleLeftOver)] == [("tick", None)]
