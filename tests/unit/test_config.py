"""Where settings come from, which source wins, and what the defaults are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.config import Loaded, load_settings
from reltask.config.fields import by_folded_key, fields
from reltask.errors import SettingsError
from reltask.model.settings import Settings, WorkerSettings

NOWHERE = Path("/nonexistent")
PLACES = ("file", "environment", "argument", "command line")


def load(environ: dict[str, str] | None = None, **others: object) -> Loaded:
    """Settings of a process that has only what the test gives it."""
    return load_settings(environ=environ or {}, **{"directory": NOWHERE, **others})  # type: ignore[arg-type]  # the tests check the values, mypy the callers of load_settings


def toml(directory: Path, text: str) -> Path:
    (directory / "reltask.toml").write_text(text, encoding="utf-8")
    return directory


def test_defaults() -> None:
    """The defaults are those of the design: poll 60 s, lock 2 min, heartbeat 30 s, 3 failures, retry and breaker."""
    settings = load().settings
    pace = settings.worker.pace()
    assert (settings.worker.poll, settings.worker.lock_timeout) == (timedelta(seconds=60), timedelta(minutes=2))
    assert (pace.heartbeat, pace.beat_timeout, pace.stop_grace, pace.abandon_after) == (30, 5, 10, 3)
    assert (settings.worker.queues, settings.worker.concurrency) == ((), 10)
    assert (settings.database.url, settings.database.pool_size) == (None, 4)
    assert (settings.database.retry_attempts, settings.database.retry_first) == (4, timedelta(seconds=1))
    assert (settings.database.breaker_failures, settings.database.breaker_reset) == (5, timedelta(seconds=30))
    assert (settings.limits.arguments, settings.limits.result, settings.limits.traceback) == (10**6, 10**6, 20_000)
    assert (settings.log.level, settings.log.format) == ("info", "auto")
    assert settings.sample.task_duration == timedelta(seconds=5)
    assert settings == Settings()


@pytest.mark.parametrize(
    "url",
    [
        "mssql://server/db",
        "MSSQL://server/db",
        "Server=tcp:server;Database=db",
        "postgresql://host/db?sslmode=require&pgbouncer=True",
    ],
)
def test_the_default_poll_is_the_same_on_every_database(url: str) -> None:
    """Where no signal announces a new job, idle workers take turns; the setting does not depend on it."""
    loaded = load({"RELTASK_DATABASE_URL": url})
    assert loaded.settings.worker == Settings().worker
    assert loaded.origins["worker.poll"] == "default"


def test_settings_are_frozen() -> None:
    """Settings do not change under a running worker."""
    with pytest.raises(AttributeError):
        Settings().worker.concurrency = 2  # type: ignore[misc]  # what is tested


def test_every_value_has_an_origin() -> None:
    """Each setting says where it was set, also the defaults."""
    loaded = load({"RELTASK_WORKER_POLL": "5s"}, arguments={"log.level": "debug"}, cli={"worker.concurrency": "3"})
    assert loaded.origins.keys() == fields().keys()
    assert loaded.origins["worker.poll"] == "environment RELTASK_WORKER_POLL"
    assert loaded.origins["log.level"] == "argument"
    assert loaded.origins["worker.concurrency"] == "command line"
    assert loaded.origins["worker.name"] == "default"


@given(st.dictionaries(st.sampled_from(PLACES), st.integers(1, 1000)))
def test_the_highest_source_wins(tmp_path_factory: pytest.TempPathFactory, given: dict[str, int]) -> None:
    """Command line > arguments in code > environment > file > default, whichever of them exist."""
    directory = tmp_path_factory.mktemp("place")
    if "file" in given:
        toml(directory, f"[worker]\nconcurrency = {given['file']}\n")
    loaded = load(
        {"RELTASK_WORKER_CONCURRENCY": str(given["environment"])} if "environment" in given else {},
        arguments={"worker.concurrency": given.get("argument")},
        cli={"worker.concurrency": given.get("command line", msgspec.UNSET)},
        directory=directory,
    )
    winner = next((place for place in reversed(PLACES) if place in given), "default")
    assert loaded.settings.worker.concurrency == given.get(winner, 10)
    assert loaded.origins["worker.concurrency"].startswith(winner)


def test_given_as_the_default_is_not_unset() -> None:
    """A value that equals the default still overrides a lower source."""
    loaded = load({"RELTASK_WORKER_CONCURRENCY": "3"}, cli={"worker.concurrency": 10})
    assert loaded.settings.worker.concurrency == 10
    assert loaded.origins["worker.concurrency"] == "command line"


@pytest.mark.parametrize("nothing", [None, msgspec.UNSET])
def test_nothing_overrides_nothing(nothing: object) -> None:
    """None, UNSET and an empty variable leave the lower source's value."""
    environ = {"RELTASK_WORKER_POLL": "7s", "RELTASK_WORKER_NAME": ""}
    loaded = load(environ, arguments={"worker.poll": nothing}, cli={"worker.poll": nothing, "worker.name": nothing})
    assert loaded.settings.worker.poll == timedelta(seconds=7)
    assert (loaded.settings.worker.name, loaded.origins["worker.name"]) == (None, "default")


