"""Hands events to their subscribers, and makes log lines of them.

    event ──► log_event ──► reltask.worker | .heartbeat | .database | .lease | .maintenance | .task.<name> ──► handlers

`log_event` writes to loggers and installs nothing, so an application keeps its own logging. The command line and
`app.run()` call `setup_logging`. Each line carries worker, job, slot and fence; none can carry arguments or results,
because events have none. No name, reason or error can forge a line or control a terminal: an event is one line, a
traceback below it is indented, and both are escaped (`model/escape.py`). A line whose level is off costs one lookup;
`is_logged` says beforehand whether a line would be written, so that its event need not be created.

    debug     statements, claims, idle times      warning   problems of heartbeats, locks and the database
    info      start and end of runs and workers   error     failed runs with their traceback, dead letters
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from queue import SimpleQueue
from typing import Any, Literal, NamedTuple, TextIO

import msgspec

from reltask import events
from reltask.model.escape import escape, escape_lines

DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR


class LogLine(NamedTuple):
    """How one kind of event is written."""

    logger: str
    """The last part of the logger's name; `task` stands for the task's own logger."""
    level: int
    text: Callable[[Any], str]


def _started(event: events.RunStarted) -> str:
    attempt = f", attempt {event.attempt}" if event.attempt > 1 else ""
    return f"{event.task} started{attempt}, {event.late:.3f} s after it was due"


def _succeeded(event: events.RunSucceeded) -> str:
    then = "" if event.next_run_time is None else f", next at {event.next_run_time:%Y-%m-%d %H:%M:%S} UTC"
    return f"{event.task} completed in {event.seconds:.3f} s{then}"


def _failed(event: events.RunFailed) -> str:
    if event.dead:
        schedule = " and its schedule stops" if event.recurring else ""
        return (
            f"{event.task} failed on attempt {event.attempt}, its last: it is a dead letter{schedule}. "
            f"To retry it: reltask dead retry {event.job_id}"
        )
    return f"{event.task} failed on attempt {event.attempt}; next attempt in {event.retry_in:.1f} s"


def _reclaimed(event: events.JobReclaimed) -> str:
    then = "; the slot will run again"
    if event.dead:
        dead = "it is a dead letter and neither runs nor recurs"
        then = f" on its last attempt: {dead}. To retry it: reltask dead retry {event.job_id}"
    return f"{event.task} was reclaimed from {event.owner}, whose lock had expired{then}"


def _stopped(event: events.WorkerStopped) -> str:
    if not event.unsettled:
        return "Worker stopped"
    return f"Worker stopped; unfinished runs: {event.unsettled}, their jobs run again when their locks expire"


def _unknown(event: events.TasksUnknown) -> str:
    names = ", ".join(f"{name} ({count})" for name, count in sorted(event.counts.items()))
    return f"Jobs are due, but no live worker knows their tasks: {names}. Start a worker that has these tasks"


def _ended(event: events.RunEnded) -> str:
    after = f"; that was its last attempt: it is a dead letter. To retry it: reltask dead retry {event.job_id}"
    return f"{event.task} {event.outcome}: {event.reason}{after if event.dead else ''}"


_ScheduleEvent = events.ScheduleLeftOver | events.ScheduleBlocked | events.DeclarationIgnored


def _schedule_name(event: _ScheduleEvent) -> str:
    return event.task if event.key is None else f"{event.task} ({event.key})"


def _ignored(event: events.DeclarationIgnored) -> str:
    return (
        f"{_schedule_name(event)} keeps its declaration of app version {event.newer}; this worker's declaration "
        f"differs, and is ignored because its app version {event.version} is older"
    )


def _blocked(event: events.ScheduleBlocked) -> str:
    return f"{_schedule_name(event)} is not scheduled until one-off job {event.job_id}, which has its key, is done"


def _left_over(event: events.ScheduleLeftOver) -> str:
    if event.beside is None:
        why = "recurs, but this worker's code does not declare it. If no other worker declares it, run"
    else:
        why = f"recurs beside its new name {event.beside}, so it runs twice. When no older worker is left, run"
    return f"{_schedule_name(event)} {why}: reltask jobs discard {event.job_id}"


_LINES: dict[type[events.Event], LogLine] = {
    events.WorkerStarted: LogLine(
        "worker", INFO, lambda e: f"Worker started: queues {', '.join(e.queues)}, {e.concurrency} jobs at a time"
    ),
    events.WorkerStopping: LogLine(
        "worker", INFO, lambda e: f"Worker stopping: {e.running} running, {e.grace:g} s left to finish"
    ),
    events.WorkerStopped: LogLine("worker", INFO, _stopped),
    events.TasksUnknown: LogLine("worker", WARNING, _unknown),
    events.ScheduleLeftOver: LogLine("worker", WARNING, _left_over),
    events.ScheduleBlocked: LogLine("worker", WARNING, _blocked),
    events.DeclarationIgnored: LogLine("worker", WARNING, _ignored),
    events.JobsClaimed: LogLine("worker", DEBUG, lambda e: f"Jobs claimed: {e.count}, limit {e.limit}"),
    events.Idle: LogLine("worker", DEBUG, lambda e: f"Nothing is due; sleeping up to {e.seconds:.3f} s"),
    events.LeaseAcquired: LogLine("lease", INFO, lambda e: f"Lease {e.lease} acquired, term {e.term}"),
    events.LeaseLost: LogLine("lease", WARNING, lambda e: f"Lease {e.lease} lost, term {e.term}: {e.reason}"),
    events.LeaseResigned: LogLine("lease", INFO, lambda e: f"Lease {e.lease} resigned, term {e.term}"),
    events.LeaseLeftToExpire: LogLine(
        "lease", WARNING, lambda e: f"Lease {e.lease} could not be resigned and is left to expire: {e.error}"
    ),
    events.WorkerDied: LogLine(
        "maintenance", WARNING, lambda e: f"Worker {e.who} is marked dead: it did not refresh its row in time"
    ),
    events.RunsPruned: LogLine("maintenance", DEBUG, lambda e: f"Removed {e.count} old runs from the ledger"),
    events.MaintenanceFailed: LogLine(
        "maintenance", WARNING, lambda e: f"Maintenance step {e.step} failed, retry in {e.retry_in:.1f} s: {e.error}"
    ),
    events.RunStarted: LogLine("task", INFO, _started),
    events.RunSucceeded: LogLine("task", INFO, _succeeded),
    events.RunFailed: LogLine("task", ERROR, _failed),
    events.RunEnded: LogLine("task", INFO, _ended),
    events.StepsRecorded: LogLine(
        "task", DEBUG, lambda e: f"{e.task} recorded steps: {', '.join(e.kinds) or 'a wait'}"
    ),
    events.StepsNotAsked: LogLine(
        "task", WARNING, lambda e: f"{e.task} ended without asking for recorded steps: {', '.join(e.steps)}"
    ),
    events.SignalsNotReceived: LogLine(
        "task",
        WARNING,
        lambda e: f"{e.task} raised Again while signals waited, which are not the next slot's: {', '.join(e.signals)}",
    ),
    events.StepChanged: LogLine(
        "task",
        WARNING,
        lambda e: f"{e.task}: step {e.step!r} was recorded with another function or other arguments; its record stays",
    ),
    events.EnqueuedOutsideStep: LogLine(
        "task",
        WARNING,
        lambda e: f"{e.task} {e.what} outside of a step, and does so again at each resume; use ctx.start, or an id",
    ),
    events.RunAbandoned: LogLine("task", WARNING, lambda e: f"{e.task} is being stopped: {e.reason}"),
    events.BodyStuck: LogLine(
        "task",
        ERROR,
        lambda e: f"{e.task} did not stop within {e.seconds:.1f} s; its lock is left to expire, its place stays taken",
    ),
    events.BodyEndedLate: LogLine("task", WARNING, lambda e: f"{e.task} has ended, after it did not stop in time"),
    events.LateWriteRefused: LogLine(
        "task", WARNING, lambda e: f"{e.task} {e.outcome} too late: it had lost its claim, and nothing was recorded"
    ),
    events.ResultNotStored: LogLine(
        "task", WARNING, lambda e: f"{e.task} completed, but its result was not stored: {e.reason}"
    ),
    events.ErrorAfterCompletion: LogLine(
        "task", ERROR, lambda e: f"{e.task} raised an error after its slot was completed; the slot stays completed"
    ),
    events.JobReclaimed: LogLine("task", WARNING, _reclaimed),
    events.HeartbeatFailed: LogLine(
        "heartbeat",
        WARNING,
        lambda e: f"Heartbeat failed, {e.failures} in a row; at {e.limit} the running jobs are stopped: {e.error}",
    ),
    events.HeartbeatLate: LogLine(
        "heartbeat", WARNING, lambda e: f"Heartbeat sent {e.seconds:.3f} s late: this process was paused or too busy"
    ),
    events.StrayReleased: LogLine(
        "heartbeat", WARNING, lambda e: f"Released job {e.job_id}: it was claimed, but the answer had been lost"
    ),
    events.OutcomeHeld: LogLine(
        "worker", WARNING, lambda e: f"The outcome of job {e.job_id} waits: another session has locked its row"
    ),
    events.DatabaseUnavailable: LogLine(
        "database", WARNING, lambda e: f"Database call {e.verb} failed, retry in {e.retry_in:.1f} s: {e.error}"
    ),
    events.DatabaseBack: LogLine("database", INFO, lambda e: f"The database answers again after {e.seconds:.1f} s"),
    events.CircuitChanged: LogLine("database", WARNING, lambda e: f"The database's circuit breaker is {e.state}"),
    events.ListenerLost: LogLine(
        "database", WARNING, lambda e: f"The listener for signals was lost, {e.reason}; the worker listens again"
    ),
}


def log_event(event: events.Event) -> None:
    """Write the event's line, if its level is enabled."""
    line = _LINES[type(event)]
    logger = _logger(line.logger, getattr(event, "task", ""))
    level = ERROR if getattr(event, "dead", False) else line.level
    if not logger.isEnabledFor(level):
        return
    extra = _extra(event)
    record = logger.makeRecord(logger.name, level, "reltask", 0, escape(line.text(event)), (), None, extra=extra)
    if isinstance(event, events.RunFailed | events.ErrorAfterCompletion):
        record.exc_text = "\n".join(escape_lines(event.error.rstrip()))  # formatters read the traceback from here
    logger.handle(record)


