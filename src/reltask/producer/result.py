"""Waiting for the ends of jobs: one poller per process looks for everything that is waited for.

    job.result() ──► wait ──► a future ◄──┐
    job.result() ──► wait ──► a future ◄──┴── poller ──► read_results(ids): one statement for all that are due
                                              looks at once, after 20 ms, then ever later: after 1 s at most
    a notice that jobs have ended ──────────► look(ids): the next look is now

Where the store has signals, the poller first listens, then notifies the workers which jobs are
awaited (`worker/awaited.py`), then looks, once more after 20 ms, and then every second: an end that
came before the workers knew is found by the second look. On SQLite every write to the file is a
notice.

The poller runs on the client's private loop, because waiters come from any loop and thread. It ends
when nothing is waited for. A notice is a shortcut: without it the next look finds the end.

Each shard is looked at by itself: those who wait for jobs of one do not wait for another one's answer.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, Protocol
from uuid import UUID

from reltask.errors import AccessRefused, ArgumentsError, JobCancelled, JobFailed, ResultGone, UsageError
from reltask.model.arguments import Value, value_of
from reltask.model.codec import refuse_encoded
from reltask.model.duration import Duration, format_duration, parse_duration
from reltask.model.job import Outcome
from reltask.model.shards import shard_of
from reltask.model.task import TaskDefinition
from reltask.model.views import JobEnd
from reltask.producer.client import Client
from reltask.stores.store import BATCH, Store

FIRST_PAUSE = 0.02
"""Seconds between the first look and the second; also the shortest time between two statements."""
LONGEST_PAUSE = 1.0
GROWTH = 1.5
ANNOUNCE_EVERY = 10.0
"""Seconds after which the workers are notified again of what is awaited."""


class RunningBody(Protocol):
    """The run whose body calls: a body must not wait for another job in its place."""

    @property
    def headers(self) -> str | None:
        """What the jobs that it enqueues inherit."""
        ...

    on_enqueue: Callable[[str], None] | None
    """Called with what the body does that it would do again at each resume; None: it is no durable function."""


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

    def looked(self, now: float, *, signalled: bool) -> None:
        """Nothing yet: look again later. `signalled`: once more soon, and then only in case a signal is lost."""
        self.due = now + self._pause
        self._pause = LONGEST_PAUSE if signalled else min(self._pause * GROWTH, LONGEST_PAUSE)

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
        self.waiters: list[Waiter] = []
        """Empty while nothing is waited for."""
        self._poller: ResultPoller | None = None

    def wait(self, job_id: UUID) -> Future[JobEnd]:
        """A future for the end of this job; cancel it to stop waiting."""
        waiter, started = Waiter(job_id), None
        with self._lock:
            if self._poller is not None and self._poller.pid != os.getpid():  # a forked child has no poller
                self._poller, self.waiters = None, []
            if self._poller is None:
                self._poller = started = ResultPoller(self)
            poller = self._poller
            self.waiters.append(waiter)
        if started is None:
            poller.wake()
        else:
            self._client.start(started.run).add_done_callback(started.ended)
        return waiter.future

    def look(self, job_ids: Collection[UUID]) -> None:
        """These jobs may have ended, or any if none is named: look at once. From any thread."""
        if not self.waiters:
            return
        wanted, found = set(job_ids), False
        with self._lock:
            for waiter in self.waiters:
                if not wanted or waiter.job_id in wanted:
                    waiter.due, found = 0.0, True
            poller = self._poller
        if poller is not None and found:
            poller.wake()

    def close(self) -> None:
        """Nothing is waited for any more: the app is being closed."""
        poller = self._poller
        if poller is not None:
            for waiter in self.leave(poller):
                waiter.end(UsageError("The app was closed while the result was waited for."))
            poller.wake()

    def waiting(self, poller: ResultPoller) -> list[Waiter]:
        """Those who still wait; if there are none, this poller is over, and the next waiter starts another."""
        with self._lock:
            if self._poller is not poller:
                return []
            self.waiters = [waiter for waiter in self.waiters if not waiter.future.done()]
            if not self.waiters:
                self._poller = None
            return list(self.waiters)

    def leave(self, poller: ResultPoller) -> list[Waiter]:
        """This poller is over; those who still waited for it."""
        with self._lock:
            if self._poller is not poller:
                return []
            left, self.waiters, self._poller = self.waiters, [], None
            return left


class ResultPoller:
    """Looks for the ends of jobs until nothing is waited for."""

    def __init__(self, results: Results) -> None:
        self.pid = os.getpid()
        self._results = results
        self._woken: asyncio.Event | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._signalled = False
        """Whether the store says when jobs have ended."""
        self._announced: dict[UUID, float] = {}
        """When the workers were last notified that a job is awaited."""
        self._looks: dict[int | None, asyncio.Task[None]] = {}
        """Looks that are not answered, by shard; None: the app has no shards, or the id does not say."""

    def wake(self) -> None:
        """There is a new waiter, or news: from any thread."""
        if self._loop is not None and self._woken is not None:
            with suppress(RuntimeError):  # its loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self, store: Store) -> None:
        """Look, sleep until the next look is due, and so on."""
        self._woken, self._loop = asyncio.Event(), asyncio.get_running_loop()
        try:
            async with store.listen(_ignore, ended=self._results.look) as self._signalled:
                await self._poll(store)
        finally:
            for look in self._looks.values():
                look.cancel()
            await asyncio.gather(*self._looks.values(), return_exceptions=True)

    async def _poll(self, store: Store) -> None:
        assert self._woken is not None
        assert self._loop is not None
        while waiters := self._results.waiting(self):
            self._woken.clear()
            idle = [waiter for waiter in waiters if shard_of(waiter.job_id) not in self._looks]
            due = [waiter for waiter in idle if waiter.due <= self._loop.time()]
            if due:
                awaited = {waiter.job_id for waiter in waiters}
                self._announced = {job_id: at for job_id, at in self._announced.items() if job_id in awaited}
                self._begin(store, due)
                await asyncio.sleep(FIRST_PAUSE / 2)  # those who come together are looked for together
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min((waiter.due for waiter in idle), default=None)):
                        await self._woken.wait()

    def _begin(self, store: Store, due: list[Waiter]) -> None:
        """Look for the ends of these jobs, on each shard by itself."""
        groups: dict[int | None, list[Waiter]] = {}
        for waiter in due:
            groups.setdefault(shard_of(waiter.job_id), []).append(waiter)
        for shard, some in groups.items():
            self._looks[shard] = look = asyncio.ensure_future(self._announce_and_look(store, some))
            look.add_done_callback(lambda _, shard=shard: self._looked(shard))  # type: ignore[misc] # inferred

    def _looked(self, shard: int | None) -> None:
        del self._looks[shard]
        if self._woken is not None:
            self._woken.set()

    async def _announce_and_look(self, store: Store, waiters: list[Waiter]) -> None:
        await self._announce(store, waiters)
        await self._look(store, waiters)

    def ended(self, future: Any) -> None:
        """The poller could not be started, was cancelled, or has a bug: no caller waits for ever."""
        if future.cancelled():
            error: BaseException = UsageError("The app was closed while the result was waited for.")
        else:
            error = future.exception() or UsageError("The result is no longer waited for.")
        for waiter in self._results.leave(self):
            waiter.end(error)

    async def _announce(self, store: Store, waiters: list[Waiter]) -> None:
        """Tell the workers what is waited for: before the first look, and again every ANNOUNCE_EVERY."""
        if not self._signalled:
            return
        now = asyncio.get_running_loop().time()
        awaited = {waiter.job_id for waiter in waiters}
        news = [job_id for job_id in awaited if now - self._announced.get(job_id, -ANNOUNCE_EVERY) >= ANNOUNCE_EVERY]
        if news:
            await store.signal_awaited(news)
            self._announced.update(dict.fromkeys(news, now))

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
                    waiter.looked(now, signalled=self._signalled)

    def _fail(self, waiters: list[Waiter], error: Exception) -> None:
        for waiter in waiters:
            waiter.end(error)


def _ignore(_news: object) -> None:
    """Jobs that are due are none of a waiting caller's business."""


