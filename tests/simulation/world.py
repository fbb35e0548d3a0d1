"""Processes, faults and operators over one SQLite file: one seed, one history."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
from collections import Counter
from datetime import datetime, timedelta
from functools import cached_property
from math import inf
from typing import Any
from unittest import mock
from uuid import UUID

import msgspec

from reltask import Context, events
from reltask.errors import AmbiguousError, DatabaseError, TransientError
from reltask.model.job import NewJob
from reltask.model.settings import LimitSettings, MaintenanceSettings, WorkerSettings
from reltask.model.task import Registry
from reltask.producer.enqueue import Call
from reltask.producer.options import JobOptions
from reltask.resilience import Policy
from reltask.service import Host, Service
from reltask.stores.sqlite.values import micros
from reltask.worker import process as process_body
from reltask.worker.worker import Worker
from tests.simulation.actors import CHILDREN, THREADS, SimPosix, SimThreads
from tests.simulation.database import START, Database
from tests.simulation.durable import Durables, SimEnqueuer
from tests.simulation.faults import Faults
from tests.simulation.invariants import Auditor, Body, Disturbance, Inspector, Reports, Violation
from tests.simulation.limits import Limits
from tests.simulation.loop import PROCESS, SimLoop
from tests.simulation.malformed import has_malformed
from tests.simulation.network import HeldRows, Line, Signals, SimStore, Trouble
from tests.simulation.workload import (
    CURRENT_WORLD,
    ELSEWHERE,
    LOCK_TIMEOUT,
    ONE_OFFS,
    WORKLOAD,
    RunFacts,
    child_acts,
    has_elsewhere,
)

HELD_AT_LAST = 0.25
"""The share of histories that end with rows held by another session, and no other fault."""
AFTERMATH = {False: 8.0, True: 60.0}
"""Seconds for which an outage delays outcomes, without and with the pauses of retries and of a circuit breaker."""
QUIET_LIMIT = 3600.0
QUIET_LOOK = 2.0
"""Seconds between two checks, after the last fault, whether every due slot has ended."""
QUIET_LOOKS = {True: 4, False: 6}
"""A job that a worker could run may be found waiting at this many checks in a row, with and without signals: without
them the living wait for the turns of those that have died, half a second for each."""
CONCURRENCIES = (1, 4, 4, 4, 200)
"""With 200 a worker claims in two halves: bodies begin while the next claim is on its way."""
SETTINGS = WorkerSettings(
    concurrency=4,
    poll=timedelta(seconds=20),
    lock_timeout=timedelta(seconds=LOCK_TIMEOUT),
    shutdown_grace=timedelta(seconds=3),
)


MAINTAINED = 0.125
"""The share of histories whose workers do the maintenance, too."""
MAINTENANCE = MaintenanceSettings(
    lease_ttl=timedelta(seconds=6),
    reclaim=timedelta(seconds=5),
    dead_workers=timedelta(seconds=5),
    roll_up=timedelta(seconds=6),
    prune=timedelta(seconds=7),
)


def has_maintenance(seed: int) -> bool:
    """Whether workers do it in this history. Asked without the history's own random numbers."""
    return random.Random(f"maintenance:{seed}").random() < MAINTAINED


