"""The overview as a stream: one read every two seconds per process, whatever the number of viewers.

    viewers 0 ──► no task, no reads
    viewers n ──► one task: read ──► render once ──► the same bytes to every viewer's mailbox
                                                     (a slow viewer misses frames, and delays no other)

The last snapshot also answers page loads, if it is younger than two seconds.

A server that shuts down waits for its open answers. So a stream ends by itself after FRAMES, and asks the page to open
the next; `reltask dashboard` ends all streams at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable

from reltask.errors import ReltaskError
from reltask.model.overview import Overview

PERIOD = 2.0
"""Seconds between two reads."""
FRAMES = 10
"""Of one stream: a page opens another every 20 seconds."""
_END = b""
Render = Callable[[Overview], dict[str, str]]
"""The named fragments of a page, made from a snapshot."""


class Live:
    """Reads the overview for all viewers of this process."""

    def __init__(self, read: Callable[[], Awaitable[Overview]], render: Render, *, period: float = PERIOD) -> None:
        self.period = period
        self._read = read
        self._render = render
        self._mailboxes: set[asyncio.Queue[bytes]] = set()
        self._task: asyncio.Task[None] | None = None
        self._latest: tuple[float, Overview] | None = None
        self._reading: asyncio.Lock | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.reads = 0
        """How often the database was asked."""

    async def overview(self) -> Overview:
        """The latest snapshot, read now if it is older than the period."""
        loop = asyncio.get_running_loop()
        if self._loop is not loop:  # another loop in this process, as tests have: locks belong to one
            self._loop, self._reading, self._latest = loop, asyncio.Lock(), None
        assert self._reading is not None
        async with self._reading:
            if self._latest is None or loop.time() - self._latest[0] >= self.period:
                started = loop.time()
                overview = await self._read()
                self.reads += 1
                self._latest = started, overview
            return self._latest[1]

    def forget(self) -> None:
        """Something was changed here: the next page reads again."""
        self._latest = None

    async def events(self) -> AsyncGenerator[bytes, None]:
        """Frames for one viewer, until it goes."""
        mailbox: asyncio.Queue[bytes] = asyncio.Queue(maxsize=1)
        self._mailboxes.add(mailbox)
        if self._task is None or self._task.done():
            self._task = asyncio.ensure_future(self._run())
        try:
            yield b"retry: 3000\n\n"
            for _ in range(FRAMES):
                frame = await mailbox.get()
                if frame == _END:
                    return
                yield frame
            yield _event("again", "")
        finally:
            self._mailboxes.discard(mailbox)
            if not self._mailboxes and self._task is not None:
                self._task.cancel()
                self._task = None

    def end(self) -> None:
        """End every stream: the server shuts down."""
        if self._task is not None:
            self._task.cancel()
        self._send(_END)

    async def _run(self) -> None:
        while self._mailboxes:
            frame = await self._frame()
            self._send(frame)
            await asyncio.sleep(self.period)

    def _send(self, frame: bytes) -> None:
        for mailbox in list(self._mailboxes):
            if mailbox.full():
                mailbox.get_nowait()
            mailbox.put_nowait(frame)

    async def _frame(self) -> bytes:
        try:
            fragments = self._render(await self.overview())
        except ReltaskError:
            return _event("outage", "The database does not answer. The page shows what was last known.")
        return b"".join(_event(name, text) for name, text in fragments.items())


def _event(name: str, text: str) -> bytes:
    """One event: its data is a JSON string, so that no text can end a line."""
    return f"event: {name}\ndata: {json.dumps(text)}\n\n".encode()