def test_auto_brings_the_default_back() -> None:
    """`auto` replaces a fixed heartbeat by the one derived from the lock timeout."""
    worker = load({"RELTASK_WORKER_HEARTBEAT": "1s"}, cli={"worker.heartbeat": "auto"}).settings.worker
    assert worker.heartbeat is None


# ── Names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_folded_names_stay_apart() -> None:
    """No two settings differ only in case, underscores or hyphens."""
    assert len(by_folded_key()) == len(fields())


@pytest.mark.parametrize(
    "name",
    [
        "RELTASK_WORKER_LOCK_TIMEOUT",
        "RELTASK_WORKER_LOCKTIMEOUT",
        "reltask_worker_lock_timeout",
        "Reltask__Worker__LockTimeout",
    ],
)
def test_variable_spelling(name: str) -> None:
    """Case and underscores of a variable do not matter, so .NET's double underscores work too."""
    assert load({name: "5m"}).settings.worker.lock_timeout == timedelta(minutes=5)


@pytest.mark.parametrize("line", ["lock_timeout", "lock-timeout", "LockTimeout", "LOCKTIMEOUT"])
@pytest.mark.parametrize("table", ["worker", "Worker"])
def test_toml_spelling(tmp_path: Path, table: str, line: str) -> None:
    """Case, underscores and hyphens of a key in a file do not matter."""
    loaded = load(directory=toml(tmp_path, f'[{table}]\n{line} = "5m"\n'))
    assert loaded.settings.worker.lock_timeout == timedelta(minutes=5)


def test_queue_names_are_kept_as_written(tmp_path: Path) -> None:
    """The names of queues are the user's own: their spelling is kept."""
    text = '[worker]\nqueues = ["Mail_Out", "default"]\n[worker.queue-concurrency]\nMail_Out = 2\n'
    worker = load(directory=toml(tmp_path, text)).settings.worker
    assert (worker.queues, worker.queue_concurrency) == (("Mail_Out", "default"), {"Mail_Out": 2})


def test_lists_and_tables_in_variables() -> None:
    """A variable holds lists and tables with commas; blanks around them do not count, duplicates count once."""
    environ = {"RELTASK_WORKER_QUEUES": "a, b,a", "RELTASK_WORKER_QUEUE_CONCURRENCY": "a=2, b = 1"}
    worker = load(environ).settings.worker
    assert (worker.queues, worker.queue_concurrency) == (("a", "b"), {"a": 2, "b": 1})


def test_native_values_in_code() -> None:
    """Code may give timedeltas, numbers, tuples and dicts as they are."""
    arguments = {
        "worker.poll": timedelta(milliseconds=250),
        "worker.queues": ("a",),
        "worker.queue_concurrency": {"a": 1},
    }
    worker = load(arguments=arguments).settings.worker
    assert (worker.poll, worker.queues, worker.queue_concurrency) == (timedelta(milliseconds=250), ("a",), {"a": 1})


