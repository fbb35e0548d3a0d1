"""Waiting for the ends of jobs: one poller per process looks for everything that is waited for.

    job.result() ──► wait ──► a future ◄──┐
    job.result() ──► wait ──► a future ◄──┴── poller ──► read_results(ids): one statement for all that are due
                                              looks at once, after 20 ms, then ever later: after 1 s at most
    a notice that jobs have ended ──────────► look(ids): the next look is now

The poller runs on the client's private loop, because waiters come from any loop and thread. It ends
when nothing is waited for. A notice is a shortcut: without it the next look finds the end.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol
from uuid import UUID

from reltask.errors import AccessRefused, UsageError
from reltask.model.views import JobEnd
from reltask.producer.client import Client
from reltask.stores.store import BATCH, Store

FIRST_PAUSE = 0.02
"""Seconds between the first look and the second; also the shortest time between two statements."""
LONGEST_PAUSE = 1.0
GROWTH = 1.5


class RunningBody(Protocol):
    """The run whose body calls: a body must not wait for another job in its place."""

    on_enqueue: Callable[[], None] | None
    """Called when the body enqueues outside of a step; None: it has made no durable call."""


in_task: ContextVar[RunningBody | None] = ContextVar("reltask_in_task", default=None)
"""Set by the worker around a body."""


class Waiter:
    """One call that waits for the end of one job."""

    def __init__(self, job_id: UUID) -> None:
        self.job_id = job_id
        self.future: Future[JobEnd] = Future()
        self.due = 0.0
        """When to look next, by the poller's loop."""
        self._pause = FIRST_PAUSE

    def looked(self, now: float) -> None:
        """Nothing yet: look again later."""
        self.due = now + self._pause
        self._pause = min(self._pause * GROWTH, LONGEST_PAUSE)

    def end(self, end: JobEnd | BaseException) -> None:
        """Hand over the end, or why it cannot be known, unless the caller has stopped waiting."""
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        if isinstance(end, JobEnd):
            self.future.set_result(end)
        else:
            self.future.set_exception(end)


class Results:
    """What one app waits for."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._waiters: list[Waiter] = []
        self._poller: Poller | None = None

    def wait(self, job_id: UUID) -> Future[JobEnd]:
        """A future for the end of this job; cancel it to stop waiting."""
        waiter, started = Waiter(job_id), None
        with self._lock:
            if self._poller is not None and self._poller.pid != os.getpid():  # a forked child has no poller
                self._poller, self._waiters = None, []
            if self._poller is None:
                self._poller = started = Poller(self)
            poller = self._poller
            self._waiters.append(waiter)
        if started is None:
            poller.wake()
        else:
            self._client.start(started.run).add_done_callback(started.ended)
        return waiter.future

    def look(self, job_ids: Collection[UUID]) -> None:
        """These jobs may have ended: look at once. From any thread."""
        with self._lock:
            for waiter in self._waiters:
                if waiter.job_id in job_ids:
                    waiter.due = 0.0
            poller = self._poller
        if poller is not None:
            poller.wake()

    def close(self) -> None:
        """Nothing is waited for any more: the app is being closed."""
        poller = self._poller
        if poller is not None:
            for waiter in self.leave(poller):
                waiter.end(UsageError("The app was closed while the result was waited for."))
            poller.wake()

    def waiting(self, poller: Poller) -> list[Waiter]:
        """Those who still wait; if there are none, this poller is over, and the next waiter starts another."""
        with self._lock:
            if self._poller is not poller:
                return []
            self._waiters = [waiter for waiter in self._waiters if not waiter.future.done()]
            if not self._waiters:
                self._poller = None
            return list(self._waiters)

    def leave(self, poller: Poller) -> list[Waiter]:
        """This poller is over; those who still waited for it."""
        with self._lock:
            if self._poller is not poller:
                return []
            left, self._waiters, self._poller = self._waiters, [], None
            return left


class Poller:
    """Looks for the ends of jobs until nothing is waited for."""

    def __init__(self, results: Results) -> None:
        self.pid = os.getpid()
        self._results = results
        self._woken: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def wake(self) -> None:
        """There is a new waiter, or news: from any thread."""
        if self._loop is not None and self._woken is not None:
            with suppress(RuntimeError):  # its loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self, store: Store) -> None:
        """Look, sleep until the next look is due, and so on."""
        self._woken, self._loop = asyncio.Event(), asyncio.get_running_loop()
        while waiters := self._results.waiting(self):
            self._woken.clear()
            due = [waiter for waiter in waiters if waiter.due <= self._loop.time()]
            if due:
                await self._look(store, due)
                await asyncio.sleep(FIRST_PAUSE / 2)  # those who come together are looked for together
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(waiter.due for waiter in waiters)):
                        await self._woken.wait()

    def ended(self, future: Any) -> None:
        """The poller could not be started, was cancelled, or has a bug: no caller waits for ever."""
        if future.cancelled():
            error: BaseException = UsageError("The app was closed while the result was waited for.")
        else:
            error = future.exception() or UsageError("The result is no longer waited for.")
        for waiter in self._results.leave(self):
            waiter.end(error)

    async def _look(self, store: Store, waiters: list[Waiter]) -> None:
        ids = list(dict.fromkeys(waiter.job_id for waiter in waiters))
        try:
            ends: dict[UUID, JobEnd] = {}
            for start in range(0, len(ids), BATCH):
                ends |= {end.job_id: end for end in await store.read_results(ids[start : start + BATCH])}
        except AccessRefused as error:
            self._fail(waiters, _may_not_read(error))
        except Exception as error:  # noqa: BLE001 - the callers decide
            self._fail(waiters, error)
        else:
            now = asyncio.get_running_loop().time()
            for waiter in waiters:
                if waiter.job_id in ends:
                    waiter.end(ends[waiter.job_id])
                else:
                    waiter.looked(now)

    def _fail(self, waiters: list[Waiter], error: Exception) -> None:
        for waiter in waiters:
            waiter.end(error)


def _may_not_read(error: AccessRefused) -> AccessRefused:
    refused = AccessRefused(
        f"This login may not read results. {error.message}",
        remedy="Give it the role reltask_read or reltask_run; reltask_enqueue alone may not read them.",
    )
    refused.__cause__ = error
    return refused
