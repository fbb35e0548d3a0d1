"""Recurring jobs in a running worker: intervals, aligned times, cron, missed slots."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from reltask import Context, events
from reltask.errors import DeclarationError
from reltask.model.views import RunView
from tests.worker.worker_harness import HarnessApp, WorkerHarness


def cycles(harness: WorkerHarness, app: HarnessApp, count: int) -> list[RunView]:
    """Run a worker for `count` slots; return the ledger, oldest first."""

    async def scenario() -> list[RunView]:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, count)
        return await app.ledger()

    return harness.run(scenario())


# every


@pytest.mark.parametrize("seconds", [0.0, 5.0, 100.0, 599.999, 900.0], ids="{}s".format)
def test_next_run_time_calculated_from_start_not_completion(harness: WorkerHarness, seconds: float) -> None:
    """Next nominal time − start = the interval exactly, even if a task outlasts a heartbeat or the interval."""
    app = harness.app()

    @app.task(every="10m")
    async def tick() -> None:
        await asyncio.sleep(seconds)

    runs = cycles(harness, app, 6)
    for run, following in pairwise(runs):
        assert run.claimed_at is not None
        assert following.nominal_time - run.claimed_at == timedelta(minutes=10)
        assert following.slot_no == run.slot_no + 1


def test_multiple_polling_cycles_with_task_execution(harness: WorkerHarness) -> None:
    """Three workers, one task on a grid: in each of ten intervals it runs once, on one of them; none is missing."""
    apps = [harness.app() for _ in range(3)]
    ran: list[int] = []
    tenth = asyncio.Event()
    for app in apps:

        @app.task(name="tick", every="10m", align=True)
        async def tick(ctx: Context) -> None:
            ran.append(ctx.slot_no)
            await asyncio.sleep(40)
            if ctx.slot_no == 10:
                tenth.set()

    async def scenario() -> list[RunView]:
        async with apps[0].worker(), apps[1].worker(), apps[2].worker():
            await tenth.wait()
            await asyncio.sleep(60)
        return await apps[0].ledger()

    runs = harness.run(scenario())
    assert ran == list(range(1, 11))
    assert [(run.slot_no, run.outcome) for run in runs] == [(n, "succeeded") for n in range(1, 11)]
    assert {after.nominal_time - before.nominal_time for before, after in pairwise(runs)} == {timedelta(minutes=10)}
    assert len({run.worker for run in runs}) > 1


def test_first_slot_of_every_is_at_once(harness: WorkerHarness) -> None:
    """`every` starts with the worker, without a wait of one interval."""
    app = harness.app()

    @app.task(every="10m")
    async def tick() -> None: ...

    (run, *_) = cycles(harness, app, 1)
    assert run.claimed_at == run.nominal_time == harness.now()


@pytest.mark.slow
def test_aligned_interval_does_not_drift(harness: WorkerHarness) -> None:
    """With align=True the 200th slot is as punctual as the first: nominal times are aligned, lateness does not grow."""
    app = harness.app()

    @app.task(every="1m", align=True)
    async def tick() -> None:
        await asyncio.sleep(37.0)

    runs = cycles(harness, app, 200)
    assert all(run.nominal_time.second == 0 and run.nominal_time.microsecond == 0 for run in runs)
    assert all(b.nominal_time - a.nominal_time == timedelta(minutes=1) for a, b in pairwise(runs))
    late = [run.claimed_at - run.nominal_time for run in runs if run.claimed_at]
    assert max(late) < timedelta(milliseconds=10)


def test_after_finish_counts_from_the_end(harness: WorkerHarness) -> None:
    """after_finish=True leaves the whole interval between two runs."""
    app = harness.app()

    @app.task(every="10m", after_finish=True)
    async def tick() -> None:
        await asyncio.sleep(95.0)

    for run, following in pairwise(cycles(harness, app, 4)):
        assert following.nominal_time - run.finished_at == timedelta(minutes=10)


def test_failed_attempts_do_not_move_the_schedule(harness: WorkerHarness) -> None:
    """The interval counts from the slot's first claim, however many attempts it took."""
    app = harness.app()

    @app.task(every="10m", backoff="30s")
    async def tick(ctx: Context) -> None:
        if ctx.attempt < 3:
            raise ValueError("boom")

    runs = cycles(harness, app, 2)
    first = [run for run in runs if run.slot_no == 1]
    assert first[0].claimed_at is not None
    assert runs[3].nominal_time == first[0].claimed_at + timedelta(minutes=10)


# cron


def test_cron_follows_its_time_zone(harness: WorkerHarness) -> None:
    """9:00 is 9:00 in Berlin, first at its next time and not at once."""
    app = harness.app(settings={"worker.poll": "1h"})

    @app.task(cron="0 9 * * mon-fri", timezone="Europe/Berlin")
    async def report() -> None: ...

    async def scenario() -> list[RunView]:
        async with app.worker():
            await asyncio.sleep(46 * 3600)
        return await app.ledger()

    runs = harness.run(scenario())
    local = [run.nominal_time.astimezone(ZoneInfo("Europe/Berlin")) for run in runs]
    assert [(at.hour, at.minute) for at in local] == [(9, 0)] * len(runs)
    assert len(runs) == 2
    assert all(run.claimed_at and run.claimed_at - run.nominal_time < timedelta(seconds=1) for run in runs)