def is_logged(kind: type[events.Event], task: str) -> bool:
    """Whether a line of this kind would be written for this task."""
    line = _LINES[kind]
    return _logger(line.logger, task).isEnabledFor(line.level)


@lru_cache(maxsize=1024)
def _logger(area: str, task: str) -> logging.Logger:
    return logging.getLogger(f"reltask.task.{task}" if area == "task" else f"reltask.{area}")


def _extra(event: events.Event) -> dict[str, object]:
    extra: dict[str, object] = {"event": type(event).__name__, "worker": event.worker}
    if isinstance(event, events.RunEvent):
        extra |= {"task": event.task, "job": str(event.job_id), "slot": event.slot_no, "fence": event.fence}
    elif isinstance(event, (events.StrayReleased, events.OutcomeHeld)):
        extra |= {"job": str(event.job_id), "fence": event.fence}
    elif isinstance(event, _ScheduleEvent):
        extra |= {"task": event.task, "job": str(event.job_id)}
    elif isinstance(event, events.LeaseEvent):
        extra |= {"lease": event.lease, "term": event.term}
    return extra


# ── For subscribers ───────────────────────────────────────────────────────────────────────────────────────────────────

DRAIN_PATIENCE = 10.0
"""Seconds that `drain` waits for a subscriber that blocks."""


