"""What reltask prints, logs and reads at its edges, with hostile text in every place.

A terminal obeys control characters, and a reader believes what looks like a line of its own: so no
character of such a kind may come through from the database, from an error or from a log message.
"""

from __future__ import annotations

import io
import json
import logging
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask import App, cli, events
from reltask.cli import COMMANDS, run
from reltask.cli.demo.view import Lines, Live
from reltask.cli.errors import report
from reltask.logs import log_event, setup_logging
from reltask.model.escape import escape
from tests.unit.test_logs import kinds

CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]
BIDI = [0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]
SEPARATORS = [0x2028, 0x2029]
HOSTILE = {chr(code) for code in [*CONTROLS, *BIDI, *SEPARATORS]}
FORGED = "12:00:00 ERROR   forged"
EVIL = f"x\n{FORGED}\r\n\x1b]52;c;cm0=\x07{''.join(sorted(HOSTILE - {chr(0)}))}y"
"""A line that looks real, the clipboard's escape sequence, and every hostile character (SQLite's text ends at NUL)."""
TABLES = {
    *("jobs", "runs", "workers", "leases", "lease_waiters", "metrics"),
    *("steps", "signals", "child_ends", "marks", "pauses", "actions", "keys"),
}
LEASE = "reltask:maintenance"
JOB = "01890000-0000-7000-8000-000000000007"
COMMAND_LINES = [
    "status",
    "jobs list",
    f"jobs show {JOB}",
    f"jobs run {JOB}",
    f"jobs pause {JOB}",
    f"jobs resume {JOB}",
    f"steps forget {JOB} charge --yes",
    "runs",
    "workers",
    "leases list",
    "queues list",
    "limits list",
    "schedules list",
    "tasks list",
    "queues pause other",
    "tasks resume other",
    "stats",
    "actions",
    "audit",
    "doctor",
    "dead list",
    f"dead show {JOB}",
    f"dead retry {JOB}",
    "migrate",
    "sql claim_jobs --dialect sqlite",
    "config",
]
"""Every command that reads the database, and a few that report what they changed."""
FREE = {
    "task",
    "key",
    "queue",
    "worker",
    "error",
    "host",
    "reason",
    "paused_by",
    "version",
    "app_version",
    "holder",
    "locked_by",
}
"""Columns that may hold any text, as far as reading them goes."""
SHOWING = {
    "status",
    "jobs list",
    f"jobs show {JOB}",
    "runs",
    "workers",
    "leases list",
    "queues list",
    "stats",
    "dead list",
}


# The command line


def rows(now: int) -> dict[str, dict[str, Any]]:
    """A row for each table but jobs."""
    later = now + 3_600_000_000
    run_times = {"nominal_time": now, "due_at": now, "claimed_at": now, "finished_at": now}
    run_texts = {"task": "victim", "key": "one", "queue": "default", "worker": "w_1_a", "error": "Error: no"}
    worker_texts = {"host": "h", "version": "0.1.0", "app_version": "1", "queues": '["q"]', "tasks": '["victim"]'}
    worker_times = {"started_at": now, "heartbeat_at": now, "alive_until": later}
    lease_times = {"acquired_at": now, "heartbeat_at": now, "ttl_ms": 3_600_000, "expires_at": later}
    counts = {"succeeded": 1, "failed": 0, "seconds": 1.0, "seconds_most": 1.0, "late": 0.0, "late_most": 0.0}
    return {
        "runs": {"job_id": JOB, "fence": 1, "slot_no": 1, "attempt": 1, "outcome": "failed"} | run_times | run_texts,
        "workers": {"id": "w_1_a", "pid": 1, "concurrency": 1} | worker_texts | worker_times,
        "leases": {"name": LEASE, "holder": "w_1_a", "acquisition": JOB, "term": 1, "metadata": "{}"} | lease_times,
        "lease_waiters": {"name": LEASE, "holder": "w_2_b", "waiting_until": later},
        "metrics": {"minute": now, "task": "victim"} | counts,
        "steps": {"job_id": JOB, "slot_no": 1, "name": "charge", "kind": "step", "state": "failed", "fence": 1}
        | {"value": "1", "error": "Error: no", "fingerprint": "", "attempt": 1, "signal": "go", "pending": 0}
        | {"started_at": now, "recorded_at": now},
        "signals": {"job_id": JOB, "slot_no": 1, "name": "go", "id": "click", "value": "1", "sent_at": now},
        "child_ends": {"parent_id": JOB, "slot_no": 1, "step": "labels", "nth": 0, "job_id": JOB}
        | {"outcome": "failed", "error": "Error: no", "ended_at": now},
        "marks": {"at": now, "kind": "signal", "job_id": JOB, "slot_no": 1, "name": "go"},
        "pauses": {"kind": "queue", "name": "default", "reason": "no", "paused_by": "me", "paused_at": now},
        "keys": {"task": "victim", "key": "k", "job_id": JOB, "until": None, "until_start": 0},
        "actions": {"id": JOB, "at": now, "actor": "me", "action": "retry", "target": "victim", "seen": "1"}
        | {"jobs": 1, "outcome": "done", "changed": 1},
    }


