"""A recurring task that is renamed: its row continues under the old name, and nothing runs twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reltask import App, Context, events
from reltask.model.views import JobView
from reltask.producer.job import Job
from tests.worker.worker_harness import HarnessApp, Recorder, WorkerHarness, working

Ran = list[tuple[str, int]]
"""Which version ran which slot."""


# On real databases


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A separate database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/reltask.db"
    return str(request.getfixturevalue("postgres_url"))


def make_app(url: str, ran: Ran, version: str, **names: Any) -> tuple[App, Recorder]:
    """One version of the program: a task with its own schedule, and one scheduled with a key."""
    app, log = App(url, settings={"maintenance.coordination": "off"}), Recorder()
    app.subscribe(log)

    @app.task(every="20ms", **{name: value["tick"] for name, value in names.items()})
    async def tick(ctx: Context) -> None:
        ran.append((f"{version} tick", ctx.slot_no))

    @app.task(**{name: value["report"] for name, value in names.items()})
    async def report(ctx: Context, tenant: int) -> None:
        assert tenant == 7
        ran.append((f"{version} report", ctx.slot_no))

    app.schedule(report.call(7), key="tenant-7", every="20ms")
    return app, log


@pytest.mark.slow
async def test_renamed_task_continues_in_its_row(url: str) -> None:
    """The old version, both side by side, the new one, the old one again: one row each, every slot runs once."""
    ran: Ran = []
    old, old_log = make_app(url, ran, "old")
    names = {"name": {"tick": "tock", "report": "tell"}, "aliases": {"tick": ["tick"], "report": ["report"]}}
    new, new_log = make_app(url, ran, "new", **names)

    async def three_more(*logs: Recorder) -> None:
        for log in logs:
            for task in ("tick", "report"):
                await log.wait(events.RunSucceeded, len(log.of(events.RunSucceeded, task=task)) + 3, task=task)

    async with working(old):
        await three_more(old_log)
        before = {job.id for job in await old.jobs()}
        async with working(new):
            await three_more(new_log)
    async with working(new):
        await three_more(new_log)
    async with working(old):
        await three_more(old_log)
        jobs = await old.jobs()

    assert {job.id for job in jobs} == before
    assert sorted((job.task, job.key) for job in jobs) == [("report", "tenant-7"), ("tick", None)]
    for task in ("tick", "report"):
        slots = [slot for who, slot in ran if who.endswith(task)]
        assert slots == list(range(1, len(slots) + 1))
    assert {who for who, _ in ran} == {"old tick", "old report", "new tick", "new report"}
    assert new_log.of(events.ScheduleLeftOver) == old_log.of(events.ScheduleLeftOver) == []


# In virtual time


def named(harness: WorkerHarness, name: str, *aliases: str, every: str = "1h", key: str | None = None) -> HarnessApp:
    app = harness.app()

    @app.task(name=name, aliases=aliases)
    async def tick() -> None: ...

    app.schedule(tick, key=key, every=every)
    return app


async def rows(app: HarnessApp) -> list[tuple[str, str | None]]:
    return sorted((job.task, job.schedule) for job in await app.jobs())


@pytest.mark.parametrize("key", [None, "k"])
def test_new_declaration_is_written_into_the_row_of_the_old_name(harness: WorkerHarness, key: str | None) -> None:
    """Renaming a task may also change its schedule; a name given twice is one name."""
    old, new = named(harness, "old", key=key), named(harness, "new", "old", "new", "old", every="5m", key=key)

    async def scenario() -> None:
        await old.drain()
        await new.drain()
        assert await rows(new) == [("old", '{"every":"5m"}')]

    harness.run(scenario())
    assert new.log.of(events.ScheduleLeftOver) == []


def test_task_renamed_twice_keeps_its_row(harness: WorkerHarness) -> None:
    """The row keeps the first name; a task that lists all former names finds it."""
    apps = named(harness, "a"), named(harness, "b", "a"), named(harness, "c", "b", "a")

    async def scenario() -> None:
        for app in apps:
            await app.drain()
            assert await rows(app) == [("a", '{"every":"1h"}')]

    harness.run(scenario())


def test_renamed_task_on_an_empty_database_has_its_own_name(harness: WorkerHarness) -> None:
    """If no row has the old name, it is not used; a one-off with that name and key is no schedule."""
    app, before = named(harness, "new", "old", key="k"), harness.app()

    @before.task(name="old")
    async def tick() -> None: ...

    async def scenario() -> None:
        await tick.using(key="k", delay="1d").enqueue()
        await app.drain()
        assert await rows(app) == [("new", '{"every":"1h"}'), ("old", None)]

    harness.run(scenario())
    assert app.log.of(events.ScheduleLeftOver) == []


def test_two_rows_stay_and_are_reported(harness: WorkerHarness) -> None:
    """Rows under both names, as earlier versions made them: the old one is reported at each start, until it is gone."""
    old, careless, new = named(harness, "old"), named(harness, "new"), named(harness, "new", "old", every="5m")

    async def scenario() -> JobView:
        await old.drain()
        surplus = await old.one_job()
        await careless.drain()
        for _ in range(2):
            await new.drain()
            assert await rows(new) == [("new", '{"every":"5m"}'), ("old", '{"every":"1h"}')]
        await new.job(surplus.id).discard()
        await new.drain()
        assert await rows(new) == [("new", '{"every":"5m"}')]
        return surplus

    surplus = harness.run(scenario())
    reported = [(event.task, event.job_id, event.beside) for event in new.log.of(events.ScheduleLeftOver)]
    assert reported == [("old", surplus.id, "new")] * 2


# With keys, made at run time


@pytest.mark.parametrize("options", [{"every": "1h"}, {"delay": "1h"}], ids=["a schedule", "a one-off"])
async def test_key_of_a_former_name_is_found(url: str, options: dict[str, Any]) -> None:
    """A key under the old name is found by the new one: alone, in bulk and in a transaction."""
    old, new, log = App(url), App(url), Recorder()
    new.subscribe(log)

    @old.task
    async def report(tenant: int) -> None: ...

    @new.task(aliases=["report"])
    async def tell(tenant: int) -> None: ...

    @new.task
    async def ask(ctx: Context) -> None:
        async with ctx.transaction():
            inside.append(await tell.using(key="k", **options).enqueue(7))

    inside: list[Job[Any]] = []
    async with old.producer():
        first = await report.using(key="k", **options).enqueue(7)
    async with working(new):
        alone = await tell.using(key="k", **options).enqueue(7)
        many = await new.enqueue_many(tell.using(key=key, **options).call(7) for key in ("k", "new"))
        await ask.enqueue()
        await log.wait(events.RunSucceeded, task="ask")
        assert len(await new.jobs()) == 2
    found = [alone, many[0], *inside]
    assert [(job.id, job.task, job.created) for job in found] == [(first.id, "report", False)] * 3
    assert (many[1].task, many[1].created) == ("tell", True)
