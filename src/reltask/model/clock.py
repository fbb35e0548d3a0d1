"""Time as a dependency.

There are two clocks, and they never mix. The *database's* clock decides everything about locks and
schedules; its time comes with each answer of the store. *Monotonic* time measures how long this
process has waited; it comes from here. A worker's wall clock decides nothing, so `Clock` has none.

Linux has two monotonic clocks, and CLOCK_MONOTONIC stands still while a laptop or a virtual machine
is suspended. The locks in the database do not, so deadlines count by CLOCK_BOOTTIME. The event
loop's own timers stay with CLOCK_MONOTONIC. One that was set before a suspend fires late, by what
was left of it; then the decision is made by this clock. So after a resume, `lease.held` is false at
once, and the heartbeat thread stops a body whose deadline has passed when its next timer fires, one
heartbeat interval later at most. By CLOCK_MONOTONIC both would trust the claim for the rest of its
lock timeout. No code compares the two clocks: durations pass between them, never instants.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial
from typing import Protocol

import msgspec


class Clock(Protocol):
    """Monotonic seconds, and a way to wait for them."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start; they never decrease."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the running event loop."""
        ...


def choose_monotonic() -> Callable[[], float]:
    """The clock that also counts while the machine is suspended; `time.monotonic` where there is none."""
    boottime: int | None = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None:
        return time.monotonic
    try:
        time.clock_gettime(boottime)
    except OSError:  # an old kernel, or a sandbox
        return time.monotonic
    return partial(time.clock_gettime, boottime)


class SystemClock:
    """The clock of production."""

    monotonic = staticmethod(choose_monotonic())
    sleep = staticmethod(asyncio.sleep)


class DatabaseTime(msgspec.Struct, frozen=True):
    """The database's time at a monotonic instant, from which its current time can be computed."""

    shown: datetime
    at: float

    def now(self, monotonic: float) -> datetime:
        """The database's time at that monotonic instant, as this process computes it."""
        return self.shown + timedelta(seconds=monotonic - self.at)
