"""Log lines from events.

    event ──► log_event ──► reltask.worker | .heartbeat | .database | .lease | .maintenance | .task.<name> ──► listeners

`log_event` only speaks to loggers; it installs nothing, so that an application keeps its own logging. The command line
and `app.run()` call `setup_logging`. Each line carries worker, job, slot and fence; none can carry arguments or
results, because events have none. A line whose level is off costs a lookup; whether one would be written can be asked
before its event is made.

    debug     statements, claims, idleness        warning   heartbeats, locks and the database in trouble
    info      the life of a task and a worker     error     failed runs with their traceback, dead letters
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TextIO

import msgspec

from reltask import events

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
        then = (
            f"its schedule stops until: reltask dead retry {event.job_id}" if event.recurring else "reltask dead list"
        )
        return f"{event.task} failed at its last attempt ({event.attempt}) and is a dead letter now: {then}"
    return f"{event.task} failed, attempt {event.attempt}; again in {event.retry_in:.1f} s"


def _reclaimed(event: events.JobReclaimed) -> str:
    then = "the slot will run again"
    if event.dead:
        dead = "it was its last attempt: a dead letter now"
        then = f"{dead}; it neither runs nor recurs until: reltask dead retry {event.job_id}"
    return f"{event.task} was lost by {event.owner}, whose lock has ended; {then}"


def _stopped(event: events.WorkerStopped) -> str:
    return "Worker stopped" if not event.unsettled else f"Worker stopped; {event.unsettled} runs are left to expire"


def _unknown(event: events.TasksUnknown) -> str:
    names = ", ".join(f"{name} ({count})" for name, count in sorted(event.counts.items()))
    return f"Due, but no live worker knows these tasks: {names}"


_ScheduleEvent = events.ScheduleLeftOver | events.ScheduleBlocked | events.DeclarationIgnored


def _schedule_name(event: _ScheduleEvent) -> str:
    return event.task if event.key is None else f"{event.task} ({event.key})"


def _ignored(event: events.DeclarationIgnored) -> str:
    return (
        f"{_schedule_name(event)} recurs as version {event.newer} of the app declared it; "
        f"the declaration of this worker's version {event.version} differs, and is ignored because it is older"
    )


def _blocked(event: events.ScheduleBlocked) -> str:
    return f"{_schedule_name(event)} does not recur before the one-off that has its key is done: job {event.job_id}"


def _left_over(event: events.ScheduleLeftOver) -> str:
    if event.beside is None:
        why = "recurs, but this worker's code does not declare it; if no other worker's does"
    else:
        why = f"recurs beside {event.beside}, which has taken its place: twice in all; once no older worker runs"
    return f"{_schedule_name(event)} {why}: reltask jobs discard {event.job_id}"


_LINES: dict[type[events.Event], LogLine] = {
    events.WorkerStarted: LogLine(
        "worker", INFO, lambda e: f"Worker started: queues {', '.join(e.queues)}, {e.concurrency} at a time"
    ),
    events.WorkerStopping: LogLine(
        "worker", INFO, lambda e: f"Worker stopping: {e.running} running, they have {e.grace:g} s to finish"
    ),
    events.WorkerStopped: LogLine("worker", INFO, _stopped),
    events.TasksUnknown: LogLine("worker", WARNING, _unknown),
    events.ScheduleLeftOver: LogLine("worker", WARNING, _left_over),
    events.ScheduleBlocked: LogLine("worker", WARNING, _blocked),
    events.DeclarationIgnored: LogLine("worker", WARNING, _ignored),
    events.JobsClaimed: LogLine("worker", DEBUG, lambda e: f"Claimed {e.count} of at most {e.limit}"),
    events.Idle: LogLine("worker", DEBUG, lambda e: f"Nothing to do for {e.seconds:.3f} s"),
    events.LeaseAcquired: LogLine("lease", INFO, lambda e: f"Lease {e.lease} acquired, term {e.term}"),
    events.LeaseLost: LogLine("lease", WARNING, lambda e: f"Lease {e.lease} lost, term {e.term}: {e.reason}"),
    events.LeaseResigned: LogLine("lease", INFO, lambda e: f"Lease {e.lease} given back, term {e.term}"),
    events.LeaseLeftToExpire: LogLine(
        "lease", WARNING, lambda e: f"Lease {e.lease} could not be given back, and is left to expire: {e.error}"
    ),
    events.WorkerDied: LogLine("maintenance", WARNING, lambda e: f"{e.who} is dead: it gave no sign of life"),
    events.RunsPruned: LogLine("maintenance", DEBUG, lambda e: f"Removed {e.count} old runs from the ledger"),
    events.MaintenanceFailed: LogLine(
        "maintenance", WARNING, lambda e: f"{e.step} failed, again in {e.retry_in:.1f} s: {e.error}"
    ),
    events.RunStarted: LogLine("task", INFO, _started),
    events.RunSucceeded: LogLine("task", INFO, _succeeded),
    events.RunFailed: LogLine("task", ERROR, _failed),
    events.RunEnded: LogLine("task", INFO, lambda e: f"{e.task} {e.outcome}: {e.reason}"),
    events.RunAbandoned: LogLine("task", WARNING, lambda e: f"{e.task} is being stopped: {e.reason}"),
    events.BodyStuck: LogLine(
        "task", ERROR, lambda e: f"{e.task} does not stop; after {e.seconds:.1f} s its lock is left to expire"
    ),
    events.BodyEndedLate: LogLine("task", WARNING, lambda e: f"{e.task} has ended after all"),
    events.LateWriteRefused: LogLine(
        "task", WARNING, lambda e: f"{e.task} {e.outcome} too late: the claim had passed to somebody else"
    ),
    events.ResultNotStored: LogLine(
        "task", WARNING, lambda e: f"{e.task} completed, its result was not kept: {e.reason}"
    ),
    events.ErrorAfterCompletion: LogLine("task", ERROR, lambda e: f"{e.task} raised after its slot was completed"),
    events.JobReclaimed: LogLine("task", WARNING, _reclaimed),
    events.HeartbeatFailed: LogLine(
        "heartbeat", WARNING, lambda e: f"Heartbeat failed, {e.failures} of {e.limit} in a row: {e.error}"
    ),
    events.HeartbeatLate: LogLine("heartbeat", WARNING, lambda e: f"Heartbeat sent {e.seconds:.3f} s late"),
    events.StrayReleased: LogLine("heartbeat", WARNING, lambda _: "A claim whose answer was lost has been given back"),
    events.DatabaseUnavailable: LogLine(
        "database", WARNING, lambda e: f"{e.verb} failed, again in {e.retry_in:.1f} s: {e.error}"
    ),
    events.DatabaseBack: LogLine("database", INFO, lambda e: f"The database answers again, after {e.seconds:.1f} s"),
    events.CircuitChanged: LogLine("database", WARNING, lambda e: f"The circuit to the database is {e.state}"),
}


def log_event(event: events.Event) -> None:
    """Write the event's line, if anybody wants it."""
    line = _LINES[type(event)]
    logger = _logger(line.logger, getattr(event, "task", ""))
    level = ERROR if getattr(event, "dead", False) else line.level
    if not logger.isEnabledFor(level):
        return
    extra = _extra(event)
    record = logger.makeRecord(logger.name, level, "reltask", 0, line.text(event), (), None, extra=extra)
    if isinstance(event, events.RunFailed | events.ErrorAfterCompletion):
        record.exc_text = event.error.rstrip()  # where every formatter looks for a traceback
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
    elif isinstance(event, events.StrayReleased):
        extra |= {"job": str(event.job_id), "fence": event.fence}
    elif isinstance(event, _ScheduleEvent):
        extra |= {"task": event.task, "job": str(event.job_id)}
    elif isinstance(event, events.LeaseEvent):
        extra |= {"lease": event.lease, "term": event.term}
    return extra