@given(st.integers(1, 10**9))
def test_fractions(microseconds: int) -> None:
    """Durations may be fractions of a second."""
    text = f"{microseconds / 1_000_000:.6f}s"
    poll = load({"RELTASK_WORKER_POLL": text}).settings.worker.poll
    assert abs(poll - timedelta(microseconds=microseconds)) <= timedelta(microseconds=1)


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_is_found_in_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without --config, reltask.toml in the working directory is read, and shown as ./reltask.toml."""
    monkeypatch.chdir(toml(tmp_path, '[worker]\npoll = "5s"\n'))
    loaded = load(directory=None)
    assert loaded.settings.worker.poll == timedelta(seconds=5)
    assert loaded.origins["worker.poll"] == "file ./reltask.toml"


def test_config_option_wins_over_variable_and_directory(tmp_path: Path) -> None:
    """--config is read instead of RELTASK_CONFIG, and that instead of files in the directory."""
    toml(tmp_path, '[worker]\npoll = "1s"\n')
    for seconds in (2, 3):
        (tmp_path / f"{seconds}.toml").write_text(f'[worker]\npoll = "{seconds}s"\n')
    environ = {"RELTASK_CONFIG": "2.toml"}
    assert load(directory=tmp_path).settings.worker.poll == timedelta(seconds=1)
    assert load(environ, directory=tmp_path).settings.worker.poll == timedelta(seconds=2)
    chosen = load(environ, directory=tmp_path, file=tmp_path / "3.toml")
    assert chosen.settings.worker.poll == timedelta(seconds=3)
    assert chosen.origins["worker.poll"] == f"file {tmp_path / '3.toml'}"


def test_two_files_are_an_error_unless_one_is_chosen(tmp_path: Path) -> None:
    """With both files it is unclear which is meant: the user must choose."""
    toml(tmp_path, "")
    (tmp_path / "appsettings.json").write_text("{}")
    with pytest.raises(SettingsError, match=r"Both appsettings.json and reltask.toml .* --config"):
        load(directory=tmp_path)
    assert load(directory=tmp_path, file="reltask.toml").settings == Settings()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.toml", None, "cannot be read: No such file"),
        ("broken.toml", "[worker\n", "is not valid TOML: .*line 1"),
        ("broken.json", '{"Reltask": }', "is not valid JSON: .*line 1"),
        ("list.json", "[]", "is not valid JSON: its top level is not an object"),
        ("settings.yaml", "worker:", "neither JSON nor TOML"),
        ("latin.toml", "# caf\udce9", "it is not UTF-8"),
        ("foreign.json", '{"worker": {"poll": "5s"}}', "has no section for reltask"),
    ],
)
def test_a_chosen_file_must_be_usable(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    """A named file that cannot be used is an error that names it."""
    if text is not None:
        (tmp_path / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SettingsError, match=message) as caught:
        load(directory=tmp_path, file=name)
    assert name in str(caught.value)


# ── Pace ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pace_of_a_shorter_lock_follows_from_it() -> None:
    """A task with a short lock works on a worker whose own heartbeat would be too slow for it."""
    worker = WorkerSettings(heartbeat=timedelta(seconds=30))
    assert worker.pace().heartbeat == 30
    assert worker.pace(timedelta(seconds=20)).heartbeat == 5
    assert worker.pace(timedelta(minutes=10)).heartbeat == 30


@given(st.timedeltas(timedelta(milliseconds=10), timedelta(days=30)))
def test_every_lock_timeout_has_a_pace(lock_timeout: timedelta) -> None:
    """A lock timeout alone gives lengths that fit together."""
    assert WorkerSettings().pace(lock_timeout).fault() is None
    assert WorkerSettings(lock_timeout=lock_timeout).pace().fault() is None


def test_pace_that_cannot_work() -> None:
    """Lengths that do not fit together are refused, with the places where they were set."""
    with pytest.raises(SettingsError, match=r"do not fit together: .*Check worker.heartbeat \(environment RELTASK_WOR"):
        load({"RELTASK_WORKER_HEARTBEAT": "1m"})
    with pytest.raises(SettingsError, match="do not fit together"):
        WorkerSettings(abandon_after=30).pace(timedelta(seconds=10))