class SimClock:
    """Monotonic time of the simulated machine."""

    def __init__(self, loop: SimLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimHost(Host):
    """Runs the heartbeats as a separate process, which can be paused apart from the worker's loop."""

    def __init__(self, service: Service, loop: SimLoop, process: str) -> None:
        super().__init__(service)
        self._loop = loop
        self._process = process
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = self._loop.spawn(self._process, self.service.run())

    async def stop(self) -> None:
        self.service.finish()
        if self._task is not None:
            await self._task


class Node:
    """One worker process, from its start to its end."""

    def __init__(self, name: str, rng: random.Random) -> None:
        self.name = name
        self.beat = f"{name}/beat"
        self.rng = rng
        self.line = Line(rng)
        self.threads: SimThreads
        self.healthy_since = -inf
        """When it was started, if that was after the last fault."""
        self.worker: Worker
        self.alive = True
        self.wall_offset = timedelta(0)

    @property
    def parts(self) -> tuple[str, ...]:
        """Its event loop, the thread that beats, and its bodies elsewhere."""
        return (self.name, self.beat, f"{self.name}/{THREADS}", f"{self.name}/{CHILDREN}")


def node_of(process: str) -> str:
    """The node that a process is a part of."""
    return process.partition("/")[0]


class Errors(logging.Handler):
    """An error in the log that no task body raised is a finding."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        error = None if record.exc_info is None else record.exc_info[1]
        if error is not None and not isinstance(error, Violation):
            self._world.remember(Violation("no unforeseen error", repr(error)))


class World:
    """The whole history of one seed."""

    def __init__(self, seed: int, database: Database) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.loop = SimLoop(random.Random(self.rng.getrandbits(64)))
        self.clock = SimClock(self.loop)
        self.database = database
        self.database.now = self.now
        self.start = START
        self.clock_jumped = False
        self.behind_until = 0.0
        """When the database's clock shows again what it had shown before it was set back: until then marks wait."""
        self.inspector = Inspector(database.query, self.micros)
        self.reports = Reports()
        self.app = WORKLOAD.app
        self.signals = Signals(enabled=self.rng.random() < 0.7)
        self.nodes: list[Node] = []
        self.bodies: list[Body] = []
        self.open_bodies: dict[tuple[UUID, int], tuple[str, str, float]] = {}
        self.begun_late: list[Body] = []
        """Bodies on the loop that began when their locks had ended."""
        self.claimed: dict[tuple[UUID, int], float] = {}
        self.freed_late: dict[UUID, float] = {}
        """Jobs freed by a statement that arrived after its sender's end, and when: nothing signals them, so without
        a leader, who would look every second, they wait for a poll."""
        """When each claim was executed."""
        self.finished: dict[tuple[UUID, int], tuple[str, str, float]] = {}
        """Bodies that returned: task, process and time."""
        self.disturbances: list[Disturbance] = []
        self.troubles: list[Disturbance] = []
        """When a process's way to the database was disturbed, other than for its settlements."""
        self.unwritable: list[Disturbance] = []
        """When a process could not write its settlements, for any reason but a held row."""
        self.held: list[tuple[Disturbance, HeldRows]] = []
        """When another session held rows that a process wrote, and which."""
        self.has_malformed = has_malformed(seed)
        self.database.check_constraints(not self.has_malformed)
        self.one_offs = (*ONE_OFFS, *4 * ELSEWHERE) if has_elsewhere(seed) else ONE_OFFS
        self.has_maintenance = has_maintenance(seed)
        self.has_policies = self.rng.random() < 0.5
        self.enqueued: dict[UUID, str] = {}
        self.discarded: set[UUID] = set()
        self.faults: Counter[str] = Counter()
        self.quiet = False
        self.violation: Violation | None = None
        self.notes: list[tuple[object, ...]] = []
        self.errors = Errors(self)
        self.misfortunes = Faults(self)
        self._numbers = 0
        self.durable = Durables(self)
        self.limits = Limits(self)

    # Time

    def now(self) -> datetime:
        """The database's clock."""
        return self.start + timedelta(seconds=self.loop.time())

    def micros(self) -> int:
        return micros(self.now())

    # What bodies do (workload.WorldForBodies)

    def started(self, ctx: RunFacts) -> None:
        process = node_of(PROCESS.get())
        self.note("start", ctx.task, ctx.fence, process)
        key, at = (ctx.job_id, ctx.fence), self.loop.time()
        self.open_bodies[key] = (ctx.task, process, at)
        row = self.inspector.rows().get(str(ctx.job_id))
        lock_end = row.lock_expires_at if row is not None and row.fence == ctx.fence else None
        if isinstance(ctx, Context) and (lock_end is None or lock_end <= self.micros()):
            self.begun_late.append(Body(ctx.task, *key, process, at, at, self.claimed[key]))

    def ended(self, ctx: RunFacts) -> None:
        key = (ctx.job_id, ctx.fence)
        if key in self.open_bodies:
            task, process, started = self.open_bodies.pop(key)
            self.bodies.append(Body(task, *key, process, started, self.loop.time(), self.claimed[key]))

    def block_loop(self, seconds: float) -> None:
        process = PROCESS.get()
        if not self.quiet:
            self.pause([process], seconds)

    def starve(self, seconds: float) -> None:
        """Pause the whole process, as code does that holds the interpreter's lock."""
        process = PROCESS.get()
        self.pause([process, f"{process}/beat"], seconds)

    def returned(self, ctx: RunFacts) -> None:
        self.finished[ctx.job_id, ctx.fence] = (ctx.task, node_of(PROCESS.get()), self.loop.time())

    async def crash_here(self) -> None:
        process = PROCESS.get()
        node = next(node for node in self.nodes if node.name == process)
        self.loop.spawn("world", self.crash(node))
        await asyncio.sleep(3600)

    # Running

    def run(self) -> None:
        """Run the whole history of this seed, or raise a Violation."""
        logger = logging.getLogger("reltask")
        logger.propagate = False
        logger.addHandler(self.errors)
        token = CURRENT_WORLD.set(self)
        children = mock.patch.object(process_body, "posix", SimPosix(child_acts))
        children.start()
        try:
            self.loop.run_until_complete(self.loop.create_task(self.history()))
            self.audit()
        except RuntimeError as error:  # the loop was stopped by a violation, or by an error that is one
            raise self.violation or error from None
        finally:
            logger.removeHandler(self.errors)
            logger.propagate = True
            for node in self.nodes:
                self.close_connections(node)
            self.loop.close()
            for node in self.nodes:
                node.threads.finish()
            children.stop()
            self.database.empty()
            CURRENT_WORLD.reset(token)

    async def history(self) -> None:
        await self.enqueue(self.rng.randint(6, 12))
        await self.durable.begin()
        await self.limits.begin()
        for _ in range(self.rng.randint(1, 4)):
            self.start_node()
        end = self.loop.time() + self.rng.uniform(20, 42)
        while self.loop.time() < end:
            await asyncio.sleep(self.rng.expovariate(1 / 2.6))
            await self.misfortunes.strike()
        await self.heal()

    def audit(self) -> None:
        for key, (task, process, started) in self.open_bodies.items():
            self.bodies.append(Body(task, *key, process, started, self.loop.time(), self.claimed[key]))
        auditor = Auditor(self.inspector, self.reports, self.bodies, self.disturbances)
        if not self.clock_jumped:
            held = [disturbance for disturbance, _ in self.held]
            auditor.finished_bodies_keep_their_claims(self.finished, [*self.troubles, *held])
            aftermath = AFTERMATH[self.has_policies]
            auditor.outcomes_are_recorded_soon(self.finished, self.excuses, aftermath)
        auditor.bodies_begin_within_their_locks(self.begun_late)
        auditor.audit(enqueued=self.enqueued, discarded=self.discarded, clock_jumped=self.clock_jumped)

    def excuses(self, job_id: UUID, process: str) -> list[Disturbance]:
        """What may delay the outcome of a run of this job. To a process that is healthy, nothing earlier matters."""
        held = [disturbance for disturbance, rows in self.held if rows.has_been(job_id)]
        since = next((node.healthy_since for node in self.nodes if node.name == process), -inf)
        return [cause for cause in (*self.unwritable, *self.disturbances, *held) if cause.started >= since]

    def note(self, *what: object) -> None:
        """Add an event to the hash, so that two runs of a seed can be compared."""
        self.notes.append((self.loop.time(), *what))

    def trace(self) -> str:
        """The hash of everything that happened."""
        return hashlib.sha256(repr(self.notes).encode()).hexdigest()

    def remember(self, violation: Violation) -> None:
        """An error inside a worker must not be lost with its task: it ends the history."""
        self.violation = self.violation or violation
        self.loop.stop()

    # Processes

    def start_node(self, *, knows_all: bool = False) -> Node:
        self._numbers += 1
        node = Node(f"w{self._numbers}", random.Random(self.rng.getrandbits(64)))
        node.threads = SimThreads(self.loop, node.name)
        if self.quiet:
            node.healthy_since = self.loop.time()
        node.worker = self.make_worker(node, knows_all=knows_all)
        self.nodes.append(node)
        self.note("node", node.name)
        self.loop.spawn(node.name, self.live(node))
        return node

    def make_worker(self, node: Node, *, knows_all: bool) -> Worker:
        return Worker(
            self.store(node, policy=Policy(clock=self.clock, rng=node.rng) if self.has_policies else None),
            self.some_tasks(knows_all=knows_all),
            settings=msgspec.structs.replace(SETTINGS, concurrency=node.rng.choice(CONCURRENCIES)),
            limits=LimitSettings(),
            clock=self.clock,
            rng=node.rng,
            emit=lambda event: self.heard(node, event),
            emit_soon=lambda event: self.heard_soon(node, event),
            schedules=self.declarations(),
            beater_host=lambda service: SimHost(service, self.loop, node.beat),
            identity=node.name,
            enqueuer=SimEnqueuer(node.rng),
            pool=node.threads,
            maintenance=MAINTENANCE if self.has_maintenance else None,
        )

    def store(self, node: Node, policy: Policy | None = None) -> SimStore:
        return SimStore(
            self.database,
            line=node.line,
            clock=self.clock,
            inspect=self.inspect,
            timeout=2.0,
            land=lambda work: self.loop.spawn("world", work),
            signals=self.signals,
            policy=policy,
        )

    def some_tasks(self, *, knows_all: bool) -> Registry:
        """An older version of the app does not know every task."""
        registry = Registry()
        missing = set() if knows_all or self.rng.random() < 0.7 else {self.rng.choice(self.one_offs)}
        for task in self.app.registry:
            if task.name not in missing:
                registry.add(task)
        for task in (*self.durable.tasks(knows_all=knows_all), *self.limits.tasks(knows_all=knows_all)):
            registry.add(task)
        return registry

    def declarations(self) -> list[NewJob]:
        return [
            msgspec.structs.replace(job, id=UUID(int=self.rng.getrandbits(128), version=4))
            for job in (*WORKLOAD.declared, *self.durable.declared)
        ]

    async def live(self, node: Node) -> None:
        """Start, and try again until it works, as a supervisor would."""
        while True:
            try:
                await node.worker.start()
            except (TransientError, AmbiguousError):
                await asyncio.sleep(1)
            else:
                return

    def inspect(self, verb: str, args: tuple[Any, ...]) -> Any:
        check = self.inspector(verb, args)

        def after(answer: Any) -> None:
            self.note(verb, PROCESS.get(), len(answer) if hasattr(answer, "__len__") else 0)
            if verb in ("claim_jobs", "claim_limited"):
                self.claimed.update({(claim.job_id, claim.fence): self.loop.time() for claim in answer.claims})
            if verb in ("fail_jobs", "release_jobs", "suspend_jobs") and args[0] not in {n.name for n in self.living()}:
                self.freed_late.update({one.hold.job_id: self.loop.time() for one in answer})
            if verb == "commit" and args:
                self.enqueued.update({job.id: job.task for job in args[0]})
            try:
                check(answer)
                if self.durable.is_on:
                    self.durable.inspector(verb, args, answer)
                if self.limits.is_on:
                    self.limits.inspector(verb, args, answer)
            except Violation as violation:
                self.remember(violation)
                raise

        return after

    def heard(self, node: Node, event: events.Event) -> None:
        self.note("event", node.name, type(event).__name__)
        try:
            self.reports(event)
            if isinstance(event, events.LateWriteRefused) or (
                isinstance(event, events.RunAbandoned) and "another worker" in event.reason
            ):
                self.inspector.is_not_held(node.name, event)
        except Violation as violation:
            self.remember(violation)
            raise

    def heard_soon(self, node: Node, event: events.Event) -> None:
        """Events of the heartbeat's thread reach subscribers elsewhere: one that blocks does not block it."""
        self.loop.spawn("world", self.hear(node, event))

    async def hear(self, node: Node, event: events.Event) -> None:
        self.heard(node, event)

    async def crash(self, node: Node) -> None:
        """SIGKILL: no further step, connections closed, transactions rolled back.

        Its requests may still arrive.
        """
        if not node.alive:
            return
        node.alive = False
        self.faults["crash"] += 1
        self.troubles.append(Disturbance(node.name, self.loop.time(), float("inf")))
        self.unwritable.append(self.troubles[-1])
        self.note("crash", node.name)
        for process in node.parts:
            self.loop.kill(process)
        self.close_connections(node)
        for key, (task, process, started) in list(self.open_bodies.items()):
            if process == node.name:
                self.bodies.append(Body(task, *key, process, started, self.loop.time(), self.claimed[key]))
                del self.open_bodies[key]
        await asyncio.sleep(self.rng.uniform(0, LOCK_TIMEOUT))
        self.start_node(knows_all=self.quiet)

    def close_connections(self, node: Node) -> None:
        for transaction in node.line.open_transactions:
            transaction.connection.close()

    # Paused processes and operators

    async def leave(self, node: Node) -> None:
        node.alive = False
        self.troubles.append(Disturbance(node.name, self.loop.time(), float("inf")))
        self.unwritable.append(self.troubles[-1])
        await node.worker.stop()
        if not self.quiet:
            self.start_node()

    def living(self) -> list[Node]:
        return [node for node in self.nodes if node.alive]

    def pause(self, processes: list[str], seconds: float) -> None:
        self.faults["pause"] += 1
        owner = node_of(processes[0])
        if {owner, f"{owner}/beat"}.issubset(processes):  # then no thread of it runs; children do
            processes = [*processes, f"{owner}/{THREADS}"]
        until = self.loop.time() + seconds
        self.disturbances.append(Disturbance(owner, self.loop.time(), until))
        if any(node.line.open_transactions for node in self.nodes if node.name == owner):
            # a process that is paused while it is SQLite's writer keeps all others from writing: docs/promises.md
            self.troubles.append(Disturbance("*", self.loop.time(), until + LOCK_TIMEOUT))
            self.unwritable.append(Disturbance("*", self.loop.time(), until))
        for process in processes:
            self.note("pause", process, seconds)
            self.loop.pause(process)
        self.loop.spawn("world", self.resume_later(processes, seconds))

    async def resume_later(self, processes: list[str], seconds: float) -> None:
        await asyncio.sleep(seconds)
        for process in processes:
            self.loop.resume(process)

    async def as_operator(self, work: Any) -> Any:
        """An operator with a separate connection, who tries again while the database is busy."""
        node = Node("operator", self.rng)
        store = self.store(node)
        try:
            while True:
                try:
                    return await work(store)
                except TransientError:
                    await asyncio.sleep(0.5)
        finally:
            await store.close()

    async def enqueue(self, count: int) -> None:
        for _ in range(count):
            await self.enqueue_one(self.rng.choice(self.one_offs))

    async def enqueue_one(self, task: str) -> None:
        """A client whose answer may be lost: it sends the same job, with the same id, until it gets one."""
        options = JobOptions(priority=self.rng.randrange(10), delay=timedelta(seconds=self.rng.choice([0, 0, 2, 20])))
        await self.enqueue_call(Call(self.app.registry.get(task), "{}", options), self.rng)

    async def enqueue_call(self, call: Call[Any], rng: random.Random) -> None:
        job = call.job(UUID(int=rng.getrandbits(128), version=4))
        while True:
            try:
                await self.client.enqueue_jobs([job])
            except DatabaseError:
                job = self.again(job)
            else:
                break
        self.enqueued[job.id] = job.task

    @cached_property
    def client(self) -> SimStore:
        node = Node("client", random.Random(self.rng.getrandbits(64)))
        node.line.trouble, node.line.share = Trouble.ANSWER_LOST, 0.2
        return self.store(node)

    def again(self, job: NewJob) -> NewJob:
        """What a client sends if it does not know whether its job arrived: the same job again."""
        return job

    # The end

    async def heal(self) -> None:
        """All faults end; healthy workers know every task; every due slot must reach a recorded end."""
        self.quiet = True
        self.note("heal")
        for node in self.nodes:
            node.line.trouble = Trouble.NONE
            for process in node.parts:
                self.loop.resume(process)
        await self.durable.calm()
        await self.limits.calm()
        await self.as_operator(self.resume_all)
        for node in self.living()[1:]:
            if node.worker.started:
                self.loop.spawn(node.name, self.leave(node))
        node = self.start_node(knows_all=True)
        if self.rng.random() < HELD_AT_LAST:
            self.misfortunes.hold_rows(node, seconds=2 * LOCK_TIMEOUT)
        await self.all_ended()
        for node in self.living():
            node.alive = False
            if node.worker.started:
                await self.loop.spawn(node.name, node.worker.stop())

    async def all_ended(self) -> None:
        """Wait for the end of every due slot."""
        limit = self.loop.time() + QUIET_LIMIT
        waiting: Counter[tuple[str, int]] = Counter()
        while self.unfinished():
            if self.loop.time() > limit:
                raise Violation("no slot is lost", f"unfinished after {QUIET_LIMIT} s: {self.unfinished()}")
            claimable = self.claimable()
            waiting = Counter({key: waiting[key] + 1 for key in claimable})
            if waiting and max(waiting.values()) > QUIET_LOOKS[self.signals.enabled]:
                raise Violation("nothing waits that need not", f"{[claimable[key] for key in waiting]}")
            await self.durable.help_on()
            await self.limits.help_on()
            await asyncio.sleep(QUIET_LOOK)

    async def resume_all(self, store: Any) -> None:
        for job_id in sorted(self.inspector.rows()):
            await store.resume_job(UUID(job_id))
        for pause in await store.list_pauses():
            await store.end_pause(pause.kind, pause.name)
        await store.signal()

    def claimable(self) -> dict[tuple[str, int], str]:
        """Due jobs that a healthy worker with a free place could run now."""
        now, is_on_time = self.micros(), self.loop.time() > self.behind_until
        able = [node for node in self.living() if not self.loop.is_paused(node.name) and not node.line.looks_under_way]
        workers = [node.worker for node in able if node.worker.started]
        free = [worker for worker in workers if worker._places.free > 0 and not worker._poller._failures]
        marks = self.durable.inspector.marks(now) if free and is_on_time else {}
        return marks | {
            (row.id, row.fence): f"{row.task} {row.id}"
            for row in self.inspector.rows().values()
            if row.locked_by is None and row.dead_at is None and row.paused_at is None and row.due_at < now
            if not self.inspector.is_paused(row.task)
            if row.limit_key is None or (is_on_time and self.limits.inspector.may_start(row.id))
            if self.loop.time() - self.freed_late.get(UUID(row.id), -inf) > SETTINGS.poll.total_seconds()
            if any(
                row.task in worker._registry.tasks and not (row.isolated and worker._places._isolated)
                for worker in free
            )
        }

    def unfinished(self) -> list[str]:
        """Jobs that should have ended or be running, and are not."""
        now = self.micros()
        return [
            f"{row.task} {row.id}"
            for row in self.inspector.rows().values()
            if row.dead_at is None
            and (
                row.schedule is None
                or row.due_at < now - 20_000_000
                or (row.id, row.slot_no) in self.inspector.cancelled
            )
        ]
