"""Random durable functions, and those who send them signals.

    job and slot ─► rng ─► a script: steps, transact, sleeps, waits, children, gather; the same at each replay
    job and fence ─► rng ─► how long a step takes, and whether it fails: another one at each run

Their names say what must hold of them: the failure of a `must` step is let through by the body, so it
is never recorded; that of a `may` step is caught.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from reltask import App, Backoff, Cancel, Context
from reltask.errors import Again, AmbiguousError, ChildFailed, StepFailed, TransientError, WaitTimeout
from reltask.model.durable import NewSignal
from reltask.model.job import NewJob
from reltask.producer.enqueue import Call, Enqueuer
from reltask.stores.sqlite.transaction import transaction
from tests.simulation.durable_invariants import DURABLE, DurableInspector
from tests.simulation.workload import CURRENT_WORLD, EFFECT

if TYPE_CHECKING:
    from tests.simulation.world import World  # for types only: the world creates its senders

APP = App("sqlite:///unused.db")
SHORT = Backoff(first=timedelta(seconds=2), cap=timedelta(seconds=8))
SHARE = 0.125
"""The share of histories with durable functions."""
SIGNALS = ("red", "blue")
DEEPEST = 1
"""A durable function may be the child of another one; not of that one."""
SLOTS = 3
"""So often a function starts again, at most."""


def is_durable(seed: int) -> bool:
    """Whether this history has durable functions. Asked without the history's own random numbers."""
    return random.Random(f"durable:{seed}").random() < SHARE


class Op(NamedTuple):
    """One durable call of a script, or several at once."""

    kind: str
    name: str = ""
    seconds: float = 0.0
    """How long a sleep lasts; the timeout of a wait, 0: none."""
    signal: str = ""
    times: int = 1
    """Children, or attempts of a step."""
    child: str = ""
    parts: tuple[Op, ...] = ()


class Script:
    """Makes up what one slot of a function does."""

    def __init__(self, job_id: UUID, slot_no: int, depth: int, *, recurs: bool = False) -> None:
        """`recurs`: its schedule starts it again, and nothing signals it."""
        self.rng = random.Random(f"script:{job_id}:{slot_no}")
        self.depth = depth
        self.recurs = recurs
        self._numbers = 0
        self.ops = [self.op(several=True) for _ in range(self.rng.randint(1, 4))]
        self.tidies_up = self.rng.choice([0.0, 0.0, 0.3])
        """Seconds that its `finally` block takes, at each suspension too."""
        ends = ["return", "return", "return", "cancel", "fail", *["again"] * 3 * (slot_no < SLOTS and not recurs)]
        self.end = self.rng.choice(ends)

    def op(self, *, several: bool) -> Op:
        rng = self.rng
        self._numbers += 1
        must = rng.choice(["must", "may"])
        kinds = [
            "step",
            "step",
            "transact",
            "sleep",
            *(["sleep"] if self.recurs else ["wait", "wait", "run", "start"]),
            *["gather", "gather", "group", "group"] * several,
        ]
        match kind := rng.choice(kinds):
            case "sleep":
                return Op(kind, f"sleep:{self._numbers}", seconds=rng.choice([0.2, 1.5, 6.0, 20.0]))
            case "wait":
                timeout = rng.choice([0.0, 0.0, 0.5, 3.0, 15.0])
                return Op(kind, f"{must}-wait:{self._numbers}", seconds=timeout, signal=rng.choice(SIGNALS))
            case "run" | "start":
                child = rng.choice(["part", "part", "broken", "keyed", *["durable"] * (self.depth < DEEPEST)])
                return Op(kind, f"{must}-{kind}:{self._numbers}", times=rng.choice([1, 1, 2, 3]), child=child)
            case "gather" | "group":
                return Op(kind, parts=tuple(self.part() for _ in range(rng.randint(2, 3))))
        return Op(kind, f"{must}-{kind}:{self._numbers}", times=rng.choice([1, 1, 2]), seconds=rng.choice([0.4, 3.0]))

    def part(self) -> Op:
        """One of several calls at once, sometimes after another one."""
        before = tuple(self.op(several=False) for _ in range(self.rng.choice([0, 0, 1])))
        return self.op(several=False)._replace(parts=before)


