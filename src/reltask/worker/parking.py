"""Where the durable calls of one run wait, and when the run is suspended.

    park ─► every durable call under way is parked, and stays so for QUIET seconds and TURNS turns of the loop
              ▼
            look: read wake_seq, signals and ends of children in one statement
              ├─ something has come, or a time is over ─► that call goes on
              ├─ a call has begun or ended meanwhile ───► nothing: the body goes on
              └─ nothing ─► suspend: cancel the body, end the run with the wake_seq that was seen

While other calls work, the run looks now and then, and when a parked call's time is over.
"""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

from msgspec import Struct

from reltask.errors import AccessRefused, AmbiguousError, LockLost, Stopped, TransientError, UsageError
from reltask.model.clock import Clock
from reltask.model.durable import ChildEnd, SignalView, Waits
from reltask.model.job import Suspension
from reltask.model.task import TaskKind
from reltask.stores.store import Store
from reltask.worker.journal import LOST, TURNS, Caller, Journal, calling
from reltask.worker.run import Run, StopReason

QUIET = 0.005
"""Seconds for which every call must be parked before the run looks."""
SHORT = timedelta(seconds=1)
"""A wait that ends this soon keeps its place: to suspend and to be claimed again costs more."""
LOOKS = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
"""Seconds between looks while other calls work."""
SOONEST = 0.001
"""Seconds until a look at a wake time: a timer may fire a little early."""
AWAY = (TransientError, AmbiguousError, AccessRefused)
"""Errors about the database: ask again."""


class Suspended(BaseException):
    """Raised into a thread whose run is suspended. Let it propagate, as you let SystemExit."""


class Parked(Struct, kw_only=True, eq=False):
    """A call that waits."""

    name: str
    order: int
    woken: asyncio.Future[Any]
    wake_at: datetime | None
    signal: str | None
    children: int | None


