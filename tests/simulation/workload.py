"""Task bodies for the simulation: each kind is trouble of its own sort."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Protocol

from reltask import App, Cancel, Context, Retry, Snooze

LOCK_TIMEOUT = 10.0
BYSTANDERS = frozenset({"quick", "long", "transfer", "chunks", "parent"})
"""Tasks that never fail by themselves: none of them may end as a dead letter."""
TRANSACTIONAL = frozenset({"transfer", "recurring_transfer"})
"""Tasks whose own transaction completes their slots."""
STUBBORN = frozenset({"stubborn"})
"""Tasks that do not stop when asked to."""


class Stage(Protocol):
    """What bodies need of the world."""

    def started(self, ctx: Context) -> None: ...
    def ended(self, ctx: Context) -> None: ...
    def block_loop(self, seconds: float) -> None: ...
    async def crash_here(self) -> None: ...


def chance(ctx: Context) -> random.Random:
    """Random numbers that depend on the run alone, and not on who runs it or when."""
    return random.Random(f"{ctx.task}:{ctx.job_id}:{ctx.fence}")


def make_app(stage: Stage) -> App:
    """All tasks of the simulated system."""
    app = App("sqlite:///unused.db")

    def acted(function: Any) -> Any:
        async def body(ctx: Context) -> None:
            stage.started(ctx)
            try:
                await function(ctx, chance(ctx))
            finally:
                stage.ended(ctx)

        body.__name__ = body.__qualname__ = function.__name__
        return body

    async def quick(_ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1))

    async def long(_ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 2.5 * LOCK_TIMEOUT))

    async def fails(_ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1))
        if rng.random() < 0.6:
            raise ValueError("no luck")

    async def chooses(_ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1))
        choice = rng.randrange(5)
        if choice == 0:
            raise Retry("again", delay="2s")
        if choice == 1:
            raise Snooze("3s")
        if choice == 2:
            raise Cancel

    async def transfer(ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1.5 * LOCK_TIMEOUT))
        async with ctx.transaction() as tx:
            await tx.execute(EFFECT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence, kind="transfer")
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, 1))
        if rng.random() < 0.2:
            raise ValueError("after the commit")

    async def chunks(ctx: Context, rng: random.Random) -> None:
        for _ in range(3):
            async with ctx.transaction(complete=False) as tx:
                await tx.execute(EFFECT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence, kind="chunk")
            await asyncio.sleep(rng.uniform(0, 4))

    async def blocks(_ctx: Context, rng: random.Random) -> None:
        stage.block_loop(rng.uniform(0, 2 * LOCK_TIMEOUT))
        await asyncio.sleep(0)

    async def stubborn(_ctx: Context, rng: random.Random) -> None:
        until = asyncio.get_running_loop().time() + rng.uniform(0, 2 * LOCK_TIMEOUT)
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue

    async def poison(_ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 2))
        await stage.crash_here()

    for function in (quick, long, chooses, chunks, blocks, stubborn):
        app.task(max_attempts=8)(acted(function))
    app.task(max_attempts=8)(acted(transfer))
    app.task(max_attempts=4, backoff="3s")(acted(fails))
    app.task(max_attempts=3)(acted(poison))
    app.task(every="7s", name="recurring")(acted(_named("recurring", long_or_quick)))
    app.task(every="5s", align=True, name="grid")(acted(_named("grid", quick)))
    app.task(every="9s", name="recurring_transfer")(acted(_named("recurring_transfer", transfer)))
    app.task(every="6s", name="recurring_failing")(acted(_named("recurring_failing", fails)))
    return app


EFFECT = "insert into effects (job_id, slot_no, fence, kind) values (:job, :slot, :fence, :kind)"
INTERVALS = {"recurring": 7.0, "recurring_transfer": 9.0, "recurring_failing": 6.0}
"""Tasks that recur counted from the start of each slot."""
ONE_OFFS = ("quick", "long", "fails", "chooses", "transfer", "chunks", "blocks", "stubborn", "poison")


async def long_or_quick(_ctx: Context, rng: random.Random) -> None:
    """Sometimes longer than a heartbeat, sometimes longer than its own interval."""
    await asyncio.sleep(rng.choice([0.1, 1.0, 4.0, 9.0]))


def _named(name: str, function: Any) -> Any:
    async def renamed(ctx: Context, rng: random.Random) -> None:
        await function(ctx, rng)

    renamed.__name__ = name
    return renamed
