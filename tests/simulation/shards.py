"""Workers that serve three shards in virtual time, one of which is away now and then.

    world      enqueues jobs on all shards, takes one shard away, brings it back
    workers    two, one to three places each, over one SQLite file per shard
    the line   delays every call; of a shard that is away it refuses calls, or swallows them, or only the answers

Rules: no worker runs more bodies than it has places, in all and of one queue; every slot ends once; a
job on a shard that answers begins soon after it is due, whatever the other shards do; in the end
everything has run.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

from reltask import App
from reltask.errors import AmbiguousError, TransientError
from reltask.model.job import NewJob
from reltask.model.settings import LimitSettings, WorkerSettings
from reltask.model.shards import Here, Placement, numbered
from reltask.service import LoopHost
from reltask.stores.sqlite.connections import SqliteOptions
from reltask.stores.sqlite.store import SqliteStore
from reltask.worker.places import Room
from reltask.worker.shards import ShardedWorker
from reltask.worker.worker import Worker
from tests.simulation.loop import SimLoop

SHARDS = 3
JOBS = 45
BURST = 5
"""Jobs that become due at once."""
LENGTH = 60.0
"""Seconds in which jobs become due."""
TIMEOUT = 8.0
"""Seconds after which a call that is not answered fails."""
FEW = "few"
"""A queue of which a worker runs one body at a time, whatever its shard."""
SOON = 3.0
"""Seconds after which a job on a shard that answers must have begun: a poll, a reservation, and others' bodies."""
START = datetime(2025, 1, 1, tzinfo=UTC)
Mode = Literal["here", "refuses", "swallows", "loses answers"]


class Violation(Exception):
    """A rule was broken."""


class ShakyStore:
    """A store behind a line that delays, and fails while its shard is away."""

    def __init__(self, inner: Any, world: ShardWorld, shard: int) -> None:
        self._inner = inner
        self._world = world
        self._shard = shard

    def dedicated(self, **options: Any) -> Any:
        return ShakyStore(self._inner.dedicated(**options), self._world, self._shard)

    def __getattr__(self, verb: str) -> Any:
        found = getattr(self._inner, verb)
        if verb in ("listen", "close", "bulk", "borrow", "transaction"):
            return found

        async def call(*args: Any, **named: Any) -> Any:
            await asyncio.sleep(self._world.rng.uniform(0.001, 0.02))
            mode = self._world.modes[self._shard]
            if mode == "refuses":
                raise TransientError("refused")
            if mode == "swallows":
                await asyncio.sleep(TIMEOUT)
                raise TransientError("no answer")
            answer = await found(*args, **named)
            if mode == "loses answers":
                await asyncio.sleep(TIMEOUT)
                raise AmbiguousError("the answer was lost")
            return answer

        return call