class Parking:
    """The waits of one run. Lives on the worker's loop."""

    def __init__(self, run: Run, store: Store, journal: Journal, *, clock: Clock) -> None:
        self._run = run
        self._store = store
        self._journal = journal
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._working = 0
        self._parked: dict[str, Parked] = {}
        self._moves = 0
        """How often a call has begun, parked, gone on or ended: a look may suspend only what has not moved."""
        self._timer: asyncio.TimerHandle | None = None
        self._looking: asyncio.Task[None] | None = None
        self._looks = 0
        self._look_at = float("inf")
        """Monotonic: when to look next while others work."""
        self._ended: set[Caller] = set()
        """Works of a thread's body into which Suspended was raised."""
        self._taken: set[tuple[str, str]] = set()
        """Signals that a call has received, and may not have recorded yet."""
        self._is_closed = False

    def now(self) -> datetime:
        """The database's time, as this worker estimates it."""
        return self._run.now(self._clock.monotonic())

    # Calls

    def begin(self) -> None:
        """A call begins to work."""
        self._working += 1
        self._moved()

    def end(self) -> None:
        """A call has ended, however."""
        self._working -= 1
        self._moved()

    async def park(
        self, name: str, order: int, wake_at: datetime | None, *, signal: str | None = None, children: int | None = None
    ) -> Any:
        """Wait until this signal has come, these children have ended, or the time is over (then None)."""
        self._run.check()
        if self._is_closed:
            raise UsageError(f"{name!r} began to wait after the body had ended.", remedy="Await it there.")
        woken: asyncio.Future[Any] = self._loop.create_future()
        self._parked[name] = Parked(
            name=name, order=order, woken=woken, wake_at=wake_at, signal=signal, children=children
        )
        self._looks = 0
        self._look_at = min(self._look_at, self._clock.monotonic() + LOOKS[0])
        self._working -= 1
        self._moved()
        try:
            return await woken
        except BaseException as error:
            self._give_back(woken)
            if isinstance(error, Suspended):
                self._ended.add(calling.get())
            raise
        finally:
            del self._parked[name]
            self._working += 1
            self._moved()

    def _give_back(self, woken: asyncio.Future[Any]) -> None:
        """A call was cancelled in the same turn in which its signal came: another one may receive it."""
        if woken.done() and not woken.cancelled() and woken.exception() is None:
            arrived = woken.result()
            if isinstance(arrived, SignalView):
                self._taken.discard((arrived.name, arrived.id))

    # Stopping

    def refuse(self) -> None:
        """A call begins after the suspension: end this work of a body's thread too, unless it has caught that once."""
        if self._run.task.kind is TaskKind.THREAD and calling.get() not in self._ended:
            self._ended.add(calling.get())
            raise Suspended

    def stop(self) -> None:
        """The body was asked to stop. A coroutine has been cancelled; a parked thread can only be reached here."""
        if self._run.task.kind is TaskKind.THREAD:
            try:
                self._run.check()
            except (LockLost, Stopped) as error:
                self._raise_into_all(error)

    def close(self) -> None:
        """The body has ended: look no more. Tasks that it has left behind wait for nothing."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._looking is not None:
            self._looking.cancel()
        for parked in self._parked.values():
            parked.woken.cancel()

    def _raise_into_all(self, error: BaseException) -> None:
        for parked in self._parked.values():
            if not parked.woken.done():
                parked.woken.set_exception(error)

    # Looking

    def _moved(self) -> None:
        self._moves += 1
        self._plan()

    def _plan(self) -> None:
        """Look soon if every call is parked; now and then if others work; not at all if none is parked."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._parked:
            self._look_at = float("inf")
        elif self._looking is None:
            self._look_in(QUIET if self._working == 0 else self._until_next_look())

    def _until_next_look(self) -> float:
        pause = self._look_at - self._clock.monotonic()
        wake_at = self._earliest()
        if wake_at is not None:
            pause = min(pause, (wake_at - self.now()).total_seconds())
        return max(SOONEST, pause)

    def _look_in(self, seconds: float) -> None:
        if not self._is_closed and self._run.suspension is None:
            self._timer = self._loop.call_later(seconds, self._begin_look)

    def _earliest(self) -> datetime | None:
        return min((parked.wake_at for parked in self._parked.values() if parked.wake_at), default=None)

    def _begin_look(self) -> None:
        self._timer = None
        self._looking = self._loop.create_task(self._look())

    async def _look(self) -> None:
        """Look, and plan the next one."""
        pause: float | None = None
        try:
            pause = await self._find_or_suspend()
        except AWAY:
            pause = LOOKS[0]
        except Exception as error:  # noqa: BLE001 - raised into the body, where it is reported
            self._raise_into_all(error)
        finally:
            self._looking = None
            self._look_at = self._clock.monotonic() + LOOKS[min(self._looks, len(LOOKS) - 1)]
            self._looks += 1
            if pause is None:
                self._plan()
            elif self._parked:
                self._look_in(pause)

    async def _find_or_suspend(self) -> float | None:
        """Returns after how many seconds to look again; None: as soon as that makes sense."""
        run, moves = self._run, self._moves
        if self._working == 0:
            for _ in range(TURNS):
                await asyncio.sleep(0)
        if run.stop_reason is not None:  # the body is being stopped
            return LOOKS[0]
        waits = await self._store.read_waits(run.claim.job_id, run.claim.slot_no)
        if waits is None:
            run.stop(StopReason.LOST, LOST)
            raise LockLost("The job is gone, or in another slot.")
        if self._wake(waits) or self._moves != moves or self._working or run.stop_reason is not None:
            return None
        wake_at = self._earliest()
        if wake_at is not None and wake_at - self.now() <= SHORT:
            return max(SOONEST, (wake_at - self.now()).total_seconds())
        if self._journal.has_caught:
            await self._journal.write_caught()
            return None  # and look again: something may have come meanwhile
        self._suspend(Suspension(hold=run.hold, seen=waits.wake_seq, wake_at=wake_at))
        return None

    def _wake(self, waits: Waits) -> bool:
        """Let go on what has come, in the order of the calls. Returns whether anything has."""
        now, woken = self.now(), False
        for parked in sorted(self._parked.values(), key=lambda parked: parked.order):
            if parked.woken.done():
                woken = True
                continue
            come = self._come_for(parked, waits)
            if come is not None or (parked.wake_at is not None and parked.wake_at <= now):
                parked.woken.set_result(come)
                woken = True
        return woken

    def _come_for(self, parked: Parked, waits: Waits) -> SignalView | list[ChildEnd] | None:
        if parked.children is not None:
            ends = sorted((end for end in waits.ends if end.step == parked.name), key=lambda end: end.nth)
            return ends if len(ends) >= parked.children else None
        for signal in waits.signals:
            if signal.name == parked.signal and (signal.name, signal.id) not in self._taken:
                self._taken.add((signal.name, signal.id))
                return signal
        return None

    def _suspend(self, suspension: Suspension) -> None:
        """End the body. Its finally blocks run; durable calls in them are refused."""
        self._run.suspend(suspension)  # cancels the body first: `gather` must not take the rest for its children's ends
        if self._run.task.kind is TaskKind.THREAD:
            self._raise_into_all(Suspended())
        else:
            for parked in self._parked.values():
                parked.woken.cancel()
