"""Time as a dependency.

There are two clocks, and they never mix. The *database's* clock decides everything about locks and
schedules; its time comes with each answer of the store. *Monotonic* time measures how long this
process has waited; it comes from here. A worker's wall clock decides nothing, so `Clock` has none.
"""

from __future__ import annotations

import asyncio
import time
from datetime import datetime, timedelta
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


class SystemClock:
    """The clock of production."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


class DatabaseTime(msgspec.Struct, frozen=True):
    """The database's time at a monotonic instant, from which its current time can be computed."""

    shown: datetime
    at: float

    def now(self, monotonic: float) -> datetime:
        """The database's time at that monotonic instant, as this process computes it."""
        return self.shown + timedelta(seconds=monotonic - self.at)
