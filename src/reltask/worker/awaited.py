"""Signals the ends of jobs whose results are waited for, and of no others.

    waiting process ── awaited: ids, every 10 s ──► workers remember them for 30 s
    waiting process ◄── ended: ids, at most one statement per 10 ms ── the worker that has ended them

A worker that knows of no waiting caller sends nothing, and looks at one empty dictionary
per group of outcomes. A signal that is lost costs a second: callers also look by themselves.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from uuid import UUID

from reltask.model.clock import Clock
from reltask.producer.result import Results
from reltask.stores.store import Store

REMEMBERED = 30.0
"""Seconds. The waiting process repeats itself every ten."""
GAP = 0.01
MOST = 100_000
"""Jobs that are remembered; the oldest are forgotten first."""


class Awaited:
    """What other processes wait for, as far as this worker knows."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self.until: dict[UUID, float] = {}
        """Until when it remembers what other processes wait for."""
        self.results: Results | None = None
        """What callers in this process wait for: they need no signal."""
        self._ended: list[UUID] = []
        self._sending: asyncio.Task[None] | None = None

    def wanted(self, job_ids: Sequence[UUID]) -> None:
        """A process waits for these. On the worker's loop."""
        now = self._clock.monotonic()
        for job_id in job_ids:
            self.until.pop(job_id, None)
            self.until[job_id] = now + REMEMBERED
        while self.until and (len(self.until) > MOST or next(iter(self.until.values())) < now):
            del self.until[next(iter(self.until))]

    def ended(self, job_ids: Iterable[UUID]) -> None:
        """These have ended, and that is committed."""
        if self.results is not None:
            job_ids = list(job_ids)
            self.results.look(job_ids)
        if not self.until:
            return
        self._ended += [job_id for job_id in job_ids if self.until.pop(job_id, None) is not None]
        if self._ended and (self._sending is None or self._sending.done()):
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def _send(self) -> None:
        while self._ended:
            ended, self._ended = self._ended, []
            await self._store.signal_ended(ended)
            await asyncio.sleep(GAP)
