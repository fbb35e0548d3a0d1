"""Time as a dependency.

Two clocks matter, and they never mix. The *database's* clock decides everything about locks and
schedules; it arrives with each answer of the store. *Monotonic* time measures how long this process
has waited; it comes from here. The wall clock of a worker decides nothing, so `Clock` has none.
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
        """Seconds that only ever grow, from an arbitrary start."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait on the running event loop."""
        ...


class SystemClock:
    """The clock of production."""

    monotonic = staticmethod(time.monotonic)
    sleep = staticmethod(asyncio.sleep)


class DatabaseTime(msgspec.Struct, frozen=True):
    """What the database's clock showed, pinned to a monotonic instant, so that it can be carried forward."""

    shown: datetime
    at: float

    def now(self, monotonic: float) -> datetime:
        """The database's time at that monotonic instant, as far as this process can tell."""
        return self.shown + timedelta(seconds=monotonic - self.at)
