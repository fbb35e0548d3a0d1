"""Task bodies for the simulation: each kind causes a different sort of trouble."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import timedelta
from functools import cached_property
from typing import Any, Protocol

from reltask import App, Backoff, Cancel, Context, Retry, Snooze, SyncContext
from reltask.model.job import NewJob
from reltask.worker.process import Message
from tests.simulation.actors import ACTOR, ChildRun, SimChild
from tests.simulation.malformed import TASK as MALFORMED

LOCK_TIMEOUT = 10.0
STOP_GRACE = 0.8
BYSTANDERS = frozenset({"quick", "long", "transfer", "chunks", "threaded", "child"})
"""Tasks that never fail by themselves: none of them may end as a dead letter."""
TRANSACTIONAL = frozenset({"transfer", "recurring_transfer"})
"""Tasks whose own transaction completes their slots."""
STUBBORN = frozenset({"stubborn", "deaf"})
"""Tasks that do not stop when asked to."""
ONE_OFFS = (
    "quick",
    "long",
    "long",
    "fails",
    "chooses",
    "transfer",
    "chunks",
    "blocks",
    "stubborn",
    "stubborn",
    "poison",
    "timed",
    "greedy",
)
ELSEWHERE = ("threaded", "threaded", "child", "child", "child", "deaf")
"""Tasks whose bodies are in threads and in child processes. They come in one history of eight."""
ELSEWHERE_SHARE = 0.125
INTERVALS = {
    "recurring_timed": 9.0,
    "recurring": 13.0,
    "recurring_transfer": 17.0,
    "recurring_failing": 14.0,
    "recurring_durable": 19.0,
}
"""Recurring tasks, counted from the start of each slot: seconds."""
EFFECT = "insert into effects (job_id, slot_no, fence, kind) values (:job, :slot, :fence, :kind)"

Act = Callable[[Context, random.Random], Awaitable[None]]
RunFacts = Context | SyncContext | ChildRun


class WorldForBodies(Protocol):
    """What task bodies need of the world."""

    def started(self, ctx: RunFacts) -> None: ...
    def ended(self, ctx: RunFacts) -> None: ...
    def block_loop(self, seconds: float) -> None: ...
    def starve(self, seconds: float) -> None: ...
    def returned(self, ctx: RunFacts) -> None: ...
    async def crash_here(self) -> None: ...


CURRENT_WORLD: ContextVar[WorldForBodies] = ContextVar("world")
"""The world that a body runs in. The tasks are the same for all worlds."""


def has_elsewhere(seed: int) -> bool:
    """Whether this history has bodies in threads and children. Asked without the history's own random numbers."""
    return random.Random(f"elsewhere:{seed}").random() < ELSEWHERE_SHARE


def child() -> None:
    """Imported by a real child, never by a simulated one: that one does as `child_acts` says."""


def child_acts(process: SimChild, run: ChildRun) -> Message | None:
    """Runs longer than its lock, and stops when it is asked to, or does not: then it is killed."""
    world, rng = CURRENT_WORLD.get(), random.Random(f"{run.task}:{run.job_id}:{run.fence}")
    obeys, until = rng.random() < 0.3, process.actor.loop.time() + rng.uniform(0, 2.5 * LOCK_TIMEOUT)
    world.started(run)
    try:
        while (left := until - process.actor.loop.time()) > 0:
            process.actor.sleep(left)
            if process.is_asked and obeys and not process.is_killed:
                process.actor.sleep(rng.uniform(0, STOP_GRACE))
                return Message(kind="stopped", text="as it was asked to")
            if process.is_killed:
                return None
        world.returned(run)
        return Message(kind="returned")
    finally:
        world.ended(run)