def populated(file: Path) -> str:
    """A database with a row in every table; its URL."""
    url = f"sqlite:///{file}"
    assert run(["migrate", "--database", url]) == 0
    app = App(url)
    task = app.task(name="victim", max_attempts=1)(lambda: None)
    ids = [task.using(key=key).enqueue_sync().id for key in ("one", "two")]
    app.close()
    with closing(sqlite3.connect(file)) as connection:
        (now,) = connection.execute("select max(created_at) from reltask_jobs").fetchone()
        for table, row in rows(now).items():
            names = ", ".join(row)
            marks = ", ".join("?" for _ in row)
            connection.execute(f"insert into reltask_{table} ({names}) values ({marks})", list(row.values()))
        connection.execute(
            "update reltask_jobs set id = ?, dead_at = ?, attempt = 1 where id = ?", [JOB, now, str(ids[0])]
        )
        connection.commit()
    return url


def text_columns(file: Path) -> list[tuple[str, str]]:
    with closing(sqlite3.connect(file)) as connection:
        return [
            (table, name)
            for table in sorted(TABLES)
            for _, name, kind, *_ in connection.execute(f"pragma table_info(reltask_{table})")
            if kind.lower() == "text"
        ]


def plant(file: Path, table: str, column: str) -> None:
    """Write the hostile text into a column, past every check; into JSON columns as JSON that says the same."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma ignore_check_constraints = on")
        olds = connection.execute(f"select distinct {column} from reltask_{table}").fetchall()
        for number, (old,) in enumerate(olds):
            evil = EVIL + str(number)
            if isinstance(old, str) and old[:1] in ("[", "{"):
                evil = json.dumps([EVIL] if old[0] == "[" else {EVIL: EVIL}, ensure_ascii=False)
            connection.execute(f"update reltask_{table} set {column} = ? where {column} is ?", [evil, old])
        connection.commit()


def hostile_in(printed: str) -> list[str]:
    """The hostile characters in what a command printed; its own line ends are none."""
    return sorted({hex(ord(char)) for char in printed if char in HOSTILE - {"\n"}})


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No settings from outside."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELTASK_DATABASE_URL", raising=False)


SERVERS = {"worker", "dashboard", "exporter"}
"""What these print of the database goes through the log, or over HTTP: tests of their own look at it."""


def test_every_command_is_tried() -> None:
    """A new command has to be given its place here, unless it prints no text of the database."""
    tried = {line.split()[0] for line in COMMAND_LINES}
    assert set(COMMANDS) - tried == SERVERS | {"demo", "enqueue", "explain", "shards"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("hostile") / "jobs.db"
    populated(file)
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("pragma journal_mode = delete")
    return file


def planted(template: Path, folder: Path, *columns: tuple[str, str]) -> str:
    """The URL of a database that has the hostile text in these columns."""
    file = folder / f"{'-'.join(columns[0])}.db"
    file.write_bytes(template.read_bytes())
    for table, column in columns:
        plant(file, table, column)
    return f"sqlite:///{file}"


def check_harmless(capsys: pytest.CaptureFixture[str], *, traceback: bool = False) -> str:
    printed = "".join(capsys.readouterr())
    assert hostile_in(printed) == []
    forged = [line for line in printed.splitlines() if line.lstrip().startswith(FORGED[:8])]
    assert forged == [] or traceback, "only a traceback has lines of its own"
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("line", COMMAND_LINES)
@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.usefixtures("quiet")
def test_no_command_prints_what_a_terminal_obeys(
    line: str, *, as_json: bool, template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hostile names, keys, hosts and errors: nothing that moves the cursor, hides or forges a line is printed."""
    free = [(table, column) for table, column in text_columns(template) if column in FREE]
    url = planted(template, tmp_path, *free)
    capsys.readouterr()
    run([*line.split(), "--database", url, *(["--json"] if as_json else [])])
    printed = check_harmless(capsys, traceback=line.startswith("dead show"))
    assert "]52;c;cm0=" in printed or line not in SHOWING, "nothing hostile was printed"


