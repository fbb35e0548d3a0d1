"""The command line as a process: its imports, its log, its signals, and its exit status."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.project import Project, environment, wait_for
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow
needs_signals = pytest.mark.skipif(os.name != "posix", reason="Windows has no SIGTERM that a process can answer")

if os.name == "posix":
    import fcntl
    import termios

HEAVY = {"asyncio", "asyncpg", "cronsim", "difflib", "logging", "msgspec", "rich", "sqlite3", "uvloop"}
AWAY = "postgresql://127.0.0.1:1/nothing"


def wait_until(holds: Callable[[], bool]) -> None:
    """Look until it holds."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_help_imports_next_to_nothing() -> None:
    """`reltask --help` is as fast as click itself."""
    code = "import sys; from reltask.cli import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=True)
    bare = subprocess.run(
        [sys.executable, "-c", "import click, sys; print(*sys.modules)"], capture_output=True, text=True, check=True
    )
    loaded = set(done.stdout.splitlines()[-1].split()) - set(bare.stdout.split())
    assert loaded & HEAVY == set()
    assert {name for name in loaded if name.startswith("reltask")} == {"reltask", "reltask.cli", "reltask.version"}


def test_a_reader_that_closes_the_pipe(project: Project) -> None:
    """`reltask sql --all | head -1` ends without an error."""
    process = project.start("sql", "--dialect", "sqlite", "--all")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(30) == 1
    assert process.stderr.read() == ""


@pytest.mark.skipif(os.name != "posix", reason="the shell's way to close a descriptor")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", [["migrate"], ["worker", "--once"], ["status"]])
def test_closed_streams_do_not_matter(project: Project, command: list[str], closed: str) -> None:
    """A supervisor may close all streams: the work is done, the exit status says so, and no file takes their place."""
    job = project.enqueue("hello", name="Ada")
    called = [sys.executable, "-m", "reltask.cli", command[0], project.app, *command[1:]]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *called], env=environment(), check=False)
    assert done.returncode == 0
    if command[0] == "worker":
        assert len(project.run("runs", project.app, "--job", job, "--json").json) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no device that is always full")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_on_a_full_disk(project: Project, unbuffered: str) -> None:
    """The work is done, and only the lost output is reported, with its own exit status."""
    called = [sys.executable, "-m", "reltask.cli", "enqueue", project.app, "hello", '{"name": "Ada"}']
    variables = environment(PYTHONUNBUFFERED=unbuffered)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(called, env=variables, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "error[output]: The output could not be written: No space left on device.",
        "  The command itself may have succeeded: check before you run it again.",
        "  see: reltask explain output",
    ]
    assert len(project.run("jobs", "list", project.app, "--json").json) == 1


@pytest.mark.usefixtures("project")
def test_a_narrow_encoding_does_not_matter() -> None:
    """Characters outside the terminal's encoding, such as the arrow before a remedy, are escaped."""
    called = [sys.executable, "-m", "reltask.cli", "doctor", "--database", "sqlite:///none.db"]
    narrow = environment(PYTHONIOENCODING="cp1252")
    done = subprocess.run(called, env=narrow, capture_output=True, encoding="cp1252", check=False)
    assert done.stderr == ""
    assert "\\u2" in done.stdout


def test_once_logs_json_lines_without_arguments(project: Project) -> None:
    """Each line is an object that names the worker.

    No line contains arguments or results, at any level.
    """
    project.enqueue("hello", name="a-secret-name")
    project.enqueue("fragile", secret="a-secret-word")
    result = project.call("worker", project.app, "--once", "--log-level", "debug", "--log-format", "json")
    assert result.code == 0
    lines = [json.loads(line) for line in result.err.splitlines()]
    assert {"RunStarted", "RunSucceeded", "RunFailed", "WorkerStopped"} <= {line.get("event") for line in lines}
    assert all(line["worker"] for line in lines[lines.index(next(line for line in lines if "worker" in line)) :])
    assert any("claim_jobs answered" in line["message"] for line in lines)
    assert "a-secret" not in result.err


