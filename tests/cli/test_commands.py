"""What the commands do, on real files."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from importlib import import_module
from pathlib import Path

import pytest

from reltask.cli import COMMANDS, cli
from reltask.stores.migration import migrations
from tests.cli.project import Project
from tests.worker.test_malformed_rows import PLANTED, plant_sqlite

READING = ["status", "runs", "workers", "stats", "audit", "migrate", "sql", "config"]
READING += ["jobs list", "jobs show", "dead list", "dead show", "leases list", "queues list", "tasks list"]
READING += ["schedules list", "schedules preview"]
MISSING = "01890000-0000-7000-8000-000000000007"


@pytest.fixture
def worked(project: Project) -> Project:
    """Three jobs have run: one succeeded, one is a dead letter, one recurs."""
    project.enqueue("hello", name="Ada")
    project.enqueue("fragile", secret="hush")
    assert project.call("worker", project.app, "--once").code == 0
    return project


# Help


def test_every_command_is_there_and_explains_itself(project: Project) -> None:
    """The lines of the help are constants; each names a command that has its own help."""
    for name in COMMANDS:
        assert project.run(name, "--help").out.startswith(f"Usage: reltask {name}")


@pytest.mark.parametrize("name", READING)
def test_every_reading_command_has_json(name: str, project: Project) -> None:
    """Every command that reads has `--json`."""
    assert "--json" in project.run(*name.split(), "--help").out


def test_an_unknown_command_suggests_one(project: Project) -> None:
    """The exit status is that of wrong usage."""
    result = project.run("wrker")
    assert result.code == 2
    assert "Did you mean worker?" in result.err


def test_the_help_page_names_every_command_and_exit_status() -> None:
    """docs/cli.md and the help text list every command and exit status."""
    page = (Path(__file__).parents[2] / "docs/cli.md").read_text()
    assert [name for name in COMMANDS if f"`reltask {name}" not in page] == []
    assert [code for code in (0, 1, 2, 69, 70, 78, 130) if f"| {code} |" not in page] == []
    assert all(str(code) in (cli.help or "") for code in (0, 1, 2, 69, 70, 78))


# Enqueue


def test_enqueue_then_once(project: Project) -> None:
    """The first ten minutes: enqueue, run a worker, and read the result in the ledger."""
    job = project.enqueue("hello", name="Ada")
    assert project.call("worker", project.app, "--once").code == 0
    (run,) = project.run("runs", project.app, "--job", job, "--json").json
    assert (run["outcome"], run["result"]) == ("succeeded", '"hello Ada"')


def test_enqueue_options(project: Project) -> None:
    """Delay, queue, priority and key are stored in the row."""
    options = ["--delay", "5m", "--queue", "mail", "--priority", "1", "--key", "ada"]
    result = project.run("enqueue", project.app, "hello", '{"name": "Ada"}', *options)
    assert "hello enqueued:" in result.out
    (job,) = project.run("jobs", "list", project.app, "--json").json
    assert (job["queue"], job["priority"], job["key"], job["state"]) == ("mail", 1, "ada", "ready")
    again = project.run("enqueue", project.app, "hello", '{"name": "Ada"}', *options)
    assert "already exists" in again.out


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (["helo"], 1, "Did you mean 'hello'?"),
        (["hello"], 1, "missing a required argument: 'name'"),
        (["hello", '{"name": 7}'], 1, "Expected `str`, got `int`"),
        (["hello", "{secret"], 1, "error[arguments]: The arguments are not JSON"),
        (["hello", '["secret"]'], 1, "error[arguments]: The arguments are not a JSON object"),
        (["hello", '{"name": "secret"}', "--at", "2030-01-31T09:00:00"], 2, "has no time zone"),
        (["hello", '{"name": "secret"}', "--at", "9999-12-31T23:59:59-05:00"], 2, "outside the years 1970 to 8999"),
        (["hello", '{"name": "secret"}', "--at", "tomorrow"], 2, "--at 'tomorrow' is not a time"),
        (["hello", '{"name": "secret"}', "--queue", ""], 2, "queue= needs a name"),
        (["hello", '{"name": "secret"}', "--delay", "5"], 2, "is not a duration"),
        (["hello", '{"name": "secret"}', "--priority", "11"], 2, "outside 0 (first) to 9 (last)"),
    ],
)
def test_bad_input_is_refused_in_words(arguments: list[str], code: int, error: str, project: Project) -> None:
    """Nothing is enqueued; the error says what to do, and quotes no arguments."""
    result = project.run("enqueue", project.app, *arguments)
    assert result.code == code
    assert error in result.err
    assert "secret" not in result.err
    assert "Traceback" not in result.err
    assert not (project.folder / "jobs.db").exists()


# Looking


def test_status_counts_everything(worked: Project) -> None:
    """One screen, and the same as JSON. Without a worker it says so."""
    result = worked.run("status", worked.app)
    lines = dict(line.split(maxsplit=1) for line in result.out.splitlines() if line.startswith(("dead", "due")))
    assert lines == {"dead": "1   see: reltask dead list", "due": "0"}
    assert "No worker is alive." in result.out
    status = worked.run("status", worked.app, "--json").json
    assert (status["dead"], status["ready"], status["workers"]) == (1, 1, [])


def test_status_and_jobs_point_to_what_has_ended(project: Project) -> None:
    """The row of a job that has ended is gone: a newcomer is shown where its run is."""
    project.run("migrate", project.app)
    assert "There are no jobs. Those that have ended: reltask runs." in project.run("jobs", "list", project.app).out
    assert re.search("last run +none yet", project.run("status", project.app).out)
    project.enqueue("hello", name="Ada")
    project.run("worker", project.app, "--once")
    ran = re.search(r"last run +(\w+) succeeded at .+ see: reltask runs", project.run("status", project.app).out)
    last = project.run("status", project.app, "--json").json["last_run"]
    assert ran is not None
    assert (last["task"], last["outcome"]) == (ran[1], "succeeded")


def test_status_names_tasks_that_no_worker_knows(project: Project) -> None:
    """A due job that no worker knows must be reported."""
    project.enqueue("hello", name="Ada")
    assert "No live worker knows task hello: 1 due." in project.run("status", project.app).out


def test_status_finds_its_database(worked: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """By an app, a URL, RELTASK_APP, or the settings; otherwise the error says how to name one."""
    nowhere = worked.run("status")
    assert nowhere.code == 78
    assert "RELTASK_APP" in nowhere.err
    assert worked.run("status", "--database", "sqlite:///jobs.db").code == 0
    (worked.folder / "reltask.toml").write_text('[database]\nurl = "sqlite:///jobs.db"\n')
    assert worked.run("status").code == 0
    (worked.folder / "reltask.toml").unlink()
    monkeypatch.setenv("RELTASK_APP", worked.app)
    assert worked.run("status").code == 0


def test_looking_makes_no_file(project: Project) -> None:
    """A mistyped name must not create an empty database."""
    result = project.run("status", "--database", "sqlite:///typo.db")
    assert result.code == 78
    assert "There is no database sqlite:///typo.db yet." in result.err
    assert not (project.folder / "typo.db").exists()


def test_workers_are_listed(worked: Project) -> None:
    """Stopped workers too."""
    (worker,) = worked.run("workers", worked.app, "--json").json
    assert worker["state"] == "stopped"
    assert worker["id"] in worked.run("workers", worked.app).out


def test_tables_are_aligned(worked: Project) -> None:
    """Without a terminal: plain columns, one line per row, for grep and awk."""
    header, *rows = worked.run("runs", worked.app).out.splitlines()
    column = header.index("OUTCOME")
    assert sorted(row[column:].split()[0] for row in rows) == ["failed", "succeeded", "succeeded"]


@pytest.mark.parametrize("filter_", [["--task", "helo"], ["--job", MISSING]])
def test_a_filter_that_finds_no_run_says_so(filter_: list[str], worked: Project) -> None:
    """Runs exist, but none matches."""
    assert worked.run("runs", worked.app, *filter_).out == "No finished run matches.\n"


@pytest.mark.parametrize("command", ["jobs list", "dead list", "runs", "stats"])
def test_a_number_beyond_all_databases(command: str, project: Project) -> None:
    """The error names the option and its range; the largest value is accepted."""
    project.enqueue("hello", name="Ada")
    option, limit = ("--minutes", 52_596_000) if command == "stats" else ("--limit", 2**31 - 1)
    assert project.run(*command.split(), project.app, option, str(limit)).code == 0
    for number in (limit + 1, 10**20):
        result = project.run(*command.split(), project.app, option, str(number))
        assert result.code == 2
        assert f"Invalid value for '{option}': {number} is not in the range 1<=x<={limit}." in result.err


def test_no_run_yet(project: Project) -> None:
    """Without a filter, an empty list says that there is no run."""
    project.enqueue("hello", name="Ada")
    assert project.run("runs", project.app).out == "No run has finished yet.\n"


# Changing


def test_a_job_is_paused_resumed_run_and_discarded(worked: Project) -> None:
    """Each by its id. An action that is not possible says why, and changes nothing."""
    (job,) = worked.run("jobs", "list", worked.app, "--task", "tick", "--json").json
    for action, state in [("pause", "paused"), ("resume", "ready"), ("run", "ready")]:
        assert worked.run("jobs", action, job["id"], "--app", worked.app).code == 0
        assert worked.run("jobs", "show", job["id"], "--app", worked.app, "--json").json["state"] == state
    assert worked.run("jobs", "discard", job["id"], "--yes", "--app", worked.app).code == 0
    assert worked.run("jobs", "show", job["id"], "--app", worked.app, "--json").json["state"] == "gone"
    gone = worked.run("jobs", "run", job["id"], "--app", worked.app)
    assert gone.code == 1
    assert gone.err.startswith("error[unknown-job]")
    unknown = worked.run("jobs", "show", MISSING, "--app", worked.app)
    assert unknown.code == 1
    assert unknown.err.startswith("error[unknown-job]")


def test_a_paused_job_that_is_due_is_still_paused(worked: Project) -> None:
    """Making a job due does not resume it, and the command says so."""
    (job,) = worked.run("jobs", "list", worked.app, "--task", "tick", "--json").json
    run = ("jobs", "run", job["id"], "--app", worked.app)
    assert "paused" not in worked.run(*run).out
    worked.run("jobs", "pause", job["id"], "--app", worked.app)
    assert worked.run(*run).out.endswith(f", but paused: reltask jobs resume {job['id']}\n")


def test_running_a_recurring_job_names_the_slot_brought_forward(worked: Project) -> None:
    """That slot has then run; a one-off has no other slot."""
    (job,) = worked.run("jobs", "list", worked.app, "--task", "tick", "--json").json
    nominal = f"{datetime.fromisoformat(job['next_run_time']):%Y-%m-%d %H:%M:%S} UTC"
    answer = worked.run("jobs", "run", job["id"], "--app", worked.app).out
    assert answer == f"{job['id']} is due now (its slot of {nominal} runs early)\n"
    once = worked.enqueue("hello", name="Bea")
    assert worked.run("jobs", "run", once, "--app", worked.app).out == f"{once} is due now\n"
    assert "the one after it" in worked.run("jobs", "run", "--help").out


def test_a_job_that_is_not_there_cannot_be_paused(worked: Project) -> None:
    """The command must not report success."""
    result = worked.run("jobs", "pause", MISSING, "--app", worked.app)
    assert result.code == 1
    assert "nothing was changed" in result.err


def test_a_dead_letter_is_shown_retried_and_discarded(worked: Project) -> None:
    """With its traceback. A retry gives it new attempts."""
    (letter,) = worked.run("dead", "list", worked.app, "--json").json
    assert "ValueError: it broke" in worked.run("dead", "list", worked.app).out
    shown = worked.run("dead", "show", letter["id"], "--app", worked.app)
    assert "Traceback (most recent call last):" in shown.out
    assert worked.run("dead", "retry", letter["id"], "--app", worked.app).code == 0
    assert worked.run("dead", "show", letter["id"], "--app", worked.app).code == 1
    assert worked.call("worker", worked.app, "--once").code == 0
    assert "discarded" in worked.run("dead", "discard", "--all", "--yes", "--app", worked.app).out
    assert worked.run("dead", "list", worked.app).out == "There are no dead letters.\n"


@pytest.mark.parametrize(("action", "done"), [("discard --yes", "discarded"), ("retry", "will be tried again")])
def test_only_dead_letters_are_changed_and_each_is_reported(worked: Project, action: str, done: str) -> None:
    """A healthy job is left unchanged and named; the others are changed, and the exit status is 1."""
    (letter,) = worked.run("dead", "list", worked.app, "--json").json
    healthy = worked.enqueue("hello", name="Bea")
    result = worked.run("dead", *action.split(), healthy, MISSING, letter["id"], "--app", worked.app)
    assert result.code == 1
    assert result.out == f"{letter['id']} {done}\n"
    assert f"error[unknown-job]: Job {healthy} is ready, not dead." in result.err
    assert MISSING in result.err
    assert worked.run("jobs", "show", healthy, "--app", worked.app).code == 0
    again = worked.run("dead", *action.split(), healthy, "--app", worked.app, "--json")
    assert (again.code, again.json) == (1, [{"id": healthy, "error": f"Job {healthy} is ready, not dead."}])


def test_dead_letters_are_named_or_all(worked: Project) -> None:
    """Neither, or both, is an error."""
    assert worked.run("dead", "retry", "--app", worked.app).code == 2
    assert worked.run("dead", "retry", MISSING, "--all", "--app", worked.app).code == 2


def test_a_paused_dead_letter_is_retried_but_paused(worked: Project) -> None:
    """A retry does not resume, and the command says so; for other jobs it does not."""
    (letter,) = worked.run("dead", "list", worked.app, "--json").json
    with closing(sqlite3.connect(worked.folder / "jobs.db")) as connection, connection:
        connection.execute("update reltask_jobs set paused_at = dead_at where dead_at is not null")
    answer = worked.run("dead", "retry", letter["id"], "--app", worked.app)
    resume = f"reltask jobs resume {letter['id']}"
    assert answer.out == f"{letter['id']} will be tried again, but paused: {resume}\n"
    assert worked.run(*resume.split()[1:], "--app", worked.app).code == 0


@pytest.mark.parametrize("action", ["pause", "resume"])
def test_a_dead_job_is_neither_paused_nor_resumed(action: str, worked: Project) -> None:
    """The error names death as the reason."""
    (letter,) = worked.run("dead", "list", worked.app, "--json").json
    result = worked.run("jobs", action, letter["id"], "--app", worked.app)
    assert result.code == 1
    assert "or is dead; nothing was changed" in result.err


@pytest.mark.parametrize(("action", "yes"), [("retry", ()), ("discard", ("--yes",))])
def test_all_dead_letters_are_more_than_one_batch(
    action: str, yes: tuple[str, ...], project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are changed, each once, even if a worker lets one die again meanwhile."""
    monkeypatch.setattr("reltask.cli.dead.ALL_AT_ONCE", 2)
    letters = {project.enqueue("fragile", secret="hush") for _ in range(5)}
    assert project.call("worker", project.app, "--once").code == 0
    changing = ("dead", action, "--all", *yes, "--app", project.app, "--json")
    with monkeypatch.context() as unchanged:
        unchanged.setattr(f"reltask.producer.job.Job.{action}_sync", lambda *_: None)
        assert len(project.run(*changing).json) == 2
    result = project.run(*changing)
    assert len(result.json) == 5
    assert {one["id"] for one in result.json} == letters
    assert project.run("dead", action, "--all", "--app", project.app).out == "There are no dead letters.\n"


