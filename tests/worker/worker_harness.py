"""What the worker tests share: apps on one SQLite file, in virtual or real time, with a database that can fail.

WorkerHarness ─► app() ─► HarnessApp ─► FaultyStore ─► SqliteStore ─► the test's own file
                              │             └ Faults: what fails, hangs, or loses its answer
                              └ Recorder: every event, and a way to wait for one
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar, cast

from reltask import App
from reltask.errors import AmbiguousError
from reltask.events import Event
from reltask.model.job import ClaimAnswer, ClaimRequest
from reltask.model.views import JobView, RunView
from reltask.stores.sqlite.connections import SqliteOptions
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.store import BATCH, Store, Transaction
from reltask.stores.waking import Cancelled, Ids, LeaseWake, Lost, Wake
from reltask.testing import VirtualTime
from tests.cluster.cluster import slowness

T = TypeVar("T")
E = TypeVar("E", bound=Event)
PATIENCE = 48 * 3600.0
"""A scenario that takes longer than two days of virtual time has failed."""
LIVE_PATIENCE = 30.0
"""A scenario in real time that takes longer than this has failed."""


class Recorder:
    """Every event of an app. Events come from any thread; waiting happens on a loop."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._lock = threading.Lock()
        self._waiters: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def __call__(self, event: Event) -> None:
        with self._lock:
            self.events.append(event)
            for loop, woken in self._waiters:
                with contextlib.suppress(RuntimeError):  # a waiter's loop may have ended
                    loop.call_soon_threadsafe(woken.set)

    def of(self, kind: type[E], **fields: object) -> list[E]:
        """The events of this class with these fields, so far."""
        with self._lock:
            seen = list(self.events)
        return [e for e in seen if isinstance(e, kind) and all(getattr(e, n) == v for n, v in fields.items())]

    async def wait(self, kind: type[E], count: int = 1, **fields: object) -> E:
        """Wait for the `count`-th event of this class with these fields."""
        woken = asyncio.Event()
        waiter = (asyncio.get_running_loop(), woken)
        with self._lock:
            self._waiters.append(waiter)
        try:
            while len(found := self.of(kind, **fields)) < count:
                woken.clear()
                await woken.wait()
        finally:
            with self._lock:
                self._waiters.remove(waiter)
        return found[count - 1]


class Faults:
    """The database's faults. Tests change them while workers run."""

    def __init__(self) -> None:
        self.error: Callable[[], Exception] | None = None
        """Raised by every call, or by those of `verbs`, before anything is sent."""
        self.verbs: set[str] | None = None
        self.hanging: set[str] = set()
        """Verbs that never answer; "*": all of them, as after kill -9."""
        self.losing: Counter[str] = Counter()
        """How many answers of a verb are lost, after it was applied."""
        self.slow: dict[str, float] = {}
        """Seconds that a verb's answer takes."""
        self.calls: Counter[str] = Counter()
        self.sent: list[str] = []
        """The same calls, in order."""
        self.signals = True
        """Whether workers believe that there are signals."""
        self.claims: list[ClaimRequest] = []
        """Every claim that was sent, answered or not."""

    async def before(self, verb: str, *args: Any) -> None:
        self.calls[verb] += 1
        self.sent.append(verb)
        if verb == "claim_jobs":
            self.claims += args
        if {verb, "*"} & self.hanging:
            await asyncio.get_running_loop().create_future()
        if self.error is not None and (self.verbs is None or verb in self.verbs):
            raise self.error()

    async def after(self, verb: str) -> None:
        if verb in self.slow:
            await asyncio.sleep(self.slow[verb])
        if self.losing[verb] > 0:
            self.losing[verb] -= 1
            raise AmbiguousError("the connection broke before the answer came")