def _may_not_read(error: AccessRefused) -> AccessRefused:
    refused = AccessRefused(
        f"This login may not read results. {error.message}",
        remedy="Give it the role reltask_read or reltask_run (of another schema: its name instead of reltask); "
        "reltask_enqueue alone may not read them.",
    )
    refused.__cause__ = error
    return refused


def returned(end: JobEnd, task: str | None, definition: TaskDefinition | None, *, joined: bool) -> Any:
    """What a job's task returned, or the error that says why there is nothing.

    `joined`: it was enqueued in a transaction.
    """
    job = f"Job {end.job_id}"
    if end.recurring:
        raise UsageError(f"{job} recurs, so it has no result of its own.", remedy="Its runs have: job.runs().")
    if end.dead:
        raise JobFailed(f"{job} is dead. {(end.error or '').strip()}", remedy="")
    if end.outcome is None and joined:
        raise UsageError(
            f"{job} was enqueued in a transaction that is not committed, or was rolled back.",
            remedy="Wait for its result after the commit.",
        )
    if end.outcome is None:
        raise ResultGone(f"{job} is not there, and the ledger has no run of it that ended.")
    if end.outcome is not Outcome.SUCCEEDED:
        raise JobCancelled(f"{job} was {end.outcome}.{f' {end.error}' if end.error else ''}")
    if end.result is None and end.error:
        raise ResultGone(f"{job} succeeded, but what it returned could not be stored. {end.error}")
    refuse_encoded(end.result)
    label = f"The result of {task or 'job'} {end.job_id}"
    value = Value(label=label) if definition is None else value_of(definition.function, label=label)
    try:
        return value.decode("null" if end.result is None else end.result)
    except ArgumentsError:
        if end.result is not None:
            raise
        raise ResultGone(f"{job} succeeded, but the ledger has nothing that it returned.") from None


def time_limit(name: str, timeout: Duration | None) -> timedelta | None:
    """The time limit of a wait that may begin: not in a task, whose place it would keep."""
    if in_task.get():
        raise UsageError(
            f"{name}() inside a task would keep its place while it waits, and all places may wait for each other.",
            remedy="Use ctx.run, which suspends the task, or let the other task go on.",
        )
    try:
        return None if timeout is None else parse_duration(timeout, name="timeout")
    except ValueError as error:
        raise UsageError(str(error)) from None


def too_late(job_id: UUID, limit: timedelta | None) -> TimeoutError:
    """The error of a wait that was too long."""
    return TimeoutError(f"Job {job_id} has not ended within {'' if limit is None else format_duration(limit)}.")