class Dispatcher:
    """A thread that hands events to their subscribers."""

    def __init__(self, emit: events.Subscriber) -> None:
        self.pid = os.getpid()
        self.queue = SimpleQueue[events.Event | None]()
        """None ends the thread. Without a limit: a lease has a few events per TTL."""
        self._emit = emit
        self._thread = threading.Thread(target=self._main, name="reltask-events", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """End after the events that are queued; a subscriber may call this itself, and then does not wait."""
        self.queue.put(None)
        if self._thread is not threading.current_thread():
            self._thread.join(DRAIN_PATIENCE)

    def _main(self) -> None:
        while (event := self.queue.get()) is not None:
            self._emit(event)


class Publisher:
    """Hands events to their subscribers. The log is the first of them, and most of its lines may be off.

    `emit` calls them at once. `emit_soon` is for a thread that must not wait for a subscriber: another thread, started
    by the first such event, calls them in order.
    """

    def __init__(self) -> None:
        self._subscribers: list[events.Subscriber] = [log_event]
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None

    def subscribe(self, subscriber: events.Subscriber) -> None:
        self._subscribers.append(subscriber)

    def unsubscribe(self, subscriber: events.Subscriber) -> None:
        self._subscribers.remove(subscriber)

    def emit(self, event: events.Event) -> None:
        """Call every subscriber; one that fails harms neither the others nor the worker."""
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                logging.getLogger("reltask").exception("A subscriber failed on %s", type(event).__name__)

    def emit_soon(self, event: events.Event) -> None:
        """Call every subscriber on another thread, and do not wait for it."""
        with self._lock:
            if self._dispatcher is None or self._dispatcher.pid != os.getpid():  # a forked child has no such thread
                self._dispatcher = Dispatcher(self.emit)
            self._dispatcher.queue.put(event)

    def drain(self) -> None:
        """Wait until the events of `emit_soon` are handed over, and end their thread; the next event starts another."""
        with self._lock:
            dispatcher, self._dispatcher = self._dispatcher, None
        if dispatcher is not None and dispatcher.pid == os.getpid():
            dispatcher.end()

    def wanted(self, kind: type[events.Event], task: str) -> bool:
        """Whether such an event has a subscriber."""
        return len(self._subscribers) > 1 or is_logged(kind, task)


# ── For programs ─────────────────────────────────────────────────────────────────────────────────────────────────────

Format = Literal["auto", "text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def setup_logging(level: str = "info", output: Format = "auto", stream: TextIO | None = None) -> None:
    """Send the process's log to `stream` (default: standard error). For programs only, not for libraries."""
    stream = stream or sys.stderr
    as_text = stream.isatty() if output == "auto" else output == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    handler.addFilter(_name_worker)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(max(root.level, INFO))  # its debug lines are about selectors


def name_worker(worker: str) -> None:
    """Add this worker to every line that names none: a process runs one worker."""
    global _worker  # noqa: PLW0603 - it belongs to the process, as the handler does
    _worker = worker


_worker = ""


def _name_worker(record: logging.LogRecord) -> bool:
    if _worker and not getattr(record, "worker", ""):
        record.worker = _worker
    return True


class TextFormatter(logging.Formatter):
    """`08:15:02 INFO    hello completed in 0.002 s  [job=… slot=1 fence=1 worker=…]`: local time, for people.

    Further lines of a message, and a traceback, are indented: only a record begins at the left.
    """

    default_msec_format = ""

    def format(self, record: logging.LogRecord) -> str:
        first, *more = escape_lines(record.getMessage())
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {first}{escape(_suffix(record))}"
        for traceback in _traceback(self, record):
            more += escape_lines(traceback)
        return "\n  ".join([head, *more])


class JsonFormatter(logging.Formatter):
    """One JSON object per line; the fields of a record are keys beside the message."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        for traceback in _traceback(self, record):
            line["traceback"] = traceback
        try:
            return escape(msgspec.json.encode(line, enc_hook=str).decode())
        except UnicodeEncodeError:  # a lone surrogate, as in a file name: rare, so only such a line is made encodable
            return escape(msgspec.json.encode(_encodable(msgspec.to_builtins(line, enc_hook=str))).decode())


def _encodable(value: object) -> object:
    """The value with each lone surrogate as a readable escape."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_encodable(name): _encodable(item) for name, item in value.items()}
        case list() | tuple():
            return [_encodable(item) for item in value]
        case _:
            return value


def _suffix(record: logging.LogRecord) -> str:
    """Job, slot, fence and worker. The job's id is complete, for pasting; the worker's id is shortened."""
    shown = [f"{name}={vars(record)[name]}" for name in ("job", "slot", "fence") if name in vars(record)]
    worker = getattr(record, "worker", None)
    shown += [f"worker={short_worker(worker)}"] if worker else []
    return f"  [{' '.join(shown)}]" if shown else ""


def short_worker(worker: str) -> str:
    """A worker's id, its unique part cut to six digits."""
    name, _, unique = worker.rpartition("_")
    return f"{name}_{unique[:6]}" if name else worker


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    if record.exc_info and not record.exc_text:
        record.exc_text = formatter.formatException(record.exc_info)
    return [record.exc_text] if record.exc_text else []
