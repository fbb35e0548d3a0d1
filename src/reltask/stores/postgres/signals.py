"""Signals are cheap, but not free: at most one per 10 ms, and the last of a burst is never dropped.

asked   ●  ● ●●     ●                    ●
sent    ●        ●        ●              ●
        └─10 ms──┴─10 ms──┘              at once after a pause
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

GAP = 0.010
"""Seconds between two signals of one store."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Signals:
    """A throttle in front of `send`, which tells the other workers. Signals that wait together become the earliest."""

    def __init__(self, send: Callable[[datetime | None], Awaitable[None]]) -> None:
        self._send = send
        self._free_at = 0.0
        self._planned: asyncio.Task[None] | None = None
        self._due_at: datetime | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        """Planned, or being sent: what has left the plan still needs its connection."""

    async def signal(self, due_at: datetime | None) -> None:
        """Send now, or let the one that is already planned speak for this one too."""
        if self._planned is not None and not self._planned.done():  # done: somebody has cancelled it
            self._due_at = None if due_at is None or self._due_at is None else min(due_at, self._due_at)
            return
        loop = asyncio.get_running_loop()
        wait = self._free_at - loop.time()
        if wait > 0:
            self._due_at = due_at
            self._planned = loop.create_task(self._send_later(wait))
            self._under_way.add(self._planned)
            self._planned.add_done_callback(self._under_way.discard)
            return
        self._free_at = loop.time() + GAP
        await self._send(due_at)

    async def _send_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        self._planned = None  # whoever asks from here on plans another one: this one may leave before their commit
        self._free_at = asyncio.get_running_loop().time() + GAP
        await self._send(self._due_at)

    async def close(self) -> None:
        """Wait for what is planned or being sent, and leave it alone: it is sent even if this is cancelled."""
        if self._under_way:
            await asyncio.wait(self._under_way)


def to_payload(due_at: datetime | None) -> str:
    """The time as it travels: microseconds since 1970, or nothing for now."""
    return "" if due_at is None else str((due_at - _EPOCH) // timedelta(microseconds=1))


def from_payload(payload: str) -> datetime | None:
    """The time that a signal names. What cannot be read means now: a look too many harms nobody."""
    return _EPOCH + timedelta(microseconds=int(payload)) if payload.isascii() and payload.isdigit() else None