class ShardWorld:
    """One history."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.rng = random.Random(seed)
        self.loop = SimLoop(random.Random(seed + 1))
        self.directory = directory
        self.modes: list[Mode] = ["here"] * SHARDS
        self._ends: Counter[UUID] = Counter()
        self._places: dict[str, int] = {}
        self._broken: list[str] = []
        self._begun: dict[UUID, float] = {}
        self._due: dict[UUID, tuple[int, float]] = {}
        self._here_since = [0.0] * SHARDS
        self.app = App("sqlite:///unused.db")
        self.app.task(name="work")(self._body())

    def _body(self) -> Any:
        async def work(x: int) -> int:
            await asyncio.sleep(0.05 * (x % 10))
            return x

        return work

    # Time

    def now(self) -> datetime:
        return START + timedelta(seconds=self.loop.time())

    def monotonic(self) -> float:
        return self.loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    # Stores and workers

    def store(self, shard: int) -> SqliteStore:
        options = SqliteOptions(synchronous="normal", confirm_stale=timedelta(0), watch=None)
        return SqliteStore(str(self.directory / f"{shard}.db"), now=self.now, inline=True, options=options, clock=self)

    def worker(self, name: str) -> ShardedWorker:
        places = self._places[name] = self.rng.choice([1, 2, 3])
        settings = WorkerSettings(
            concurrency=places,
            queues=("default", FEW),
            queue_concurrency={FEW: 1},
            poll=timedelta(seconds=20),
            lock_timeout=timedelta(seconds=20),
        )
        placement = Placement(range(SHARDS), self.rng)

        def make(number: int, room: Room) -> Worker:
            store: Any = ShakyStore(self.store(number), self, number)
            return Worker(
                store,
                self.app.registry,
                settings=settings,
                limits=LimitSettings(),
                clock=self,
                rng=self.rng,
                emit=lambda event: self._saw(name, room, event),
                beater_host=LoopHost,
                identity=name,
                here=Here(number, placement),
                room=room,
            )

        return ShardedWorker(make, range(SHARDS), self.store(0), clock=self, emit=lambda _: None)

    def _saw(self, name: str, room: Room, event: Any) -> None:
        running = Counter(run.claim.queue for run in room.bodies if run.stop_reason is None)
        if running.total() > self._places[name]:
            self._broken.append(f"{name} has {self._places[name]} places and runs {running.total()} bodies")
        if running[FEW] > 1:
            self._broken.append(f"{name} has one place for the queue {FEW!r} and runs {running[FEW]} bodies of it")
        if type(event).__name__ == "RunStarted":
            self._begun.setdefault(event.job_id, self.loop.time())

    # The history

    def run(self) -> None:
        """Play it; Violation if a rule is broken."""
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._play())
        finally:
            asyncio.set_event_loop(None)
            self.loop.close()

    async def _play(self) -> None:
        stores = [self.store(shard) for shard in range(SHARDS)]
        for number, store in enumerate(stores):
            await store.open()
            await store.mark_shard(number)
        workers = [self.worker(f"w{n}") for n in range(2)]
        for worker in workers:
            await worker.start()
        await asyncio.gather(self._enqueue(stores, workers), self._disturb(), self._watch())
        await asyncio.sleep(60.0)
        for worker in workers:
            await worker.stop()
        for store in stores:
            for run in await store.list_runs(limit=1000):
                if run.outcome == "succeeded":
                    self._ends[run.job_id] += 1
            await store.close()
        ended = {job_id: self._ends[job_id] for job_id in self._due}
        if set(ended.values()) != {1}:
            self._broken.append(f"ends by job: {Counter(ended.values())}")
        if self._broken:
            raise Violation(self._broken[0])

    async def _enqueue(self, stores: list[SqliteStore], workers: list[ShardedWorker]) -> None:
        for n in range(JOBS):
            if n % BURST == 0:
                await asyncio.sleep(BURST * LENGTH / JOBS)
            shard = self.rng.randrange(SHARDS)
            job_id = numbered(UUID(int=self.rng.getrandbits(128), version=4), shard)
            self._due[job_id] = shard, self.loop.time()
            queue = self.rng.choice(["default", FEW])
            await stores[shard].enqueue_jobs([NewJob(id=job_id, task="work", queue=queue, args=f'{{"x":{n}}}')])
            for worker in workers:
                worker._workers[shard].wake()  # as a signal of that shard does

    async def _disturb(self) -> None:
        """Take one shard away at a time."""
        while self.loop.time() < LENGTH:
            await asyncio.sleep(self.rng.uniform(2, 8))
            shard = self.rng.randrange(SHARDS)
            mode: Mode = self.rng.choice(["refuses", "swallows", "loses answers"])
            self.modes[shard] = mode
            await asyncio.sleep(self.rng.uniform(2, 15))
            self.modes[shard] = "here"
            self._here_since[shard] = self.loop.time()

    async def _watch(self) -> None:
        """A job on a shard that has answered for a while has begun soon after it was due."""
        while self.loop.time() < LENGTH:
            await asyncio.sleep(0.5)
            for job_id, (shard, due) in self._due.items():
                if job_id in self._begun or self.modes[shard] != "here":
                    continue
                # After an outage an engine may still wait for an answer, and then for ten seconds until it looks.
                back = self._here_since[shard] and self._here_since[shard] + TIMEOUT + 10.0
                waits = self.loop.time() - max(due, back)
                if waits > SOON:
                    raise Violation(f"a job on shard {shard}, which answers, has waited {waits:.1f} s")
