"""A wrong name or value is an error that names it, its source, and the probable intention."""

from __future__ import annotations

from pathlib import Path

import pytest

from reltask.config import load_settings
from reltask.errors import SettingsError

NOWHERE = Path("/nonexistent")


def refusal(**places: object) -> str:
    """The error of load_settings for these."""
    with pytest.raises(SettingsError) as caught:
        load_settings(**{"environ": {}, "directory": NOWHERE, **places})  # type: ignore[arg-type]  # wrong on purpose
    assert caught.value.code == "settings"
    return str(caught.value)


def refusal_of_file(directory: Path, name: str, text: str) -> str:
    (directory / name).write_text(text, encoding="utf-8")
    return refusal(directory=directory)


@pytest.mark.parametrize(
    ("variable", "suggestion"),
    [
        ("RELTASK_WORKER_POL", "Did you mean RELTASK_WORKER_POLL?"),
        ("RELTASK_WORKER_POLL_INTERVAL", "Did you mean RELTASK_WORKER_POLL?"),
        ("RELTASK_CONCURRENCY", "Did you mean RELTASK_WORKER_CONCURRENCY?"),
        ("RELTASK_CONFIGURATION", "Did you mean RELTASK_CONFIG?"),
        ("RELTASK_XYZ", "docs/configuration.md"),
        ("TaskExecution__PolingIntervalSeconds", "Did you mean PollingIntervalSeconds?"),
    ],
)
def test_unknown_variable(variable: str, suggestion: str) -> None:
    """An unknown RELTASK_ variable is named, but never its value: it may be a misplaced secret."""
    message = refusal(environ={variable: "hunter2"})
    assert variable in message
    assert suggestion in message
    assert "hunter2" not in message


@pytest.mark.parametrize(
    "variable",
    [
        "RELTASK_APP",
        "RELTASK_TEST_POSTGRES",
        "RELTASK_SERVICE_HOST",
        "RELTASK_WORKER_SERVICE_PORT_HTTP",
        "RELTASK_WORKER_PORT",
        "RELTASK_DB_PORT_5432_TCP_ADDR",
        "TASKEXECUTION",
        "ConnectionStrings__Billing",
        "PATH",
    ],
)
def test_variables_of_others(variable: str) -> None:
    """Known variables that are no setting, Kubernetes' service variables, and other programs' are ignored."""
    loaded = load_settings(environ={variable: "tcp://10.0.0.1:80"}, directory=NOWHERE)
    assert set(loaded.origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[worker]\npol = "5s"', r"worker.pol (file {file}) is not a setting. Did you mean poll?"),
        ('[wroker]\npoll = "5s"', r"wroker (file {file}) is not a setting. Did you mean worker?"),
        ('[database]\npoll = "5s"', r"database.poll (file {file}) is not a setting. Did you mean worker.poll?"),
        ('poll = "5s"', r"poll (file {file}) is not a setting. Did you mean worker.poll?"),
        ("[log]\nzzz = 1", r"log.zzz (file {file}) is not a setting. Known names: level, format."),
        ("worker = 5", r"worker (file {file}) is a single value, not a table."),
        (
            '[worker]\npoll = "5s"\nPoll = "6s"',
            r"worker.poll is given twice: worker.poll (file {file}) and worker.Poll",
        ),
    ],
)
def test_wrong_key_in_toml(tmp_path: Path, text: str, message: str) -> None:
    """In a reltask.toml everything is ours: an unknown table or key is an error with the nearest name."""
    assert message.format(file=tmp_path / "reltask.toml") in refusal_of_file(tmp_path, "reltask.toml", text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"TaskExecution": {"PolingIntervalSeconds": 5}}', "TaskExecution:PolingIntervalSeconds (file {file})"),
        (
            '{"Reltask": {"Worker": {"Pol": "5s"}}}',
            "Reltask:Worker:Pol (file {file}) is not a setting. Did you mean poll?",
        ),
        ('{"Reltask": {"Wroker": {}}}', "Reltask:Wroker (file {file}) is not a setting. Did you mean worker?"),
        ('{"TaskExecution": 5}', "TaskExecution (file {file}) is a single value, not a table."),
        ('{"TaskExecution": {"PollingIntervalSeconds": "5s"}}', "'5s' is not a number of seconds"),
        ('{"TaskExecution": {"PollingIntervalSeconds": NaN}}', "nan is not a number of seconds"),
        ('{"TaskExecution": {"PollingIntervalSeconds": -1}}', "-1 is not a number of seconds"),
        ('{"TaskExecution": {"PollingIntervalSeconds": 1e300}}', "1e+300 is not a number of seconds"),
        ('{"TaskExecution": {"PollingIntervalSeconds": true}}', "True is not a number of seconds"),
        ('{"TaskExecution": {"PollingInterval": 5}}', "TaskExecution:PollingInterval (file {file}): 5 has no unit"),
        (
            '{"TaskExecution": {"PollingIntervalSeconds": 5}, "Reltask": {"Worker": {"Poll": "5s"}}}',
            "worker.poll is given twice: TaskExecution:PollingIntervalSeconds (file {file}) and Reltask:Worker:Poll",
        ),
    ],
)
def test_wrong_entry_in_appsettings(tmp_path: Path, text: str, message: str) -> None:
    """In our sections of an appsettings.json the rules are the same, and numbers need the unit in the name."""
    assert message.format(file=tmp_path / "appsettings.json") in refusal_of_file(tmp_path, "appsettings.json", text)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("worker.poll", 5, '5 has no unit; write "5s" or "5m".'),
        ("worker.poll", "0.5", "'0.5' has no unit; write \"0.5s\""),
        ("worker.poll", "soon", "'soon' is not a duration"),
        ("worker.poll", "99999999999d", "is not a duration"),
        ("worker.poll", [1], "[1] is not a duration"),
        ("worker.poll", "auto", "'auto' is not a duration"),
        ("worker.poll", "0s", "'0s' is too short"),
        ("worker.heartbeat", "0s", "'0s' is too short"),
        ("worker.lock_timeout", "1ms", "'1ms' is too short; write at least 500ms"),
        ("worker.lock_timeout", "499ms", "'499ms' is too short"),
        ("worker.concurrency", 0, "0 is too small; it must be at least 1."),
        ("worker.concurrency", 2**31, "2147483648 is too large; it must be at most 2147483647."),
        ("worker.concurrency", "9" * 20, "is too large; it must be at most 2147483647."),
        ("worker.queue_concurrency", f"default={'9' * 20}", "is too large"),
        ("limits.traceback", "9" * 20, "is too large; it must be at most 4000000."),
        ("worker.concurrency", "9" * 5000, "is not a whole number."),
        ("worker.concurrency", "many", "'many' is not a whole number."),
        ("worker.concurrency", 1.5, "1.5 is not a whole number."),
        ("worker.concurrency", True, "True is not a whole number."),
        ("worker.queues", "a,,b", "contains an empty name"),
        ("worker.queues", [], "contains an empty name or no name"),
        ("worker.queues", 5, "5 is not a list of names"),
        ("worker.queue_concurrency", 5, "5 is not a table of limits"),
        ("worker.queue_concurrency", {"default": 0}, "0 is too small"),
        ("worker.queue_concurrency", "default", "'' is not a whole number"),
        ("worker.name", 5, "5 is not a string"),
        ("log.level", "warn", "Did you mean warning?"),
        ("log.level", "Information", "'Information' is not one of debug, info, warning, error."),
        ("log.format", 5, "5 is not one of auto, text, json."),
        ("limits.traceback", "-1", "'-1' is too small"),
        ("database.retry_attempts", -1, "-1 is too small; it must be at least 0."),
        ("database.url", "reltask.db", "it is not a URL; write sqlite:///file.db"),
        ("worker.name", ["x" * 100], "…"),
    ],
)
def test_wrong_value(key: str, value: object, message: str) -> None:
    """An impossible value is quoted with its key and source, and with possible values."""
    refused = refusal(arguments={key: value})
    assert refused.startswith(f"{key} (argument): ")
    assert message in refused


