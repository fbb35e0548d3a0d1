"""Log lines: the right level, the right fields, nothing secret, and no cost without a listener."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from reltask import events
from reltask.logs import DEBUG, ERROR, INFO, WARNING, log_event, setup_logging

JOB = UUID("01890000-0000-7000-8000-000000000007")
WORKER = "web_host_42_0123456789abcdef"
SAMPLES: dict[Any, Any] = {
    str: "text",
    str | None: "text",
    int: 7,
    float: 1.5,
    bool: False,
    UUID: JOB,
    datetime | None: datetime(2030, 1, 31, tzinfo=UTC),
    list[str]: ["default"],
    dict[str, int]: {"mail": 3},
}


def make(kind: type[events.Event], **changes: Any) -> events.Event:
    """An event of this class with some value in each field."""
    values = {field.name: SAMPLES[field.type] for field in msgspec.structs.fields(kind)}
    return kind(**{**values, "worker": WORKER, **changes})


def kinds(root: type[events.Event] = events.Event) -> list[type[events.Event]]:
    found = [kind for child in root.__subclasses__() for kind in [child, *kinds(child)]]
    return [kind for kind in found if kind not in (events.RunEvent, events.LeaseEvent)]


class Captured(logging.Handler):
    """Keeps the records."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def captured() -> Iterator[Captured]:
    """All records of reltask's loggers, at every level."""
    logger, handler = logging.getLogger("reltask"), Captured()
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(DEBUG)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(before)


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream for `setup_logging`; the process's logging is restored afterwards."""
    root = logging.getLogger()
    handlers, level, other = root.handlers[:], root.level, logging.getLogger("asyncio").level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(other)


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_event_has_a_line_that_names_its_worker(kind: type[events.Event], captured: Captured) -> None:
    """An event without a line would raise in the subscriber, and would be lost."""
    log_event(make(kind))
    (record,) = captured.records
    assert record.getMessage()
    assert vars(record)["worker"] == WORKER


@pytest.mark.parametrize("kind", [kind for kind in kinds() if issubclass(kind, events.RunEvent)], ids=str)
def test_a_line_about_a_run_names_job_slot_and_fence(kind: type[events.Event], captured: Captured) -> None:
    """These three find the run in the ledger; the logger is the task's own."""
    log_event(make(kind, task="mail"))
    (record,) = captured.records
    fields = vars(record)
    assert (fields["job"], fields["slot"], fields["fence"]) == (str(JOB), 7, 7)
    assert record.name == "reltask.task.mail"


@pytest.mark.parametrize("kind", [kind for kind in kinds() if issubclass(kind, events.LeaseEvent)], ids=str)
def test_a_line_about_a_lease_names_lease_and_term(kind: type[events.Event], captured: Captured) -> None:
    """These two find the leadership in the table."""
    log_event(make(kind))
    (record,) = captured.records
    assert (vars(record)["lease"], vars(record)["term"]) == ("text", 7)


@pytest.mark.parametrize(
    ("kind", "level", "logger"),
    [
        (events.RunStarted, INFO, "reltask.task.text"),
        (events.RunSucceeded, INFO, "reltask.task.text"),
        (events.RunEnded, INFO, "reltask.task.text"),
        (events.RunFailed, ERROR, "reltask.task.text"),
        (events.HeartbeatFailed, WARNING, "reltask.heartbeat"),
        (events.HeartbeatLate, WARNING, "reltask.heartbeat"),
        (events.OutcomeHeld, WARNING, "reltask.worker"),
        (events.DatabaseUnavailable, WARNING, "reltask.database"),
        (events.TasksUnknown, WARNING, "reltask.worker"),
        (events.ScheduleLeftOver, WARNING, "reltask.worker"),
        (events.DeclarationIgnored, WARNING, "reltask.worker"),
        (events.LeaseAcquired, INFO, "reltask.lease"),
        (events.LeaseLost, WARNING, "reltask.lease"),
        (events.JobsClaimed, DEBUG, "reltask.worker"),
        (events.Idle, DEBUG, "reltask.worker"),
    ],
)
def test_levels(kind: type[events.Event], level: int, logger: str, captured: Captured) -> None:
    """Information for the life of a task, warning for heartbeats, error for failures, debug for internals."""
    log_event(make(kind))
    (record,) = captured.records
    assert (record.levelno, record.name) == (level, logger)


@pytest.mark.parametrize("kind", [events.RunFailed, events.JobReclaimed])
def test_a_dead_letter_is_an_error(kind: type[events.Event], captured: Captured) -> None:
    """However a job used up its attempts, an operator has to look at it."""
    log_event(make(kind, dead=True))
    (record,) = captured.records
    assert record.levelno == ERROR
    assert "dead letter" in record.getMessage()