def test_the_banner(project: Project) -> None:
    """Version, database without its password, worker, queues, tasks with their schedules, next due time."""
    result = project.call(
        "worker", project.app, "--once", "--log-format", "text", "--name", "web", "--queues", "default"
    )
    for part in ("reltask ", "database  sqlite:///jobs.db", "worker    web_", "queues    default,", "tick: every 10m"):
        assert part in result.err
    assert "next due" in result.err


def test_the_sample(project: Project) -> None:
    """It runs every 10 minutes, and logs its start, progress, end and worker."""
    result = project.call(
        "worker",
        "reltask.sample:app",
        "--once",
        "--name",
        "web",
        "--log-format",
        "text",
        RELTASK_DATABASE_URL="sqlite:///sample.db",
        TaskExecution__TaskDurationSeconds="0.02",
    )
    assert result.code == 0
    assert "SampleTask: every 10m" in result.err
    lines = [line for line in result.err.splitlines() if "SampleTask" in line and "worker=web_" in line]
    for part in ("SampleTask starts: slot of", "1 of 4 done", "4 of 4 done", "SampleTask finished after 0.0 s on web_"):
        assert any(part in line for line in lines)


EXAMPLE = ROOT / "examples" / "appsettings.json"


def test_the_example_settings_are_read(project: Project) -> None:
    """`--config examples/appsettings.json`, unchanged: each of its values is used, and says where it is from."""
    shown = project.run("config", "reltask.sample:app", "--config", str(EXAMPLE), "--json").json
    values = {one["name"]: one["value"] for one in shown if one["origin"] == f"file {EXAMPLE}"}
    assert values.pop("database.url").startswith("mssql://yourserver.database.windows.net:1433/TaskExecutionDb?")
    assert values == {"worker.poll": "1m", "worker.heartbeat": "30s", "sample.task_duration": "5s"}


@needs_signals
def test_a_worker_starts_from_an_appsettings_json(project: Project) -> None:
    """The example with a database that is here and a shorter task, found in the directory: nothing else is given."""
    settings = json.loads(EXAMPLE.read_text(encoding="utf-8"))
    settings["ConnectionStrings"]["SqlAzure"] = "sqlite:///from-the-file.db"
    settings["TaskExecution"]["TaskDurationSeconds"] = 0.3
    (project.folder / "appsettings.json").write_text(json.dumps(settings), encoding="utf-8")
    process = project.start("worker", "reltask.sample:app", "--log-format", "text")
    assert "from-the-file.db" in wait_for(process, "database ")
    wait_for(process, "SampleTask finished after 0.3 s")
    process.terminate()
    assert process.wait(30) == 0
    assert (project.folder / "from-the-file.db").exists()


@needs_signals
def test_a_signal_stops_an_idle_worker(project: Project) -> None:
    """Exit status 0, and the worker is marked as stopped."""
    process = project.start("worker", project.app, "--log-format", "json")
    wait_for(process, "Worker started")
    process.send_signal(signal.SIGINT)
    wait_for(process, "WorkerStopped")
    assert process.wait(30) == 0
    (worker,) = project.run("workers", project.app, "--json").json
    assert worker["state"] == "stopped"


def test_workers_and_their_claims_are_shown(project: Project) -> None:
    """While a job runs: which worker is alive, how much it runs, and which worker holds which job."""
    job = project.enqueue("sleepy")
    options = ["--log-format", "json", "--queues", "slow", "--name", "busy"]
    wait_for(project.start("worker", project.app, *options), "RunStarted")
    status = project.run("status", project.app, "--json").json
    assert (status["workers_alive"], status["running"], status["expired"]) == (1, 1, 0)
    (worker,) = project.run("workers", project.app, "--json").json
    assert (worker["state"], worker["running"], worker["id"][:5]) == ("alive", 1, "busy_")
    (claim,) = project.run("jobs", "list", project.app, "--state", "claimed", "--json").json
    assert (claim["id"], claim["locked_by"]) == (job, worker["id"])
    assert worker["id"] in project.run("workers", project.app).out
    assert "running        1" in project.run("status", project.app).out


