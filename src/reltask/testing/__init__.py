"""For tests: virtual time, and workers that run until nothing is due.

    with virtual_time() as time:
        app = App("sqlite:///:memory:", clock=time.clock, now=time.now, inline=True)

        @app.task(every="10m")
        async def tick() -> None: ...

        async def an_hour() -> None:
            async with app.worker():
                await asyncio.sleep(3600)

        time.run(an_hour())         # an hour of schedules in milliseconds

A virtual loop never waits. When nothing can run, it sets its clock to the next timer; monotonic time, the database's
time and `asyncio.sleep` all use that clock. This covers code that runs on the loop only: threads and sockets use real
time.
"""

from __future__ import annotations

import asyncio
import contextlib
import selectors
from collections.abc import Coroutine, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from reltask.app import App

T = TypeVar("T")
START = datetime(2026, 1, 1, tzinfo=UTC)


class _JumpingSelector(selectors.DefaultSelector):
    """Returns what is ready without waiting; if nothing is, advances the loop's clock by the timeout."""

    loop: VirtualLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
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

    def __init__(self, start: datetime = START) -> None:
        self.loop = VirtualLoop()
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
    time = VirtualTime(start)
    try:
        yield time
    finally:
        if not time.loop.is_closed():
            time.loop.close()


async def drain(app: App) -> None:
    """Run the jobs that are due, and those that they enqueue, on this loop; return when none is due or running."""
    async with app.worker() as worker:
        await worker.drained()
