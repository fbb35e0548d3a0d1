""".NET's configuration works unchanged: appsettings.json, its variables, ADO.NET connection strings."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.config import Loaded, load_settings
from reltask.errors import SettingsError
from reltask.model.connection_url import from_ado_net, holds_password

NOWHERE = Path("/nonexistent")
AS_REQUIRED = (Path(__file__).parents[2] / "examples" / "appsettings.json").read_text(encoding="utf-8")
AZURE_URL = (
    "mssql://yourserver.database.windows.net:1433/TaskExecutionDb"
    "?encrypt=true&trust_server_certificate=false&connect_timeout=30"
)


def load_json(directory: Path, text: str, environ: dict[str, str] | None = None) -> Loaded:
    (directory / "appsettings.json").write_text(text, encoding="utf-8")
    return load_settings(environ=environ or {}, directory=directory)


def test_the_required_file_works_as_it_is(tmp_path: Path) -> None:
    """Integration test "Configuration loading from appsettings.json": the file of the requirements, unchanged."""
    loaded = load_json(tmp_path, AS_REQUIRED)
    assert loaded.settings.database.url == AZURE_URL
    assert loaded.settings.worker.poll == timedelta(seconds=60)
    assert loaded.settings.worker.heartbeat == timedelta(seconds=30)
    assert loaded.settings.sample.task_duration == timedelta(seconds=5)
    given = [key for key, origin in loaded.origins.items() if origin == f"file {tmp_path / 'appsettings.json'}"]
    assert given == ["database.url", "worker.poll", "worker.heartbeat", "sample.task_duration"]


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    """.NET's variables override the file, as they do in .NET."""
    environ = {"TaskExecution__PollingIntervalSeconds": "2.5", "ConnectionStrings__SqlAzure": "Server=other;Database=d"}
    loaded = load_json(tmp_path, AS_REQUIRED, environ)
    assert loaded.settings.worker.poll == timedelta(seconds=2.5)
    assert loaded.settings.database.url == "mssql://other/d"
    assert loaded.origins["worker.poll"] == "environment TaskExecution__PollingIntervalSeconds"


def test_json_as_dotnet_reads_it(tmp_path: Path) -> None:
    """Comments, trailing commas and a byte order mark are accepted; inside a text they stay."""
    text = """\ufeff// ours
    { /* all
         of it */
      "Reltask": { "Worker": { "Name": "a//b/*c*/,]", "Queues": ["x", ], }, }, // end
    }"""
    worker = load_json(tmp_path, text).settings.worker
    assert (worker.name, worker.queues) == ("a//b/*c*/,]", ("x",))


def test_only_our_sections_are_strict(tmp_path: Path) -> None:
    """Other sections and connection strings belong to other programs; null means not given."""
    content = {
        "AllowedHosts": "*",
        "Serilog": {"Poll": 5},
        "ConnectionStrings": {"Billing": "Server=x;Password=secret", "SqlAzure": None},
        "Reltask": None,
        "TaskExecution": {"PollingIntervalSeconds": None},
    }
    assert set(load_json(tmp_path, json.dumps(content)).origins.values()) == {"default"}


@pytest.mark.parametrize(
    ("name", "value", "key", "expected"),
    [
        ("LockTimeoutMinutes", 3, "worker.lock_timeout", timedelta(minutes=3)),
        ("LockTimeoutSeconds", 90, "worker.lock_timeout", timedelta(seconds=90)),
        ("lock_timeout_seconds", 90, "worker.lock_timeout", timedelta(seconds=90)),
        ("PollingIntervalMilliseconds", 250, "worker.poll", timedelta(milliseconds=250)),
        ("PollingInterval", "250ms", "worker.poll", timedelta(milliseconds=250)),
        ("PollingIntervalSeconds", "7", "worker.poll", timedelta(seconds=7)),
        ("WorkerId", "blue", "worker.name", "blue"),
        ("MaxConcurrency", 4, "worker.concurrency", 4),
        ("Queues", ["a", "b"], "worker.queues", ("a", "b")),
        ("MaxConsecutiveFailures", 2, "worker.abandon_after", 2),
        ("ShutdownTimeoutSeconds", 0, "worker.shutdown_grace", timedelta(0)),
    ],
)
def test_names_of_task_execution(tmp_path: Path, name: str, value: object, key: str, expected: object) -> None:
    """The .NET names mean our settings; the unit at the end may differ, or be left out for a duration."""
    settings = load_json(tmp_path, json.dumps({"TaskExecution": {name: value}})).settings
    section, field = key.split(".")
    assert getattr(getattr(settings, section), field) == expected