def test_status_names_queues_that_no_worker_serves(project: Project) -> None:
    """A due job in a mistyped queue must be reported; one that is not due yet may wait."""
    process = project.start("worker", project.app, "--log-format", "json", "--queues", "default")
    wait_for(process, "Worker started")
    project.run("enqueue", project.app, "hello", '{"name": "Ada"}', "--queue", "later", "--delay", "1h")
    assert project.run("status", project.app, "--json").json["unserved"] == []
    project.run("enqueue", project.app, "hello", '{"name": "Ada"}', "--queue", "mial")
    assert "No live worker takes task hello from queue mial." in project.run("status", project.app).out
    assert project.run("status", project.app, "--json").json["unserved"] == [{"queue": "mial", "task": "hello"}]


CHATTY = """
@app.task(queue="chatty", lock_timeout="2s")
async def chatty(ctx: Context) -> None:
    while True:
        ctx.logger.warning("x" * 1000)
"""


@needs_signals
def test_a_full_log_pipe_delays_no_heartbeat(project: Project) -> None:
    """The log is not read, so the worker's loop waits in it; its claim is renewed for longer than its lock."""
    module = project.folder / f"{project.name}.py"
    module.write_text(module.read_text() + CHATTY)
    job = project.enqueue("chatty")
    process = project.start("worker", project.app, "--queues", "chatty")
    with closing(sqlite3.connect(project.folder / "jobs.db")) as database:

        def seen() -> tuple[int, int, int]:
            """The fence, the last heartbeat, and how many bytes wait in the pipe."""
            row = database.execute("select fence, heartbeat_at from reltask_jobs where id = ?", [job]).fetchone()
            count = array("i", [0])
            assert process.stderr is not None
            fcntl.ioctl(process.stderr, termios.FIONREAD, count)
            return row[0], row[1] or 0, count[0]

        wait_until(lambda: seen()[2] > 50_000)
        full_since = seen()[1]
        wait_until(lambda: seen()[1] > full_since + 2_200_000)
        assert seen()[0] == 1


@needs_signals
def test_a_second_signal_stops_at_once(project: Project) -> None:
    """The first lets the body go on, the second stops it; its slot and attempt are released."""
    job = project.enqueue("sleepy")
    options = ["--log-format", "json", "--queues", "slow"]
    process = project.start("worker", project.app, *options, RELTASK_WORKER_SHUTDOWN_GRACE="10m")
    wait_for(process, "RunStarted")
    process.terminate()
    assert "600 s left to finish" in wait_for(process, "WorkerStopping")
    process.terminate()
    wait_for(process, "WorkerStopped")
    assert process.wait(30) == 0
    shown = project.run("jobs", "show", job, "--app", project.app, "--json").json
    assert (shown["state"], shown["attempt"], shown["runs"][0]["outcome"]) == ("ready", 0, "released")


@needs_signals
def test_a_body_that_does_not_stop_is_left_behind_and_reported(project: Project) -> None:
    """The process ends, and its exit status says that a lock was left to expire."""
    project.enqueue("stubborn")
    options = ["--log-format", "json", "--queues", "slow"]
    process = project.start("worker", project.app, *options, RELTASK_WORKER_SHUTDOWN_GRACE="0s")
    wait_for(process, "RunStarted")
    process.terminate()
    wait_for(process, "BodyStuck")
    assert process.wait(60) == 70


def test_a_worker_gives_up_on_a_database_that_it_never_reached(project: Project) -> None:
    """It tries as often as the settings say, logs each try, and exits with its own status."""
    result = project.call(
        "worker",
        "reltask.sample:app",
        RELTASK_DATABASE_URL=AWAY,
        RELTASK_DATABASE_RETRY_ATTEMPTS="2",
        RELTASK_DATABASE_RETRY_FIRST="1ms",
    )
    assert result.code == 69
    assert result.err.count(" failed, retry in ") == 2
    assert "error[database-transient]" in result.err


@needs_signals
def test_a_signal_ends_the_wait_for_a_database(project: Project) -> None:
    """SIGTERM during the retries ends the process at once."""
    process = project.start(
        "worker", "reltask.sample:app", RELTASK_DATABASE_URL=AWAY, RELTASK_DATABASE_RETRY_FIRST="10m"
    )
    wait_for(process, "retry in")
    process.terminate()
    assert process.wait(30) == 0