def test_zero_is_accepted_where_it_makes_sense() -> None:
    """No retries, no grace and no simulated work are valid choices."""
    nothing = {"database.retry_attempts": 0, "worker.shutdown_grace": "0s", "sample.task_duration": "0s"}
    settings = load_settings(environ={}, directory=NOWHERE, arguments=nothing).settings
    assert (settings.database.retry_attempts, settings.worker.shutdown_grace.total_seconds()) == (0, 0)


def test_unknown_key_in_code() -> None:
    """A wrong dotted key is refused too."""
    assert "worker.concurency (command line) is not a setting. Did you mean worker.concurrency?" in refusal(
        cli={"worker.concurency": 1}
    )


def test_a_mistake_counts_although_overridden() -> None:
    """A wrong value in a lower source is an error even if a higher source overrides it."""
    assert "RELTASK_WORKER_POLL" in refusal(environ={"RELTASK_WORKER_POLL": "5"}, cli={"worker.poll": "5s"})


def test_the_same_setting_by_two_variables() -> None:
    """Two variables for one setting are an error: it is unclear which wins."""
    environ = {"RELTASK_WORKER_POLL": "5s", "TaskExecution__PollingIntervalSeconds": "6"}
    assert "worker.poll is given twice" in refusal(environ=environ)


def test_limit_for_a_queue_that_is_not_served() -> None:
    """A limit for an unknown queue is an error, with the nearest queue as a suggestion."""
    message = refusal(arguments={"worker.queues": ["mail"], "worker.queue_concurrency": {"mial": 1}})
    assert "'mial' is not one of the queues of this worker. Did you mean mail?" in message
    environ = {"RELTASK_WORKER_QUEUE_CONCURRENCY": "zzz=1", "RELTASK_WORKER_QUEUES": "mail"}
    assert "Add it to worker.queues" in refusal(environ=environ)


def test_limits_of_all_queues_in_a_file_serve_a_worker_that_picks_one() -> None:
    """A lower source may have limits for all queues, while a higher one selects some of them."""
    environ = {"RELTASK_WORKER_QUEUE_CONCURRENCY": "mail=2,reports=1", "RELTASK_WORKER_QUEUES": "mail,reports"}
    worker = load_settings(environ=environ, directory=NOWHERE, cli={"worker.queues": "mail"}).settings.worker
    assert (worker.queues, worker.queue_concurrency["mail"]) == (("mail",), 2)