class Function:
    """One run of a durable function."""

    def __init__(self, ctx: Context, world: World) -> None:
        self.ctx = ctx
        self.world = world
        self.watch = world.durable.inspector

    async def perform(self, ops: list[Op]) -> None:
        for op in ops:
            if op.kind == "gather":
                await asyncio.gather(*(self.perform([*part.parts, part]) for part in op.parts))
            elif op.kind == "group":
                async with asyncio.TaskGroup() as group:
                    for part in op.parts:
                        group.create_task(self.perform([*part.parts, part]))
            else:
                await self.one(op)

    async def one(self, op: Op) -> None:
        """One durable call. What a `may` call raises is caught."""
        calls: dict[str, Any] = {"step": self.step, "transact": self.transact, "wait": self.wait}
        calls |= {"run": self.run, "start": self.start, "sleep": self.sleep}
        try:
            value = await calls[op.kind](op)
        except (StepFailed, WaitTimeout, ChildFailed):
            if op.name.startswith("must"):
                raise
        else:
            self.watch.saw(self.ctx, op.name, value)

    def luck(self, op: Op) -> random.Random:
        """How a call goes in this run."""
        return random.Random(f"luck:{self.ctx.job_id}:{self.ctx.fence}:{op.name}")

    async def step(self, op: Op) -> int | None:
        luck = self.luck(op)

        async def work() -> int | None:
            self.watch.called(self.ctx, op.name)
            await asyncio.sleep(luck.choice([0.0, 0.0, 0.3, 2.0]))
            if luck.random() < 0.3:
                raise ValueError("no luck")
            return None if luck.random() < 0.3 else self.world.durable.number()

        return await self.ctx.using(attempts=op.times, backoff=timedelta(seconds=op.seconds)).step(op.name, work)

    async def transact(self, op: Op) -> int:
        luck = self.luck(op)

        async def write(tx: Any) -> int:
            self.watch.called(self.ctx, op.name)
            ctx = self.ctx
            await tx.execute(EFFECT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence, kind=op.name)
            await asyncio.sleep(luck.choice([0.0, 0.0, 0.0, 0.2]))
            if luck.random() < 0.2:
                raise ValueError("no luck")
            return self.world.durable.number()

        return await self.ctx.transact(op.name, write)

    async def sleep(self, op: Op) -> None:
        await self.ctx.sleep(op.name, timedelta(seconds=op.seconds))

    async def wait(self, op: Op) -> int:
        timeout = timedelta(seconds=op.seconds) if op.seconds else None
        signal: int = await self.ctx.wait_for(op.signal, timeout=timeout, name=op.name)
        return signal

    async def run(self, op: Op) -> list[object]:
        calls = [call_of(op.child, nth) for nth in range(op.times)]
        results = await self.ctx.run_all(op.name, calls, return_exceptions=op.name.startswith("may"))
        self.watch.got_children(self.ctx, op.name, results, in_order=op.child == "part")
        return [str(result) for result in results]

    async def start(self, op: Op) -> str:
        return str((await self.ctx.start(op.name, call_of(op.child, 0))).id)


def call_of(child: str, nth: int) -> Call[Any]:
    """The nth child. A keyed one may exist already, and is refused then."""
    match child:
        case "durable":
            return durable.call(DEEPEST)
        case "broken":
            return broken.call(nth)
        case "keyed":
            return part.using(key=f"key-{nth}").call(nth)
    return part.call(nth)


async def reported(ctx: Context, work: Awaitable[Any], tidies_up: float = 0.0) -> Any:
    """Run a body, and report its start and its end to the world."""
    world = CURRENT_WORLD.get()
    world.started(ctx)
    try:
        result = await work
        world.returned(ctx)
        return result
    finally:
        try:
            await asyncio.sleep(tidies_up)
        finally:
            world.ended(ctx)


@APP.task(max_attempts=4, backoff=SHORT)
async def durable(ctx: Context, depth: int = 0) -> int:
    """A function of random durable calls."""
    script = Script(ctx.job_id, ctx.slot_no, depth)

    async def work() -> int:
        await Function(ctx, CURRENT_WORLD.get()).perform(script.ops)  # type: ignore[arg-type]  # the world itself
        if script.end == "again":
            raise Again(durable.call(depth))
        if script.end == "cancel":
            raise Cancel
        if script.end == "fail":
            raise ValueError("it always fails")
        return ctx.slot_no

    result: int = await reported(ctx, work(), script.tidies_up)
    return result


@APP.task(every="19s", max_attempts=4, backoff=SHORT)
async def recurring_durable(ctx: Context) -> None:
    """Its steps and sleeps belong to the slot; the next slot counts from the first claim of this one."""
    script = Script(ctx.job_id, ctx.slot_no, DEEPEST, recurs=True)

    async def work() -> None:
        await Function(ctx, CURRENT_WORLD.get()).perform(script.ops)  # type: ignore[arg-type]  # the world itself
        if script.end == "cancel":
            raise Cancel
        if script.end == "fail":
            raise ValueError("it always fails")

    await reported(ctx, work(), script.tidies_up)


@APP.task(max_attempts=8, backoff=SHORT)
async def part(ctx: Context, nth: int) -> list[int]:
    """A child that returns its place, and a number of its own."""
    luck = random.Random(f"part:{ctx.job_id}:{ctx.fence}")

    async def work() -> list[int]:
        await asyncio.sleep(luck.uniform(0, 2))
        if luck.random() < 0.2:
            raise ValueError("no luck")
        return [nth, ctx.fence]

    result: list[int] = await reported(ctx, work())
    return result