def test_death_of_a_recurring_job_says_that_its_schedule_stops(captured: Captured) -> None:
    """The slot stays where it is until an operator gives it new attempts."""
    log_event(make(events.RunFailed, task="tick", dead=True, recurring=True))
    log_event(make(events.RunFailed, task="send", dead=True, recurring=False))
    log_event(make(events.RunFailed, task="tick", dead=False, recurring=True))
    log_event(make(events.JobReclaimed, task="tick", dead=True))
    recurring, one_off, alive, reclaimed = [record.getMessage() for record in captured.records]
    assert recurring.endswith(f"its schedule stops. To retry it: reltask dead retry {JOB}")
    assert "schedule" not in one_off + alive
    assert reclaimed.endswith(f"neither runs nor recurs. To retry it: reltask dead retry {JOB}")


@pytest.mark.parametrize(("beside", "why"), [("new", "old recurs beside its new name new,"), (None, "old recurs, but")])
def test_what_to_do_about_a_schedule_left_over(captured: Captured, beside: str | None, why: str) -> None:
    """The line has the job, as a command to paste, and as a field."""
    log_event(make(events.ScheduleLeftOver, task="old", key=None, beside=beside))
    (record,) = captured.records
    assert record.getMessage().startswith(why)
    assert record.getMessage().endswith(f"reltask jobs discard {JOB}")
    assert vars(record)["job"] == str(JOB)


def test_a_line_below_the_level_is_not_formatted() -> None:
    """This runs for every event of every job: with its level off, a line must cost no formatting."""
    unprintable = make(events.RunStarted, task="quiet", late="not a number")
    logging.getLogger("reltask.task.quiet").setLevel(WARNING)
    log_event(unprintable)


def test_json_line_with_a_lone_surrogate_is_written(stream: io.StringIO) -> None:
    """File names and other texts contain them; the line is kept, with the surrogate as a readable escape."""
    setup_logging("info", "json", stream)
    logging.getLogger("mine").info(
        "read %s", "caf\udce9", extra={"parts": {"caf\udce9": ["\udce9", 1]}, "what": {"\udce9"}}
    )
    line = json.loads(stream.getvalue())
    assert line["message"] == r"read caf\udce9"
    assert line["parts"] == {r"caf\udce9": [r"\udce9", 1]}
    assert line["what"] == [r"\udce9"]


def test_json_lines(stream: io.StringIO) -> None:
    """One object per line, with UTC times; extra fields and the traceback become keys."""
    setup_logging("debug", "json", stream)
    log_event(make(events.RunFailed, task="mail", error="Traceback …\nValueError: no\n"))
    logging.getLogger("mine").info("odd %s", "one", extra={"what": {1, 2}, "job": JOB})
    failed, odd = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert datetime.fromisoformat(failed["time"]).utcoffset() == UTC.utcoffset(None)
    assert failed["level"] == "error"
    assert failed["traceback"] == "Traceback …\nValueError: no"
    assert (failed["worker"], failed["job"], failed["slot"], failed["fence"]) == (WORKER, str(JOB), 7, 7)
    assert (odd["message"], odd["logger"], odd["job"]) == ("odd one", "mine", str(JOB))


def test_json_lines_hold_an_exception_of_the_user(stream: io.StringIO) -> None:
    """`logger.exception` in a task works as usual."""
    setup_logging("info", "json", stream)
    try:
        int("mine")
    except ValueError:
        logging.getLogger("mine").exception("failed")
    assert "ValueError: invalid literal" in json.loads(stream.getvalue())["traceback"]


def test_text_lines(stream: io.StringIO) -> None:
    """Time, level, message, origin; the traceback below, indented."""
    setup_logging("info", "text", stream)
    log_event(make(events.RunFailed, task="mail", error="Traceback …\nValueError: no\n"))
    log_event(make(events.Idle))
    first, *rest = stream.getvalue().splitlines()
    assert " ERROR   mail failed on attempt 7; next attempt in 1.5 s  " in first
    assert first.endswith(f"[job={JOB} slot=7 fence=7 worker=web_host_42_012345]")
    assert rest == ["  Traceback …", "  ValueError: no"]


def test_auto_is_json_without_a_terminal(stream: io.StringIO) -> None:
    """A log collector reads it."""
    setup_logging("info", "auto", stream)
    logging.getLogger("mine").info("hello")
    assert json.loads(stream.getvalue())["message"] == "hello"


def test_the_library_installs_no_handlers() -> None:
    """Logging belongs to the application; only programs set it up."""
    import reltask.app  # noqa: F401, PLC0415 - the import is the test

    assert logging.getLogger("reltask").handlers == []