@pytest.mark.parametrize(
    ("missed", "outcomes"),
    [
        ("once", ["succeeded", "succeeded"]),
        ("all", ["succeeded", "succeeded", "succeeded", "succeeded", "succeeded"]),
        ("skip", ["skipped", "skipped", "skipped", "skipped", "succeeded"]),
    ],
)
def test_missed_slots(harness: WorkerHarness, missed: Any, outcomes: list[str]) -> None:
    """No worker ran for three and a half hours: run once, run all, or skip, each skipped slot with a ledger row."""
    app = harness.app()

    @app.task(cron="0 * * * *", missed=missed)
    async def hourly() -> None: ...

    async def scenario() -> list[RunView]:
        async with app.worker():
            pass  # declared: the first slot is at 01:00
        await asyncio.sleep(4.5 * 3600)
        async with app.worker():
            await asyncio.sleep(3600)
        return await app.ledger()

    runs = harness.run(scenario())
    assert [run.outcome for run in runs] == outcomes
    assert [run.slot_no for run in runs] == list(range(1, len(runs) + 1))
    assert all(b.nominal_time > a.nominal_time for a, b in pairwise(runs))
    if missed != "once":
        assert [run.nominal_time.hour for run in runs] == [1, 2, 3, 4, 5]


def test_newest_missed_slot_within_the_grace_runs(harness: WorkerHarness) -> None:
    """At 02:30 after two nights: last night's slot is half an hour late and runs; the one before is skipped."""
    app = harness.app()

    @app.task(cron="0 2 * * *", missed="skip", missed_grace="2h")
    async def nightly() -> None: ...

    async def scenario() -> list[RunView]:
        async with app.worker():
            pass  # declared: the first slot is on the first day
        await asyncio.sleep(26.5 * 3600)
        async with app.worker():
            await asyncio.sleep(3600)
        return await app.ledger()

    runs = harness.run(scenario())
    assert [(run.nominal_time.day, run.outcome) for run in runs] == [(1, "skipped"), (2, "succeeded")]


# Several schedules of one task


def test_schedules_of_one_task_have_keys(harness: WorkerHarness) -> None:
    """app.schedule declares one recurring job of a task per key, each with its own arguments."""
    app = harness.app()
    seen: list[tuple[str | None, str]] = []

    @app.task
    async def report(ctx: Context, tenant: str) -> None:
        seen.append((ctx.key, tenant))

    app.schedule(report.call("north"), key="tenant-1", every="10m")
    app.schedule(report.call("south"), key="tenant-2", every="10m")

    async def scenario() -> None:
        await app.drain()
        assert {job.key: job.max_attempts for job in await app.jobs()} == {"tenant-1": None, "tenant-2": None}

    harness.run(scenario())
    assert sorted(seen) == [("tenant-1", "north"), ("tenant-2", "south")]


def test_schedule_declared_twice_is_refused(harness: WorkerHarness) -> None:
    """Two schedules of one task need different keys; otherwise the declaration raises."""
    app = harness.app()

    @app.task(every="10m")
    async def tick() -> None: ...

    with pytest.raises(DeclarationError, match="scheduled twice"):
        app.schedule(tick, every="5m")
    app.schedule(tick, key="fast", every="5m")
    with pytest.raises(DeclarationError, match="with key 'fast'"):
        app.schedule(tick, key="fast", every="1m")
    with pytest.raises(DeclarationError, match="needs a rhythm"):
        app.schedule(tick, key="none")


def test_own_limit_of_attempts_holds_for_schedules(harness: WorkerHarness) -> None:
    """Recurring jobs have unlimited attempts, one-offs five; a limit set by the task, even 5, applies to both."""
    app = harness.app()

    @app.task
    async def free() -> None: ...

    @app.task(max_attempts=5)
    async def bound() -> None: ...

    @app.task(every="1h")
    async def tick() -> None: ...

    app.schedule(free, key="k", every="1h")
    app.schedule(bound, key="k", every="1h")

    async def scenario() -> dict[tuple[str, bool], int | None]:
        for task in (free, bound, tick):
            await task.using(delay="1h").enqueue()
        await free.using(key="later", every="1h", delay="1h").enqueue()
        async with app.worker():
            return {(job.task, job.schedule is not None): job.max_attempts for job in await app.jobs()}

    assert harness.run(scenario()) == {
        ("free", False): 5,
        ("free", True): None,
        ("bound", False): 5,
        ("bound", True): 5,
        ("tick", False): 5,
        ("tick", True): None,
    }


def test_schedule_made_at_run_time_starts_like_a_declared_one(harness: WorkerHarness) -> None:
    """using(key=…, cron=…) has its first slot at its next time; every= at once; the key makes it unique."""
    app = harness.app()

    @app.task
    async def report() -> None: ...

    async def scenario() -> None:
        daily = await report.using(key="daily", cron="30 6 * * *").enqueue()
        often = await report.using(key="often", every="10m").enqueue()
        again = await report.using(key="daily", cron="0 9 * * *").enqueue()
        assert (again.created, again.id) == (False, daily.id)
        view, soon = await daily.view(), await often.view()
        assert view is not None
        assert soon is not None
        assert view.next_run_time == harness.now() + timedelta(hours=6, minutes=30)
        assert soon.next_run_time == harness.now()

    harness.run(scenario())