def test_sql_azure_gives_way(tmp_path: Path) -> None:
    """SqlAzure may be another program's: another name for the database in the same source wins, in any order."""
    azure, ours = ("SqlAzure", "Server=x;Password=not ours"), ("Reltask", "postgresql://h/db")
    for pair in ([azure, ours], [ours, azure]):
        loaded = load_json(tmp_path, json.dumps({"ConnectionStrings": dict(pair)}))
        assert loaded.settings.database.url == "postgresql://h/db"
    environ = {"RELTASK_DATABASE_URL": "sqlite:///a.db", "ConnectionStrings__SqlAzure": "Server=x"}
    assert load_settings(environ=environ, directory=NOWHERE).settings.database.url == "sqlite:///a.db"


# ── ADO.NET ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("Server=tcp:x.example,1433;Database=D;", "mssql://x.example:1433/D"),
        ("data source=.;initial catalog=D", "mssql://localhost/D"),
        ("Server=(local)\\SQLEXPRESS;Database=D", "mssql://localhost/D?instance=SQLEXPRESS"),
        ("Server=x;Database=D;User ID=a b;Password='p;=''w'", "mssql://a%20b:p%3B%3D%27w@x/D"),
        ('Addr=x;Database="my ""db""";;', "mssql://x/my%20%22db%22"),
        ("Server=x;UID=u;Database=D", "mssql://u@x/D"),
        ("Server=::1;Database=D", "mssql://[::1]/D"),
        (
            "Server=x;Authentication=Active Directory Default;ApplicationIntent=ReadWrite;Connect Timeout=5",
            "mssql://x/?authentication=Active%20Directory%20Default&application_intent=ReadWrite&connect_timeout=5",
        ),
        (
            "Server = x ; Database = D ; Encrypt = Strict ; Multi Subnet Failover = YES",
            "mssql://x/D?encrypt=Strict&multi_subnet_failover=yes",
        ),
    ],
)
def test_ado_net(text: str, url: str) -> None:
    """Synonyms, quotes, named instances and options of ADO.NET are carried over to the URL."""
    assert from_ado_net(text) == url


@pytest.mark.parametrize(
    "text",
    [
        "Database=D;pwd=hunter2",
        "Server=np:hunter2;x=y",
        "Server=x,hunter2",
        "hunter2;Server=x",
        "Server='hunter2",
        "Server=;a=hunter2",
    ],
)
def test_bad_ado_net_is_not_quoted(text: str) -> None:
    """An unreadable connection string is refused without being shown: it may contain a password."""
    with pytest.raises(SettingsError, match=r"^database.url \(environment RELTASK_DATABASE_URL\): it ") as caught:
        load_settings(environ={"RELTASK_DATABASE_URL": text}, directory=NOWHERE)
    assert "hunter2" not in str(caught.value)


@given(st.text(min_size=1).filter(lambda text: "\0" not in text), st.text(min_size=1))
def test_ado_net_passwords_survive(password: str, database: str) -> None:
    """The URL carries every character of a quoted password or database name."""
    quoted = [value.replace('"', '""') for value in (password, database)]
    url = from_ado_net(f'Server=h;User ID=u;Password="{quoted[0]}";Database="{quoted[1]}"')
    parts = urlsplit(url)
    assert (unquote(parts.password or ""), unquote(parts.path[1:])) == (password, database)
    assert holds_password(url)
