"""The tasks of the cluster tests. What differs between tests comes from the environment.

Each body writes a line when it starts, when it ends and when it is stopped. `hold` and its variants
wait for a file, the gate, so that the test decides how long a body takes; `<gate>.<fence>` opens
for one run only.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from reltask import App, Context, ProcessContext, SyncContext
from tests.cluster import table
from tests.cluster.effects import record

SCHEDULES = "RELTASK_TEST_SCHEDULES"
"""A JSON list of schedules of `tick` or another task: task, arguments, and what `app.schedule` takes."""
VERSION = "RELTASK_TEST_APP_VERSION"
PAUSE = 0.02

AnyContext = Context | SyncContext | ProcessContext


@contextlib.contextmanager
def noted(ctx: AnyContext) -> Iterator[None]:
    """Record the start of a body, and how it ended."""

    def note(what: str) -> None:
        record(
            what,
            task=ctx.task,
            job=ctx.job_id,
            slot=ctx.slot_no,
            fence=ctx.fence,
            attempt=ctx.attempt,
            worker=ctx.worker,
        )

    note("start")
    try:
        yield
    except BaseException:
        note("stopped")
        raise
    note("end")


def is_open(gate: str, ctx: AnyContext) -> bool:
    return Path(gate).exists() or Path(f"{gate}.{ctx.fence}").exists()


async def tick(ctx: Context, seconds: float = 0.0) -> None:
    with noted(ctx):
        await asyncio.sleep(seconds)


async def hold(ctx: Context, gate: str) -> None:
    with noted(ctx):
        while not is_open(gate, ctx):  # noqa: ASYNC110 - another process opens it
            await asyncio.sleep(PAUSE)


def hold_thread(ctx: SyncContext, gate: str) -> None:
    """Never checks whether it should stop."""
    with noted(ctx):
        while not is_open(gate, ctx):
            time.sleep(PAUSE)


def hold_checking(ctx: SyncContext, gate: str) -> None:
    """A thread that asks whether it should stop."""
    with noted(ctx):
        while not is_open(gate, ctx):
            ctx.check()
            time.sleep(PAUSE)


def hold_child(ctx: ProcessContext, gate: str) -> None:
    with noted(ctx):
        while not is_open(gate, ctx):
            time.sleep(PAUSE)


async def block_loop(ctx: Context, seconds: float) -> None:
    """What an async task should not do."""
    with noted(ctx):
        time.sleep(seconds)  # noqa: ASYNC251 - the point of it


async def poison(ctx: Context) -> None:
    """Kills its worker."""
    with noted(ctx):
        await asyncio.sleep(PAUSE)
        os._exit(POISONED)


async def write(ctx: Context, seconds: float) -> None:
    """An effect that commits together with the completion."""
    with noted(ctx):
        await asyncio.sleep(seconds)
        async with ctx.transaction() as tx:
            await tx.execute(table.INSERT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence)


async def newcomer(ctx: Context) -> None:
    """Only version 2 knows it."""
    with noted(ctx):
        pass


POISONED = 23
"""The exit status of a worker that has run `poison`."""


def make_app(url: str | None = None, *, version: str = "2", schedules: str = "[]") -> App:
    """The workload on this database, or on that of the settings."""
    app = App(url, version=version)
    app.task(tick)
    app.task(hold)
    app.task(hold_thread)
    app.task(hold_checking)
    app.task(isolation="process")(hold_child)
    app.task(block_loop)
    app.task(backoff="500ms")(write)
    app.task(max_attempts=3)(poison)
    if version != "1":
        app.task(newcomer)
    for schedule in json.loads(schedules):
        task, arguments = app.get_task(schedule.pop("task", "tick")), schedule.pop("arguments", {})
        app.schedule(task.call(**arguments), **schedule)
    return app


app = make_app(version=os.environ.get(VERSION, "2"), schedules=os.environ.get(SCHEDULES, "[]"))
