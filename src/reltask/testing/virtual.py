"""Virtual time: a loop that never waits.

When nothing can run, the loop sets its clock to the next timer; monotonic time, the database's time and `asyncio.sleep`
all use that clock. This covers code that runs on the loop only: threads and sockets use real time. A `PatientLoop`, as
the test kit uses it, notices them, and lets real time pass while one is awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
import time
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)
SLICE = 0.002
"""Seconds of one wait for something outside of the loop."""


class _JumpingSelector(selectors.DefaultSelector):
    """Returns what is ready without waiting; if nothing is, advances the loop's clock by the timeout."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and self.loop.awaits_others(sockets=len(self.get_map()) > 1):  # one is the loop's own
            began = time.monotonic()
            ready = super().select(SLICE if timeout is None else min(timeout, SLICE))
            self.loop.advance(time.monotonic() - began)
            return ready
        if not ready and timeout is None:
            raise RuntimeError("Every coroutine waits and no timer is set: the test would never end.")
        if not ready and timeout is not None:
            self.loop.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer."""

    def __init__(self) -> None:
        selector = _JumpingSelector()
        selector.loop = self
        self._seconds = 0.0
        super().__init__(selector)

    def time(self) -> float:
        return self._seconds

    def advance(self, seconds: float) -> None:
        """Advance the clock."""
        self._seconds += max(0.0, seconds)

    def awaits_others(self, *, sockets: bool) -> bool:  # noqa: ARG002 - for a PatientLoop
        """Whether something outside of the loop is awaited, so that real time must pass."""
        return False


class HasRuns(Protocol):
    """A worker."""

    @property
    def running(self) -> int:
        """How many runs it holds now."""
        ...


class PatientLoop(VirtualLoop):
    """A virtual loop that lets real time pass while a thread, or a socket of a running body, is awaited."""

    def __init__(self) -> None:
        super().__init__()
        self.outside = 0
        """Calls under way in threads."""
        self.worker: HasRuns | None = None
        """While its bodies run, a registered socket may belong to one of them."""

    def awaits_others(self, *, sockets: bool) -> bool:
        return self.outside > 0 or (sockets and self.worker is not None and self.worker.running > 0)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """As every loop's, counted."""
        future = super().run_in_executor(executor, func, *args)
        self.outside += 1
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, _: object) -> None:
        self.outside -= 1


class VirtualClock:
    """`reltask.model.clock.Clock` on a virtual loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        return self._loop.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualTime:
    """One clock for monotonic time, the database and `asyncio.sleep`."""

    def __init__(self, start: datetime = START, loop: VirtualLoop | None = None) -> None:
        self.loop = VirtualLoop() if loop is None else loop
        self.clock = VirtualClock(self.loop)
        self._start = start

    def now(self) -> datetime:
        """What the database's clock shows."""
        return self._start + timedelta(microseconds=round(self.loop.time() * 1e6))

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run the coroutine to its end in virtual time."""
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            return runner.run(scenario)


@contextlib.contextmanager
def virtual_time(start: datetime = START) -> Iterator[VirtualTime]:
    """A virtual clock for one test."""
    virtual = VirtualTime(start)
    try:
        yield virtual
    finally:
        if not virtual.loop.is_closed():
            virtual.loop.close()