# ── For programs ─────────────────────────────────────────────────────────────────────────────────────────────────────

Format = Literal["auto", "text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def setup_logging(level: str = "info", output: Format = "auto", stream: TextIO | None = None) -> None:
    """Send the process's log to the stream (standard error). For programs only: a library leaves logging alone."""
    stream = stream or sys.stderr
    as_text = stream.isatty() if output == "auto" else output == "text"
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter() if as_text else JsonFormatter())
    handler.addFilter(_name_worker)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    logging.getLogger("asyncio").setLevel(max(root.level, INFO))  # its debug lines tell of selectors


def name_worker(worker: str) -> None:
    """From now on, lines that name no worker name this one: a process runs one."""
    global _worker  # noqa: PLW0603 - it belongs to the process, as the handler does
    _worker = worker


_worker = ""


def _name_worker(record: logging.LogRecord) -> bool:
    if _worker and not getattr(record, "worker", ""):
        record.worker = _worker
    return True


class TextFormatter(logging.Formatter):
    """`08:15:02 INFO    hello completed in 0.002 s  [job=… slot=1 fence=1 worker=…]`: local time, for people."""

    default_msec_format = ""

    def format(self, record: logging.LogRecord) -> str:
        head = f"{self.formatTime(record, '%H:%M:%S')} {record.levelname:<7} {record.getMessage()}{_suffix(record)}"
        return "\n".join([head, *_traceback(self, record)])


class JsonFormatter(logging.Formatter):
    """One JSON object per line; what a line carries beside its message are keys of their own."""

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
            return msgspec.json.encode(line, enc_hook=str).decode()
        except UnicodeEncodeError:  # a lone surrogate, as in the name of a file: rare, so that only such a line pays
            return msgspec.json.encode(_encodable(msgspec.to_builtins(line, enc_hook=str))).decode()


def _encodable(value: object) -> object:
    """The value with each lone surrogate as an escape that people can read."""
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
    """Where the line comes from. The job's id is whole, to be pasted; of a worker's unique part six digits will do."""
    shown = [f"{name}={vars(record)[name]}" for name in ("job", "slot", "fence") if name in vars(record)]
    worker = getattr(record, "worker", None)
    shown += [f"worker={short_worker(worker)}"] if worker else []
    return f"  [{' '.join(shown)}]" if shown else ""


def short_worker(worker: str) -> str:
    """A worker's id with six digits of its unique part."""
    name, _, unique = worker.rpartition("_")
    return f"{name}_{unique[:6]}" if name else worker


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> list[str]:
    if record.exc_info and not record.exc_text:
        record.exc_text = formatter.formatException(record.exc_info)
    return [record.exc_text] if record.exc_text else []
