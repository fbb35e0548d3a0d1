"""Signals are cheap, but not free: at most one per 10 ms, and the last of a burst is never dropped.

asked   ●  ● ●●     ●                    ●
sent    ●        ●        ●              ●
        └─10 ms──┴─10 ms──┘              at once after a pause
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from reltask.errors import DatabaseError

GAP = 0.010
"""Seconds between two signals of one store."""


class Signals:
    """A throttle in front of `send`, which tells the other workers."""

    def __init__(self, send: Callable[[], Awaitable[None]]) -> None:
        self._send = send
        self._free_at = 0.0
        self._later: asyncio.Task[None] | None = None

    async def signal(self) -> None:
        """Send now, or let the one that is already planned speak for this one too."""
        if self._later is not None:
            return
        loop = asyncio.get_running_loop()
        wait = self._free_at - loop.time()
        if wait > 0:
            self._later = loop.create_task(self._send_later(wait))
            return
        self._free_at = loop.time() + GAP
        await self._send()

    async def _send_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        self._later = None  # whoever asks from here on plans another one: this one may leave before their commit
        self._free_at = asyncio.get_running_loop().time() + GAP
        with suppress(DatabaseError):  # nobody waits for the answer, and a poll finds what a signal would have told
            await self._send()

    async def close(self) -> None:
        """Wait for the one that is planned."""
        if self._later is not None:
            await self._later
