"""A process that is a worker: logging, signals, event loop, banner, exit status. `app.worker()` touches none of them.

    first SIGTERM or Ctrl+C    claims no more; bodies may finish within worker.shutdown_grace
    second                     stops the bodies now, and releases their claims
    third                      kills the process; its locks expire

A running worker waits through a database outage. A starting worker gives up after the configured retries, because the
URL may be wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from reltask import __version__
from reltask.errors import ConfigurationError, DatabaseError, MissingExtra, ReltaskError, SchemaError, UsageError
from reltask.logs import name_worker, setup_logging
from reltask.model.connection_url import safe_url
from reltask.model.job import State
from reltask.model.schedule import decode, describe
from reltask.producer.portal import new_event_loop
from reltask.worker.posix import install_stop_signals
from reltask.worker.worker import Worker

if TYPE_CHECKING:
    from reltask.app import App, Lifespan

EXIT_OK = 0
EXIT_ERROR = 1
"""The command failed."""
EXIT_USAGE = 2
"""The command line itself is wrong."""
EXIT_UNAVAILABLE = 69
"""The database cannot be reached, or refuses the connection or the statement."""
EXIT_UNSETTLED = 70
"""A bug in reltask, or runs left unfinished at shutdown: their locks expire."""
EXIT_CONFIGURATION = 78
"""Wrong settings, a wrong declaration, a missing package or the wrong schema version."""
COLLECT_AFTER = (20_000, 20, 100)
"""Thresholds of a worker's garbage collector."""

_log = logging.getLogger("reltask.worker")


def exit_code(error: BaseException) -> int:
    """The exit status for an error, by its kind, for the process's supervisor."""
    match error:
        case UsageError():
            return EXIT_USAGE
        case ConfigurationError() | MissingExtra() | SchemaError():
            return EXIT_CONFIGURATION
        case DatabaseError():
            return EXIT_UNAVAILABLE
        case ReltaskError():
            return EXIT_ERROR
        case _:
            return EXIT_UNSETTLED


def run_worker(app: App, *, once: bool = False, uvloop: bool = True) -> int:
    """Run a worker until a signal, or with `once` until nothing is due, and return the exit status.

    Errors during the start are raised. `uvloop`: use uvloop if it is installed.
    """
    setup_logging(app.settings.log.level, app.settings.log.format)
    if app.lifespan is not None:
        app.lifespan = _with_clear_errors(app.lifespan)
    calm_collector()
    with asyncio.Runner(loop_factory=new_event_loop if uvloop else None) as runner:
        return runner.run(_serve(app, once=once))


def calm_collector() -> None:
    """Make the garbage collector run less often, and not over imported modules. For a process that is only a worker.

    Nearly all objects of a run are freed by reference counting. With Python's default thresholds the collector would
    scan them, and every module's objects, many times a second: a third of the worker's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def failed(what: str, error: Exception) -> ConfigurationError:
    """The user's own code failed, and reltask cannot start without it: report it as a configuration error."""
    return ConfigurationError(
        f"{what} failed: {type(error).__name__}: {error}", remedy="Run it again with --debug for the traceback."
    )


def _with_clear_errors(lifespan: Lifespan) -> Lifespan:
    """The same lifespan; an error raised by opening or closing it says that the app's lifespan failed.

    An error of the worker that passes through the lifespan is not changed.
    """

    @asynccontextmanager
    async def wrapped(app: App) -> AsyncIterator[Any]:
        of_worker: Exception | None = None
        try:
            async with lifespan(app) as state:
                try:
                    yield state
                except Exception as error:
                    of_worker = error
                    raise
        except Exception as error:
            if error is of_worker or isinstance(error, ReltaskError):
                raise
            raise failed("The app's lifespan", error) from error

    return wrapped


async def _serve(app: App, *, once: bool) -> int:
    async with _signals() as signals:
        _log.info("reltask %s: connecting to %s", __version__, safe_url(app.url))
        async with _unless_stopped(signals), app.worker() as worker:
            signals.worker = worker
            name_worker(worker.id)
            _log.info(await _banner(app, worker))
            if once:
                await _first_of(worker.drained(), signals.stop.wait())
            else:
                await signals.stop.wait()
    return EXIT_UNSETTLED if signals.unsettled else EXIT_OK


class _Signals:
    """The stop signals received so far, and what they act on."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        self.worker: Worker | None = None
        self.starting: asyncio.Task[None] | None = None
        self.restore: Callable[[], None] = lambda: None

    @property
    def unsettled(self) -> int:
        """Runs that the worker could not release."""
        return 0 if self.worker is None else self.worker.running

    def arrived(self) -> None:
        if self.worker is None and self.starting is not None:
            self.starting.cancel()
        if self.stop.is_set():
            _log.warning("Second stop signal: stopping the running task bodies now")
            self.restore()
            if self.worker is not None:
                self.worker.hurry()
        self.stop.set()


@asynccontextmanager
async def _signals() -> AsyncIterator[_Signals]:
    signals = _Signals()
    signals.restore = install_stop_signals(asyncio.get_running_loop(), signals.arrived)
    try:
        yield signals
    finally:
        signals.restore()


@asynccontextmanager
async def _unless_stopped(signals: _Signals) -> AsyncIterator[None]:
    """A stop signal during the start, which may wait for the database, cancels the start. No job is claimed yet."""
    signals.starting = asyncio.current_task()
    try:
        yield
    except asyncio.CancelledError:
        if not signals.stop.is_set() or signals.worker is not None:
            raise
        _log.info("Stopped by a signal before the worker had started; no job was claimed")


async def _first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


# The banner


async def _banner(app: App, worker: Worker) -> str:
    settings = app.settings.worker
    lines = [
        f"reltask {__version__}",
        f"database  {safe_url(app.url)}",
        f"worker    {worker.id}",
        f"queues    {', '.join(settings.queues or app.registry.queues())}, {settings.concurrency} at a time",
        *_tasks(app),
        f"next due  {await _next_due(app)}",
    ]
    return "\n".join(lines)


def _tasks(app: App) -> list[str]:
    """Each task with the schedules of its recurring jobs."""
    schedules: dict[str, list[str]] = {task.name: [] for task in app.registry}
    for job in app.declarations():
        key = f" ({job.key})" if job.key else ""
        schedules[job.task].append(f"{describe(decode(job.schedule))}{key}" if job.schedule else "")
    names = [f"{name}: {', '.join(found) or 'on request'}" for name, found in sorted(schedules.items())]
    return [f"{'tasks' if index == 0 else '':<8}  {name}" for index, name in enumerate(names or ["none"])]


async def _next_due(app: App) -> str:
    with contextlib.suppress(DatabaseError):
        for job in await app.jobs(state=State.READY, limit=1):
            return f"{job.due_at:%Y-%m-%d %H:%M:%S} UTC, {job.task}"
        return "nothing yet"
    return "unknown"