# Schema, SQL, settings


def test_migrate_a_file(project: Project) -> None:
    """`--check` only reads; a second run has nothing to do."""
    url = ("--database", "sqlite:///new.db")
    assert project.run("migrate", *url, "--check").code == 1
    assert not (project.folder / "new.db").exists()
    done = project.run("migrate", *url, "--json").json["done"]
    assert done == [migration.name for migration in migrations("sqlite")]
    assert project.run("migrate", *url, "--check").code == 0
    assert "up to date" in project.run("migrate", *url).out


@pytest.mark.parametrize("command", [["migrate"], ["migrate", "--check"], ["status"]])
def test_a_newer_schema_is_refused(command: list[str], project: Project) -> None:
    """An older reltask must not change a newer schema."""
    project.run("migrate", "--database", "sqlite:///new.db")
    with sqlite3.connect("new.db") as connection:
        connection.execute("update reltask_meta set schema_version = 99, oldest_version = 99")
    connection.close()
    result = project.run(*command, "--database", "sqlite:///new.db")
    assert result.code == 78
    assert "Upgrade reltask" in result.err


@pytest.mark.slow
def test_postgres_says_what_to_run(empty_postgres_url: str, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the command that creates the missing tables."""
    monkeypatch.setenv("RELTASK_DATABASE_URL", empty_postgres_url)
    missing = project.run("status")
    assert missing.code == 78
    assert "reltask migrate" in missing.err
    assert project.run("migrate", "--check").code == 1
    assert project.run("migrate").code == 0
    assert project.run("migrate", "--check").code == 0
    assert project.run("status").code == 0


def test_sql_is_printed(project: Project) -> None:
    """The tables by default, a statement by its verb, without a connection."""
    assert "create table" in project.run("sql", "--dialect", "sqlite").out.lower()
    assert "-- claim_jobs" in project.run("sql", "--database", "postgresql://nowhere/x", "claim_jobs").out
    names = project.run("sql", "--dialect", "postgres", "--list", "--json").json
    assert {"001-create-tables.sql", "claim_jobs", "complete_jobs"} <= set(names)
    wrong = project.run("sql", "--dialect", "sqlite", "claim_job")
    assert wrong.code == 2
    assert "Did you mean claim_jobs?" in wrong.err


def test_config_shows_where_each_value_came_from(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the password."""
    monkeypatch.setenv("RELTASK_DATABASE_URL", "postgresql://me:hush@host/x")
    monkeypatch.setenv("RELTASK_WORKER_POLL", "5s")
    rows = {row["name"]: row for row in project.run("config", "--json").json}
    assert (rows["worker.poll"]["value"], rows["worker.poll"]["origin"]) == ("5s", "environment RELTASK_WORKER_POLL")
    assert "hush" not in json.dumps(rows)
    assert "worker.poll" in project.run("config").out


# Rows that no worker can run


def test_times_out_of_range_are_shown_as_such(worked: Project) -> None:
    """A row that no constraint has refused is listed, so that it can be found and discarded."""
    worked.enqueue("hello", name="Grace")
    with closing(sqlite3.connect("jobs.db")) as connection, connection:
        connection.execute("pragma ignore_check_constraints = on")
        connection.execute("update reltask_jobs set next_run_time = 9e999, not_before = null where dead_at is null")
        connection.execute("update reltask_jobs set created_at = 'Monday', last_run_time = -9e18")
        connection.execute("update reltask_runs set nominal_time = -9e18, due_at = 'Monday'")
        (waiting,) = connection.execute("select id from reltask_jobs where task = 'hello'").fetchone()
    listed = worked.run("jobs", "list", worked.app)
    assert [line.count("out of range") for line in listed.out.splitlines() if "hello" in line] == [1]
    assert worked.run("jobs", "show", waiting, "--database", "sqlite:///jobs.db").out.count("out of range") == 4
    assert "fragile" in worked.run("dead", "list", worked.app).out
    for reading in (["status"], ["dead", "list"], ["runs"], ["audit"]):
        assert worked.run(*reading, worked.app, "--json").code in (0, 1)
    assert worked.run("jobs", "discard", waiting, "--yes", "--database", "sqlite:///jobs.db").code == 0


BAD_ROWS: list[dict[str, object]] = [
    {"task": "hello", "next_run_time": -(2**63)},
    {"task": "hello", "next_run_time": 9e999, "lock_timeout_ms": "two minutes"},
    {"task": "hello", "next_run_time": "tomorrow", "created_at": "Monday", "schedule": "often"},
]


@pytest.mark.slow
@pytest.mark.parametrize("row", BAD_ROWS)
def test_a_row_that_cannot_be_read_is_listed(project: Project, row: dict[str, object]) -> None:
    """One bad row hides neither itself nor the others."""
    healthy = project.enqueue("hello", name="Ada")
    plant_sqlite(project.folder / "jobs.db", row)
    listed = project.run("jobs", "list", project.app, "--json")
    assert listed.code == 0
    assert {job["id"] for job in listed.json} == {healthy, str(PLANTED)}
    assert [project.run(*words, project.app).code for words in (("jobs", "list"), ("status",))] == [0, 0]


def test_run_again_enqueues_what_has_ended(project: Project) -> None:
    """The ledger keeps the arguments; `--json` names the new job. One that is not known says so."""
    project.run("enqueue", project.app, "hello", '{"name": "Ada"}')
    project.run("worker", project.app, "--once")
    ended = next(run["job_id"] for run in project.run("runs", project.app, "--json").json if run["task"] == "hello")
    (again,) = project.run("jobs", "run-again", "--app", project.app, ended, "--json").json
    assert (again["id"], again["done"]) == (ended, "runs again")
    shown = project.run("jobs", "show", "--app", project.app, again["job"], "--arguments", "--json").json
    assert (shown["arguments"], shown["state"]) == ({"name": "Ada"}, "ready")
    assert '{"name":"Ada"}' in project.run("jobs", "show", "--app", project.app, ended, "--arguments").out
    assert "arguments" not in project.run("jobs", "show", "--app", project.app, again["job"], "--json").json
    unknown = project.run("jobs", "run-again", "--app", project.app, "01a1edc9-b9ef-7866-8f04-ff84756e4eb1")
    assert unknown.code == 1
    assert "nothing was enqueued" in unknown.err


def groups() -> list[str]:
    """The commands that have a subcommand `list`."""
    commands = {name: import_module(f"reltask.cli.{module}").command for name, (module, _) in COMMANDS.items()}
    return [name for name, command in commands.items() if "list" in getattr(command, "commands", {})]


@pytest.mark.parametrize("group", groups())
def test_a_group_lists_by_default(project: Project, group: str) -> None:
    """`reltask jobs`, `reltask jobs app:app` and `reltask jobs --json` list; a misspelt command is refused."""
    project.enqueue("hello", name="Ada")
    listed = project.run(group, "list", project.app, "--json")
    assert listed.code == 0
    assert project.run(group, project.app, "--json") == listed
    assert project.run(group, "lst").code == 2


def test_dead_letters_are_narrowed_only_with_all(worked: Project) -> None:
    """By task, queue and error; another number than was said changes nothing."""
    error = "ValueError: it broke"
    for wrong in (["--task", "fragile"], ["--all", "--count", "2"], ["--all", "--error", error, "--count", "0"]):
        assert worked.run("dead", "retry", *wrong, "--app", worked.app).code == 2
    assert worked.run("dead", "retry", "--all", "--task", "hello", "--app", worked.app).out == (
        "There are no dead letters.\n"
    )
    assert worked.run("dead", "retry", "--all", "--queue", "slow", "--app", worked.app).out == (
        "There are no dead letters.\n"
    )
    narrowed = ["--all", "--task", "fragile", "--queue", "default", "--error", error, "--count", "1"]
    assert "will be tried again" in worked.run("dead", "retry", *narrowed, "--app", worked.app).out
