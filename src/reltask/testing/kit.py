"""The test kit: an app on a temporary database, in virtual time, run step by step by its test.

    test's thread                          thread "reltask-test": a virtual loop
    ─────────────                          ──────────────────────────────────────
    send.enqueue_sync(…) ──► database
    kit.run_until_idle() ────────────────► a worker: claims, runs `async def` bodies, settles
        runs `def` bodies here ◄────────── in the order of their claims
        returns ◄───────────────────────── nothing is due

`def` bodies run in the test's thread, so they see what belongs to it: Django's TestCase transaction, thread-locals,
an in-memory database. Time moves only with `advance`; while a `def` body, a thread or a socket is awaited, real time
passes. All calls work in synchronous and asynchronous tests: they block until done.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import queue
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from uuid import UUID

from msgspec import Struct

from reltask import events
from reltask.app import App
from reltask.errors import UsageError
from reltask.model.duration import Duration, parse_duration
from reltask.model.surroundings import visible_headers
from reltask.model.views import RunView
from reltask.producer.job import Job
from reltask.producer.task import Producer
from reltask.stores.store import Store
from reltask.testing.virtual import PatientLoop, VirtualTime
from reltask.worker.threads import ThreadPool

T = TypeVar("T")
MOST = 100_000
"""Jobs and runs of one test."""
SETTINGS = {
    "worker.shutdown_grace": "0s",
    "worker.poll": "30d",
    "maintenance.coordination": "off",
    "history.arguments": "on",
}


class TaskFailed(AssertionError):
    """A task raised while the kit ran it; the text is its traceback."""


class Enqueued(Struct, frozen=True):
    """A job that was enqueued, whether it has run since or not."""

    task: str
    arguments: dict[str, Any]
    """As the task receives them, defaults bound."""
    headers: dict[str, Any]
    queue: str
    job: Job[Any]

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())
        return f"{self.task}({given})"


class TestsThread(ThreadPool):
    """Runs `def` bodies in the thread that drives the kit."""

    def __init__(self, loop: PatientLoop) -> None:
        super().__init__()
        self.calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._loop = loop

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Hand the function over, with the context variables of its run."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        self._loop.outside += 1
        self.calls.put((future, lambda: context.run(function)))
        return future

    def close(self) -> None:
        """There is no thread to end."""

    def serve(self) -> None:
        """Run functions until the loop has ended its work."""
        while (call := self.calls.get()) is not None:
            future, function = call
            with _no_running_loop():
                try:
                    future.set_result(function())
                except BaseException as error:  # noqa: BLE001 - the future carries it to the run
                    future.set_exception(error)
            self._loop.call_soon_threadsafe(self._came_back)

    def _came_back(self) -> None:
        self._loop.outside -= 1


@contextlib.contextmanager
def _no_running_loop() -> Iterator[None]:
    """A `def` body is synchronous code, also in the thread of an asynchronous test."""
    loop = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    try:
        yield
    finally:
        asyncio._set_running_loop(loop)


class TestKit:
    """An app on a temporary database and in virtual time, while the block is open: `with TestKit(app) as kit`."""

    __test__ = False  # pytest: this is no class of tests

    def __init__(self, app: App, *, immediate: bool = False, start: datetime | None = None) -> None:
        """`immediate`: each enqueue runs its job at once. Time starts at `start`, or else now."""
        self.app = app
        self._immediate = immediate
        self._loop = PatientLoop()
        self._time = VirtualTime(start or datetime.now(UTC), self._loop)
        self._pool = TestsThread(self._loop)
        self._open = contextlib.ExitStack()
        self._is_running = False
        self._failures: list[events.RunFailed] = []

    def __enter__(self) -> Self:
        folder = self._open.enter_context(tempfile.TemporaryDirectory(prefix="reltask-", ignore_cleanup_errors=True))
        self._open.enter_context(self._rebound(f"sqlite:///{Path(folder).as_posix()}/test.db"))
        self._open.callback(self._loop.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    # What was enqueued

    @property
    def enqueued(self) -> list[Enqueued]:
        """Every job that was enqueued in this test, in order, those that have run as well; no declared schedules."""
        return self._ask(self._enqueued)

    def assert_enqueued(self, task: Producer[..., Any], /, **arguments: object) -> Enqueued:
        """The first job of this task with these arguments; AssertionError, which lists all jobs, if there is none."""
        _check_names(task, arguments)
        every = self.enqueued
        for job in every:
            if job.task == task.name and all(job.arguments[name] == value for name, value in arguments.items()):
                return job
        raise AssertionError(f"{_wanted(task, arguments)} was not enqueued. Enqueued: {every or 'nothing'}.")

    def assert_not_enqueued(self, task: Producer[..., Any], /, **arguments: object) -> None:
        """AssertionError if a job of this task with these arguments was enqueued."""
        try:
            found = self.assert_enqueued(task, **arguments)
        except AssertionError:
            return
        raise AssertionError(f"{found} was enqueued.")

    # Running

    def run_until_idle(self, *, raise_failures: bool = True) -> list[RunView]:
        """Run everything that is due, and what that enqueues; return the runs that ended, oldest first.

        A task that raises is a TaskFailed, after everything else has run; `raise_failures=False` returns its run like
        the others.
        """
        return self._reported(self._until_idle, raise_failures=raise_failures)

    def advance(self, length: Duration, *, raise_failures: bool = True) -> list[RunView]:
        """Let this much time pass, and run what becomes due meanwhile, each at its time: schedules, retries, sleeps."""
        try:
            seconds = parse_duration(length, name="length").total_seconds()
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.app._declares = True
        end = self._loop.time() + seconds
        return self._reported(lambda: self._until_idle(end), raise_failures=raise_failures)

    @property
    def now(self) -> datetime:
        """The time of the database and of the worker."""
        return self._time.now()

    # How

    def _reported(self, work: Callable[[], Coroutine[Any, Any, None]], *, raise_failures: bool) -> list[RunView]:
        before = {(run.job_id, run.fence) for run in self._runs()}
        self._failures.clear()
        self._drive(work())
        if raise_failures and self._failures:
            raise TaskFailed(f"{self._failures[0].task} failed:\n{self._failures[0].error}")
        return [run for run in reversed(self._runs()) if (run.job_id, run.fence) not in before]

    def _runs(self) -> list[RunView]:
        return self._ask(lambda store: store.list_runs(limit=MOST))

    async def _until_idle(self, end: float = 0.0) -> None:
        """Run what is due, or until this time of the loop; once more if a job went to a queue that was not served."""
        while True:
            served = self._serve_all_queues()
            async with self.app.worker() as worker:
                self._loop.worker = worker
                await worker.drained()
                await asyncio.sleep(end - self._loop.time())
                await worker.drained()
            if self._queues() <= served:
                return

    def _queues(self) -> set[str]:
        return {*self.app.registry.queues(), *(job.queue for job in self._ask(lambda s: s.list_jobs(limit=MOST)))}

    def _serve_all_queues(self) -> set[str]:
        queues = self._queues()
        self.app.configure(worker__queues=tuple(queues))
        return queues

    def _drive(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the virtual loop, in a thread, and `def` bodies here."""
        if self._is_running:
            work.close()
            raise UsageError("The kit is running already.", remedy="Call it from the test, not from a task.")
        ended: Future[T] = Future()

        def run() -> None:
            try:
                ended.set_result(self._loop.run_until_complete(work))
            except BaseException as error:  # noqa: BLE001 - raised in the test
                ended.set_exception(error)
            self._pool.calls.put(None)

        self._is_running = True
        thread = threading.Thread(target=run, name="reltask-test", daemon=True)
        thread.start()
        try:
            self._pool.serve()
        finally:
            thread.join()
            self._is_running = False
        return ended.result()

    def _ask(self, operation: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        return self.app._client.private(operation).result()

    async def _enqueued(self, store: Store) -> list[Enqueued]:
        waiting = {job.id: job.task for job in await store.list_jobs(limit=MOST)}
        declared = {row.id for row in await store.read_declared(list(self._scheduled()))}
        ended = {run.job_id: run.task for run in await store.list_runs(limit=MOST)}
        ids = sorted(job_id for job_id in waiting.keys() | ended.keys() if job_id not in declared)
        found = [await self._enqueued_job(store, job_id) for job_id in ids]
        return [job for job in found if job is not None]

    def _scheduled(self) -> set[tuple[str, str | None]]:
        return {(job.task, job.key) for job in self.app.declarations()}

    async def _enqueued_job(self, store: Store, job_id: UUID) -> Enqueued | None:
        payload = await store.read_payload(job_id)
        task = None if payload is None else self.app.registry.find(payload.task)
        if payload is None or task is None:
            return None
        arguments = task.arguments.bound(payload.args) if payload.args is not None else {}
        headers = visible_headers(payload.headers)
        return Enqueued(task.name, arguments, headers, payload.queue, self.app._enqueuer.access.job(job_id, task))

    def _at_once(self) -> None:
        """What `app.immediate()` does after each enqueue. Inside a run the worker itself goes on."""
        if not self._is_running:
            self._drive(self._until_idle())

    def _note(self, event: events.Event) -> None:
        if isinstance(event, events.RunFailed):
            self._failures.append(event)

    @contextlib.contextmanager
    def _rebound(self, url: str) -> Iterator[None]:
        """The app with another database, another clock and another place for bodies; all as before afterwards."""
        app = self.app
        app.import_tasks()
        app.close()
        before = (app._cli, app._clock, app._now, app._inline, app._pool, app._declares)
        app._cli = {**app._cli, **SETTINGS, "database.url": url}
        app._clock, app._now = self._time.clock, self._time.now
        app._inline, app._pool, app._declares = True, self._pool, False
        app._sender.ignores_connections = True
        app._enqueuer.run_at_once = self._at_once if self._immediate else None
        app._publisher.subscribe(self._note)
        _forget_settings(app)
        try:
            yield
        finally:
            app.close()
            app._publisher.unsubscribe(self._note)
            app._sender.ignores_connections = False
            app._enqueuer.run_at_once = None
            app._cli, app._clock, app._now, app._inline, app._pool, app._declares = before
            _forget_settings(app)


def _forget_settings(app: App) -> None:
    app.__dict__.pop("loaded", None)
    app._enqueuer.limits = None


def _check_names(task: Producer[..., Any], arguments: dict[str, object]) -> None:
    for name in arguments:
        if name not in task.definition.arguments.names:
            known = ", ".join(task.definition.arguments.names) or "none"
            raise UsageError(f"Task {task.name} has no parameter {name!r}.", remedy=f"It has: {known}.")


def _wanted(task: Producer[..., Any], arguments: dict[str, object]) -> str:
    return f"{task.name}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
