"""Schedules that are made, changed and listed at run time; schedules with a start, an end and jitter."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from reltask import UsageError, events
from tests.worker.worker_harness import HarnessApp, WorkerHarness

HOUR = timedelta(hours=1)


def test_replace_creates_and_changes(harness: WorkerHarness) -> None:
    """The same call twice leaves one schedule; another rule and other arguments replace it, and its slot moves."""
    app = harness.app()
    seen: list[int] = []

    @app.task
    async def report(tenant: int) -> None:
        seen.append(tenant)

    async def scenario() -> None:
        nightly = report.using(key="tenant-9", cron="0 9 * * *", replace=True)
        first = await nightly.enqueue(9)
        again = await nightly.enqueue(9)
        assert (first.created, again.created, first.id) == (True, False, again.id)
        changed = await report.using(key="tenant-9", every="1h", align=True, replace=True).enqueue(10)
        assert changed.id == first.id
        (view,) = await app.schedules()
        assert (view.id, view.task, view.key, view.rule) == (first.id, "report", "tenant-9", "every 1h on the grid")
        assert [later - view.next_fires[0] for later in view.next_fires] == [n * HOUR for n in range(5)]
        assert await app.schedules(task="other") == []
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 2)
        assert seen == [10, 10]
        await app.job(view.id).discard()
        assert await app.schedules() == []

    harness.run(scenario())


def test_a_change_survives_workers_until_the_declaration_changes(harness: WorkerHarness) -> None:
    """A worker that starts with the same declaration leaves it alone; a new declaration wins."""

    async def tick() -> None: ...

    def declared(every: str) -> HarnessApp:
        app = harness.app()
        app.schedule(app.task(name="tick")(tick), key="k", every=every)
        return app

    first, same, newer = (declared(every) for every in ("1h", "1h", "3h"))

    async def rule(app: HarnessApp) -> str:
        async with app.worker():
            await asyncio.sleep(10)
        (view,) = await app.schedules()
        return view.rule

    async def scenario() -> None:
        assert await rule(first) == "every 1h"
        await first.get_task("tick").using(key="k", every="2h", replace=True).enqueue()
        assert await rule(same) == "every 2h"
        assert await rule(newer) == "every 3h"

    harness.run(scenario())


def test_a_running_schedule_is_changed_when_its_run_has_ended(harness: WorkerHarness) -> None:
    """A slot that runs is never moved: the change waits for its end, and is refused after a while."""
    app = harness.app()

    @app.task
    async def report(seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def scenario() -> None:
        async with app.worker():
            await report.using(key="short", every="1h", replace=True).enqueue(3)
            await app.log.wait(events.RunStarted)
            await report.using(key="short", every="2h", replace=True).enqueue(3)
            assert [view.rule for view in await app.schedules()] == ["every 2h"]
            await report.using(key="long", every="1h", replace=True).enqueue(600)
            await app.log.wait(events.RunStarted, 2)
            with pytest.raises(UsageError, match="is running; nothing was changed"):
                await report.using(key="long", every="2h", replace=True).enqueue(600)
            assert [view.rule for view in await app.schedules()] == ["every 2h", "every 1h"]

    harness.run(scenario())


def test_replace_is_refused_where_it_cannot_work(harness: WorkerHarness) -> None:
    """Without a schedule, over a one-off, and for a schedule that has ended."""
    app = harness.app()

    @app.task
    async def report() -> None: ...

    with pytest.raises(UsageError, match="changes a schedule"):
        report.using(key="a", replace=True)

    async def scenario() -> None:
        await report.using(key="a", delay="1h").enqueue()
        with pytest.raises(UsageError, match="one-off"):
            await report.using(key="a", every="1h", replace=True).enqueue()
        over = datetime(2000, 1, 1, tzinfo=UTC)
        for ended in (report.using(key="b", cron="0 9 * * *", end=over), report.using(key="c", every="1h", end=over)):
            with pytest.raises(UsageError, match="no slot before its end"):
                await ended.enqueue()

    harness.run(scenario())


def test_a_schedule_ends_with_its_last_slot(harness: WorkerHarness) -> None:
    """After its end the job is removed, and a worker that starts later does not declare it again."""
    start = harness.now() + timedelta(hours=2)
    apps = [harness.app() for _ in range(2)]
    for app in apps:

        @app.task(name="tick", every="1h", align=True, start=start, end=start + 3 * HOUR)
        async def tick() -> None: ...

    async def scenario() -> None:
        for app in apps:
            async with app.worker():
                await asyncio.sleep(8 * 3600)
        ledger = await apps[0].ledger()
        assert [run.outcome for run in ledger] == ["succeeded"] * len(ledger)
        assert 3 <= len(ledger) <= 4
        assert all(start <= run.nominal_time <= start + 3 * HOUR for run in ledger)
        assert await apps[0].schedules() == []

    harness.run(scenario())


def test_jitter_is_the_same_for_every_worker(harness: WorkerHarness) -> None:
    """Three workers take turns; the slots are those that the schedule's view announced."""
    apps = [harness.app() for _ in range(3)]
    for app in apps:

        @app.task(name="tick", cron="0 * * * *", jitter="30m")
        async def tick() -> None: ...

    async def scenario() -> None:
        async with apps[0].worker():
            await asyncio.sleep(1)
        (view,) = await apps[0].schedules()
        for app in apps:
            async with app.worker():
                await app.log.wait(events.RunSucceeded)
        assert [run.nominal_time for run in await apps[0].ledger()] == view.next_fires[:3]
        assert len({fire.minute for fire in view.next_fires}) > 1

    harness.run(scenario())