@pytest.mark.slow
@pytest.mark.parametrize("line", sorted(SHOWING))
@pytest.mark.usefixtures("quiet")
def test_no_malformed_row_reaches_the_terminal(
    line: str, template: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hostile text where an id, JSON, a schedule or an outcome belongs: a row or an error is printed, escaped."""
    formed = [(table, column) for table, column in text_columns(template) if column not in FREE]
    assert formed
    for column in formed:
        url = planted(template, tmp_path, column)
        capsys.readouterr()
        run([*line.split(), "--database", url])
        check_harmless(capsys)


def test_commands_print_through_one_module() -> None:
    """Whatever a new command prints is escaped: no other module of the command line writes by itself."""
    folder = Path(cli.__file__).parent
    writers = re.compile(r"click\.(echo|secho|echo_via_pager)|\bprint\(|(stdout|stderr)\.write")
    writing = {str(file.relative_to(folder)) for file in folder.rglob("*.py") if writers.search(file.read_text())}
    assert writing == {"show.py"}


def test_errors_of_a_user_are_printed_harmless(capsys: pytest.CaptureFixture[str]) -> None:
    """An error's further lines are indented, so that none looks like the error's own; also with --debug."""
    for debug in (False, True):
        report(ValueError(EVIL), debug=debug)
        printed = capsys.readouterr().err
        assert hostile_in(printed) == []
        assert f"  {FORGED}" in printed
        assert f"\n{FORGED}" not in printed.partition("error[bug]")[2]


def test_demo_escapes_what_it_shows(capsys: pytest.CaptureFixture[str]) -> None:
    """The demo's two outputs show names of workers, which it reads from the database."""
    Lines().say(EVIL)
    printed = capsys.readouterr().err
    assert hostile_in(printed) == []
    assert len(printed.splitlines()) == 1
    live = Live(None)
    live.say(EVIL)
    (line,) = live._lines
    assert hostile_in(line) == []


# The log


SAMPLES: dict[Any, Any] = {
    str: EVIL,
    str | None: EVIL,
    int: 7,
    float: 1.5,
    bool: True,
    UUID: UUID(JOB),
    datetime | None: datetime(2030, 1, 31, tzinfo=UTC),
    list[str]: [EVIL],
    dict[str, int]: {EVIL: 3},
}


def hostile_event(kind: type[events.Event]) -> events.Event:
    """An event whose every text is hostile."""
    return kind(**{field.name: SAMPLES[field.type] for field in msgspec.structs.fields(kind)})


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """A stream for `setup_logging`; the process's logging is restored afterwards."""
    root = logging.getLogger()
    handlers, level, other = root.handlers[:], root.level, logging.getLogger("asyncio").level
    yield io.StringIO()
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel(other)


def records_of(text: str) -> list[str]:
    """The lines that begin at the left: each is a record."""
    return [line for line in text.split("\n") if line and not line.startswith("  ")]


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_no_event_forges_a_line_of_the_log(kind: type[events.Event], stream: io.StringIO) -> None:
    """Whatever its texts contain, an event is one record; only a traceback is below it, indented."""
    setup_logging("debug", "text", stream)
    log_event(hostile_event(kind))
    assert len(records_of(stream.getvalue())) == 1
    assert hostile_in(stream.getvalue()) == []
    if kind not in (events.RunFailed, events.ErrorAfterCompletion):
        assert len(stream.getvalue().splitlines()) == 1


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_no_event_hides_in_a_json_line(kind: type[events.Event], stream: io.StringIO) -> None:
    """JSON lines are read on terminals, too: C1, DEL and bidi controls are escaped as C0 is."""
    setup_logging("debug", "json", stream)
    log_event(hostile_event(kind))
    assert len(stream.getvalue().splitlines()) == 1
    assert hostile_in(stream.getvalue()) == []
    assert json.loads(stream.getvalue())["worker"] == EVIL, "the value is kept"


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_message_of_a_task_forges_a_line(form: Literal["text", "json"], stream: io.StringIO) -> None:
    """A message may have lines, and an exception its traceback: they are indented, and each is escaped."""
    setup_logging("info", form, stream)
    try:
        int(EVIL)
    except ValueError:
        logging.getLogger("mine").exception("read %s", EVIL)
    assert len(records_of(stream.getvalue())) == 1
    assert hostile_in(stream.getvalue()) == []


@given(st.text())
def test_escaped_text_is_harmless_and_otherwise_the_same(text: str) -> None:
    """One line; harmless text is unchanged; escaping twice changes nothing."""
    once = escape(text)
    assert not HOSTILE & set(once)
    assert escape(once) == once
    if not HOSTILE & set(text):
        assert once == text
