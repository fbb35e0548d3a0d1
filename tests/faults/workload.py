"""The tasks that fault rows run. The effect that is counted is one row, written in the task's transaction.

    start noted ─► gate `before` ─► BEGIN, insert ─► touch <inside>.reached.<fence> ─► gate `inside` ─► COMMIT

Version 1 knows `effect` by its old name only. Version 2 has renamed it, accepts old jobs by an
alias, and has one more task.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from reltask import App, Context, ProcessContext
from tests.cluster import table
from tests.cluster.workload import PAUSE, VERSION, hold_child, is_open, noted, poison

OLD, NEW = "effect", "effect_renamed"


async def effect(ctx: Context, before: str = "", inside: str = "", seconds: float = 0.0) -> None:
    """Write one row, exactly once. A gate that is not given is open."""
    with noted(ctx):
        await _passed(before, ctx)
        await asyncio.sleep(seconds)
        async with ctx.transaction() as tx:
            await tx.execute(table.INSERT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence)
            if inside:
                reached(inside, ctx.fence).touch()
            await _passed(inside, ctx)


def reached(inside: str, fence: int) -> Path:
    """The file that exists once this run has written and not yet committed."""
    return Path(f"{inside}.reached.{fence}")


async def _passed(gate: str, ctx: Context) -> None:
    while gate and not is_open(gate, ctx):  # noqa: ASYNC110 - another process opens it
        await asyncio.sleep(PAUSE)


def hungry(ctx: ProcessContext) -> None:
    """Needs more memory than its limit."""
    import resource  # noqa: PLC0415 - not on Windows

    with noted(ctx):
        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), used + (64 << 20)))
        hoard = [bytearray(8 << 20) for _ in range(64)]
        raise AssertionError(f"{len(hoard)} pieces of memory were not too many")


async def only_new(ctx: Context) -> None:
    """A task that the old version does not know."""
    await effect(ctx)


def make_app(url: str | None = None, *, version: str = "2") -> App:
    """The workload on this database, or on that of the settings."""
    patience = {"database.breaker_reset": "500ms", "database.retry_first": "200ms"} if url else {}
    app = App(url, version=version, settings=patience)
    if version == "1":
        app.task(backoff="200ms", max_attempts=50)(effect)
    else:
        app.task(backoff="200ms", max_attempts=50, name=NEW, aliases=[OLD])(effect)
        app.task(backoff="200ms")(only_new)
    app.task(isolation="process")(hold_child)
    app.task(isolation="process", max_attempts=2, backoff="100ms")(hungry)
    app.task(max_attempts=2)(poison)
    return app


app = make_app(version=os.environ.get(VERSION, "2"))