class Workload:
    """The tasks of the simulated system."""

    @cached_property
    def app(self) -> App:
        """All of them, registered."""
        app = App("sqlite:///unused.db")
        patient = app.task(max_attempts=8, backoff=Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=8)))
        for act in (self.quick, self.long, self.chooses, self.transfer, self.chunks, self.blocks, self.stubborn):
            patient(self.body(act))
        app.task(max_attempts=4, backoff="3s")(self.body(self.fails))
        app.task(max_attempts=3)(self.body(self.poison))
        app.task(max_attempts=8, timeout="4s", backoff="2s")(self.body(self.timed))
        app.task(max_attempts=3, backoff="2s")(self.body(self.greedy))
        for act_in_thread in (self.threaded, self.deaf):
            patient(self.body_in_thread(act_in_thread))
        app.task(max_attempts=8, backoff="2s", isolation="process")(child)
        app.task(max_attempts=8, name=MALFORMED)(self.body(self.quick))
        app.task(every="13s", name="recurring")(self.body(self.varies))
        app.task(every="11s", align=True, name="grid")(self.body(self.quick))
        app.task(every="17s", name="recurring_transfer")(self.body(self.transfer))
        app.task(every="14s", name="recurring_failing")(self.body(self.fails))
        app.task(every="9s", timeout="4s", name="recurring_timed")(self.body(self.quick))
        return app

    @cached_property
    def declared(self) -> list[NewJob]:
        """What every worker declares at its start, without the ids."""
        return self.app.declarations()

    def body(self, act: Act) -> Any:
        """A task body that reports to the world, with random numbers that depend on the run only."""

        async def body(ctx: Context) -> None:
            world = CURRENT_WORLD.get()
            world.started(ctx)
            try:
                await act(ctx, random.Random(f"{ctx.task}:{ctx.job_id}:{ctx.fence}"))
                world.returned(ctx)
            finally:
                world.ended(ctx)

        body.__name__ = act.__name__
        return body

    def body_in_thread(self, act: Callable[[SyncContext, random.Random], None]) -> Any:
        """The same for a plain function."""

        def body(ctx: SyncContext) -> None:
            world = CURRENT_WORLD.get()
            world.started(ctx)
            try:
                act(ctx, random.Random(f"{ctx.task}:{ctx.job_id}:{ctx.fence}"))
                world.returned(ctx)
            finally:
                world.ended(ctx)

        body.__name__ = act.__name__
        return body

    async def quick(self, _ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1))

    async def long(self, _ctx: Context, rng: random.Random) -> None:
        """Runs longer than its lock, and cleans up before it stops."""
        try:
            await asyncio.sleep(rng.uniform(0, 2.5 * LOCK_TIMEOUT))
        except asyncio.CancelledError:
            await asyncio.sleep(rng.uniform(0, STOP_GRACE))
            raise

    async def varies(self, _ctx: Context, rng: random.Random) -> None:
        """Sometimes longer than a heartbeat, sometimes longer than its own interval."""
        await asyncio.sleep(rng.choice([0.1, 1.0, 4.0, 16.0]))

    async def fails(self, _ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1))
        if rng.random() < 0.6:
            raise ValueError("no luck")

    async def chooses(self, _ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1))
        choice = rng.randrange(5)
        if choice == 0:
            raise Retry("again", delay="2s")
        if choice == 1:
            raise Snooze("3s")
        if choice == 2:
            raise Cancel

    async def transfer(self, ctx: Context, rng: random.Random) -> None:
        await asyncio.sleep(rng.uniform(0, 1.5 * LOCK_TIMEOUT))
        async with ctx.transaction() as tx:
            await tx.execute(EFFECT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence, kind="transfer")
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, 1))
        if rng.random() < 0.2:
            raise ValueError("after the commit")

    async def chunks(self, ctx: Context, rng: random.Random) -> None:
        for _ in range(3):
            async with ctx.transaction(complete=False) as tx:
                await tx.execute(EFFECT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence, kind="chunk")
            await asyncio.sleep(rng.uniform(0, 4))

    async def blocks(self, _ctx: Context, rng: random.Random) -> None:
        """Blocks the whole event loop, as `time.sleep` in an `async def` does."""
        CURRENT_WORLD.get().block_loop(rng.uniform(0, 2 * LOCK_TIMEOUT))
        await asyncio.sleep(0)

    async def timed(self, _ctx: Context, rng: random.Random) -> None:
        """Has a timeout, and sometimes exceeds it."""
        await asyncio.sleep(rng.choice([0.1, 2.0, 3.9, 6.0]))

    async def greedy(self, _ctx: Context, rng: random.Random) -> None:
        """Holds the interpreter's lock for longer than its own lock lasts: not even the heartbeat runs."""
        await asyncio.sleep(rng.uniform(0, 1))
        CURRENT_WORLD.get().starve(1.2 * LOCK_TIMEOUT)
        await asyncio.sleep(2 * LOCK_TIMEOUT)

    async def stubborn(self, _ctx: Context, rng: random.Random) -> None:
        """Does not stop when it is cancelled, and may fail long after another worker has its lock."""
        loop = asyncio.get_running_loop()
        until = loop.time() + rng.uniform(0, 2 * LOCK_TIMEOUT)
        while (left := until - loop.time()) > 0:
            try:
                await asyncio.sleep(left)
            except asyncio.CancelledError:
                continue
        if rng.random() < 0.5:
            raise ValueError("at last")

    def threaded(self, ctx: SyncContext, rng: random.Random) -> None:
        """A plain function that asks now and then whether it may go on."""
        actor = ACTOR.get()
        until = actor.loop.time() + rng.uniform(0, 2.5 * LOCK_TIMEOUT)
        while (left := until - actor.loop.time()) > 0:
            actor.sleep(min(left, STOP_GRACE))
            ctx.check()

    def deaf(self, _ctx: SyncContext, rng: random.Random) -> None:
        """A plain function that never asks, and may fail long after another worker has its lock."""
        ACTOR.get().sleep(rng.uniform(0, 2 * LOCK_TIMEOUT))
        if rng.random() < 0.5:
            raise ValueError("at last")

    async def poison(self, _ctx: Context, rng: random.Random) -> None:
        """Kills its worker."""
        await asyncio.sleep(rng.uniform(0, 2))
        await CURRENT_WORLD.get().crash_here()


WORKLOAD = Workload()