class FaultyStore:
    """A real store behind a connection that fails on demand."""

    bulk = BATCH

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def dedicated(self, *, timeout: timedelta, inline: bool = True) -> Store:
        return cast("Store", FaultyStore(self._store.dedicated(timeout=timeout, inline=inline), self._faults))

    @contextlib.asynccontextmanager
    async def listen(
        self,
        wake: Wake,
        lease: LeaseWake | None = None,
        lost: Lost | None = None,
        *,
        cancelled: Cancelled | None = None,
        awaited: Ids | None = None,
        ended: Ids | None = None,
    ) -> AsyncIterator[bool]:
        """There are signals; where the file is not watched, they are all lost."""
        async with self._store.listen(wake, lease, lost, cancelled=cancelled, awaited=awaited, ended=ended):
            yield self._faults.signals

    async def close(self) -> None:
        await self._store.close()

    @contextlib.asynccontextmanager
    async def transaction(self, *, timeout: timedelta) -> AsyncIterator[Transaction]:
        """Its faults are those of the verbs `begin` and `commit`."""
        await self._faults.before("begin")
        async with self._store.transaction(timeout=timeout) as inner:
            yield inner
            await self._faults.before("commit")
        await self._faults.after("commit")

    def __getattr__(self, verb: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        call = getattr(self._store, verb)

        async def sent(*args: Any, **kwargs: Any) -> Any:
            await self._faults.before(verb, *args)
            answer = await call(*args, **kwargs)
            await self._faults.after(verb)
            return answer

        return sent


@contextlib.asynccontextmanager
async def working(app: App) -> AsyncIterator[None]:
    """A worker of an ordinary app, in real time. Its connections are closed afterwards."""
    async with asyncio.timeout(LIVE_PATIENCE * slowness(app.url)), app.worker():
        yield
    await asyncio.to_thread(app.close)


class HarnessApp(App):
    """An app whose events are recorded and whose database can fail."""

    def __init__(self, path: Path, time: VirtualTime | None, *, watch: timedelta | None = None, **options: Any) -> None:
        """`watch`: how often to check the file for others' writes.

        None, as most tests want it: never.
        """
        virtual: dict[str, Any] = {} if time is None else {"clock": time.clock, "now": time.now, "inline": True}
        super().__init__(f"sqlite:///{path}", **virtual, **options)
        self.path = path
        self._watch = watch
        self.log = Recorder()
        self.faults = Faults()
        self.subscribe(self.log)

    def _make_store(self, url: str | None = None, *, inline: bool = False, **_: Any) -> Store:  # noqa: ARG002
        return cast("Store", FaultyStore(self.sound_store(inline=inline), self.faults))

    def sound_store(self, *, inline: bool = False) -> Store:
        """A store without faults."""
        options = SqliteOptions(synchronous="normal", watch=self._watch)
        inline = inline or self._inline
        return SqliteStore(str(self.path), options=options, now=self._now, inline=inline, clock=self._clock)

    @contextlib.asynccontextmanager
    async def frozen_worker(self) -> AsyncIterator[None]:
        """A worker that is dead for the database when the block ends: nothing it holds is released."""
        started = asyncio.Event()
        life = asyncio.create_task(self._live(started))
        await started.wait()
        yield
        self.faults.hanging.add("*")
        life.cancel()

    async def _live(self, started: asyncio.Event) -> None:
        async with self.worker():
            started.set()
            await asyncio.get_running_loop().create_future()

    async def one_job(self, task: str | None = None) -> JobView:
        """The only job."""
        (job,) = await self.jobs(task=task)
        return job

    async def ledger(self, task: str | None = None) -> list[RunView]:
        """Every run that has ended, oldest first."""
        return sorted(await self.runs(task=task, limit=10_000), key=lambda run: (run.slot_no, run.fence))

    async def outcomes(self, task: str | None = None) -> list[str]:
        return [str(run.outcome) for run in await self.ledger(task)]

    async def drain(self) -> None:
        """Run everything that is due now to its end."""
        async with self.worker() as worker:
            await worker.drained()


class WorkerHarness:
    """A database file, a seed, and optionally a virtual clock."""

    def __init__(self, path: Path, time: VirtualTime | None = None) -> None:
        self.path = path
        self.time = time
        self._seeds = iter(range(1, 1_000))

    def app(self, *, settings: dict[str, object] | None = None, **options: Any) -> HarnessApp:
        """One more app on this database.

        It takes part in the maintenance only if a test asks for it.
        """
        given = {"worker.shutdown_grace": "0s", "maintenance.coordination": "off", **(settings or {})}
        return HarnessApp(self.path, self.time, settings=given, rng=random.Random(next(self._seeds)), **options)

    @property
    def clock(self) -> VirtualTime:
        assert self.time is not None
        return self.time

    def now(self) -> datetime:
        """The database's time."""
        return self.clock.now()

    def seconds(self) -> float:
        """Monotonic time."""
        return self.clock.clock.monotonic()

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a scenario in virtual time."""

        async def limited() -> T:
            async with asyncio.timeout(PATIENCE):
                return await scenario

        return self.clock.run(limited())

    async def claim_as(self, name: str, app: HarnessApp, *, limit: int = 10, **fields: Any) -> ClaimAnswer:
        """Claim as another worker that never sends anything again."""
        store = app.sound_store()
        await store.open()
        request = {
            "worker": name,
            "token": app._enqueuer.new_ids(1)[0],
            "queues": ["default"],
            "tasks": app.registry.names(),
            "limit": limit,
            "lock_timeout": timedelta(minutes=2),
            "isolated": True,
            "alive_for": timedelta(minutes=1),
        }
        try:
            return await store.claim_jobs(ClaimRequest(**{**request, **fields}))
        finally:
            await store.close()