@APP.task(max_attempts=2, backoff="1s")
async def broken(ctx: Context, nth: int) -> None:
    """A child that dies; if an operator has it run again, it may succeed."""

    async def work() -> None:
        await asyncio.sleep(0.1)
        if ctx.fence < 3 + nth:
            raise ValueError("it always fails")

    await reported(ctx, work())


class SimEnqueuer(Enqueuer):
    """Starts children with ids from the seed."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(APP._enqueuer.access, rng=rng)

    def new_ids(self, count: int, *, shard: int | None = None) -> list[UUID]:  # noqa: ARG002 - there are none
        return [UUID(int=self._rng.getrandbits(128), version=4) for _ in range(count)]


class RolledBack(Exception):
    """Ends a sender's transaction."""


class Durables:
    """The durable functions of one history: who starts them, signals them, and looks at them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"durables:{world.seed}")
        self.is_on = is_durable(world.seed)
        self.inspector = DurableInspector(world)
        self._numbers = 0
        self._sent: list[NewSignal] = []
        self._disturbing: asyncio.Task[None] | None = None

    def number(self) -> int:
        """A number that no other call has returned."""
        self._numbers += 1
        return self._numbers

    def tasks(self, *, knows_all: bool) -> list[Any]:
        """What a worker knows of them; an older version does not know everything."""
        if not self.is_on:
            return []
        missing = None if knows_all or self.rng.random() < 0.8 else self.rng.choice(DURABLE)
        return [task for task in APP.registry if task.name != missing]

    @property
    def declared(self) -> list[NewJob]:
        """What every worker declares at its start, without the ids."""
        return APP.declarations() if self.is_on else []

    async def begin(self) -> None:
        if not self.is_on:
            return
        for _ in range(self.rng.randint(2, 4)):
            await self.world.enqueue_call(durable.using(delay=self.rng.choice(["0s", "0s", "3s"])).call(0), self.rng)
        self._disturbing = self.world.loop.spawn("world", self.disturb())

    async def disturb(self) -> None:
        """Send signals, and do what operators do with such functions, until the faults end."""
        while True:
            await asyncio.sleep(self.rng.expovariate(1 / 1.5))
            if self.world.quiet:
                return
            (act,) = self.rng.choices([self.signal, self.signal_late, self.poke, self.sweep], weights=[6, 2, 2, 1])
            self.world.note(act.__name__)
            await act()

    # Signals

    def make_signal(self) -> NewSignal | None:
        """One for a function that runs, or has ended; sometimes one that was sent before."""
        if self._sent and self.rng.random() < 0.2:
            return self.rng.choice(self._sent)
        known = sorted(job for job, task in self.world.enqueued.items() if task == "durable")
        if not known:
            return None
        number = self.number()
        signal = NewSignal(
            id=f"signal-{number}", name=self.rng.choice(SIGNALS), value=str(number), job_id=self.rng.choice(known)
        )
        self._sent.append(signal)
        return signal

    async def signal(self) -> None:
        signal = self.make_signal()
        if signal is not None:
            await self.send(signal)

    async def send(self, signal: NewSignal) -> None:
        """A sender whose answer may be lost: it sends the same signal until it gets one."""
        while True:
            try:
                await self.world.client.send_signals([signal])
            except (TransientError, AmbiguousError):
                continue
            break
        self.world.signals.send(None)

    async def signal_late(self) -> None:
        """Sent in a transaction that is committed late, or rolled back."""
        signal = self.make_signal()
        if signal is None:
            return
        with suppress(TransientError, RolledBack):
            async with transaction(self.world.database.check_out(), inline=True) as inner:
                await inner.send_signals([signal])
                await asyncio.sleep(self.rng.uniform(0, 1))
                if self.rng.random() < 0.4:
                    raise RolledBack
                committed = self.world.inspect("commit", ())
            committed(None)
            self.world.signals.send(None)

    # Operators, and the end

    async def poke(self) -> None:
        """Run a suspended function now, or have a dead child run again."""
        rows = [row for row in self.world.inspector.rows().values() if row.task in DURABLE]
        dead = sorted(row.id for row in rows if row.dead_at is not None)
        alive = sorted(row.id for row in rows if row.dead_at is None)
        if dead and self.rng.random() < 0.7:
            await self.world.as_operator(lambda store: store.retry_job(UUID(self.rng.choice(dead))))
        elif alive:
            await self.world.as_operator(lambda store: store.run_job_now(UUID(self.rng.choice(alive))))

    async def sweep(self) -> None:
        """What maintenance does: children whose parent has ended are cancelled."""
        await self.world.as_operator(lambda store: store.cancel_children())

    async def calm(self) -> None:
        """Wait until the last sender and the last operator have an answer."""
        if self._disturbing is not None:
            await self._disturbing

    async def help_on(self) -> None:
        """The faults are over: send what is waited for without a timeout, and sweep."""
        if not self.is_on:
            return
        for job_id, name in self.inspector.unanswered():
            number = self.number()
            await self.send(NewSignal(id=f"signal-{number}", name=name, value=str(number), job_id=UUID(job_id)))
        await self.sweep()
