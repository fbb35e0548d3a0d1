"""A password is accepted only where other users cannot read it, and is never shown."""

from __future__ import annotations

import json
import logging
import re
import traceback
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from reltask.config import load_settings, render_settings
from reltask.errors import SettingsError
from reltask.model.connection_url import holds_password, safe_url

NOWHERE = Path("/nonexistent")
SECRET = "hunter2"
WITH_PASSWORD = f"postgresql://app:{SECRET}@db.example.com/app"
SHAPES = (
    "postgresql://user:{}@host:5432/db",
    "postgresql://user:{}@host/db?sslmode=require",
    "postgresql://:{}@host/db",
    "mssql://user:{}@[::1]:1433/db",
    "postgresql://host/db?user=u&password={}",
    "postgresql://host/db?sslmode=require&sslpassword={}&x=y",
    "mssql://host/db;user=u;password={}",
    "mssql://host;password={}",
    "mssql://host:1433;password={};database=db",
    "mssql://host:1433;password={}",
    "postgresql:///u:{}@host/db",
    "user:{}@host",
    "Server=host;Password={};Database=db",
)
WITHOUT_HOST = "postgresql://user:{}"
"""What follows an @ in this password, or a number, looks like a host or a port."""
AWKWARD = st.text(st.sampled_from("aZ9@:/?#&=;%+ [],\\\n'\"é"), min_size=1, max_size=12)


@given(st.sampled_from((*SHAPES, WITHOUT_HOST)), AWKWARD | st.text(min_size=1))
@example("postgresql://user:{}@host:5432/db", "p@ss:w/rd?#")
@example("postgresql://user:{}@host:5432/db", "a/b@c")
@example("postgresql://host/db?user=u&password={}", "x@y")
def test_safe_url_never_shows_the_password(shape: str, password: str) -> None:
    """Whatever the password contains, and however wrong the URL, the password is not shown."""
    assume(password not in safe_url(shape.format("-")))
    assume(shape is not WITHOUT_HOST or not re.match(r"\d|.*@", password, re.DOTALL))
    assert password not in safe_url(shape.format(password))
    assert quote(password, safe="") not in safe_url(shape.format(quote(password, safe=""))) or password.isdecimal()


@given(st.sampled_from(SHAPES), st.lists(st.sampled_from(["XXXX", "YYYY"]), min_size=2), st.sampled_from("@:/?#&=;%"))
def test_safe_url_shows_no_part_of_the_password(shape: str, words: list[str], separator: str) -> None:
    """No part of a password that was not percent-encoded is shown either."""
    shown = safe_url(shape.format(separator.join(words)))
    assert "XXXX" not in shown
    assert "YYYY" not in shown


@given(st.text())
def test_safe_url_takes_anything(text: str) -> None:
    """Showing a URL never fails, however broken it is; both functions accept any text."""
    assert isinstance(safe_url(text), str)
    assert holds_password(text) in (True, False)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (WITH_PASSWORD, "postgresql://app:***@db.example.com/app"),
        (
            "postgresql://app@db/app?sslmode=require&application_name=x",
            "postgresql://app@db/app?sslmode=require&application_name=x",
        ),
        ("postgresql://a:5432,b:5433/app", "postgresql://a:5432,b:5433/app"),
        ("postgresql://db/app?password=x&sslmode=require&apikey=y", "postgresql://db/app?***&sslmode=require&***"),
        ("postgresql:///app?host=/run/postgresql", "postgresql:///app?host=/run/postgresql"),
        ("sqlite:///reltask.db", "sqlite:///reltask.db"),
        ("sqlite:////var/lib/a@b/reltask.db?mode=ro", "sqlite:////var/lib/a@b/reltask.db?mode=ro"),
        ("sqlite://", "sqlite://"),
        ("postgresql://u:a/b@host/db", "postgresql://***"),
        ("postgresql://u%3Apw@host/db", "postgresql://***"),
        ("postgresql://host/db?pass%77ord=x", "postgresql://host/db?***"),
        ("postgresql://host/db#x", "postgresql://host/db"),
        ("no url", "***"),
    ],
)
def test_what_safe_url_shows(url: str, shown: str) -> None:
    """User, host, database and harmless options stay readable."""
    assert safe_url(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        WITH_PASSWORD,
        f"postgresql://:{SECRET}@h/db",
        f"postgresql://h/db?password={SECRET}",
        f"mssql://h:1433;user=u;password={SECRET}",
        f"mssql://h/db;Password={SECRET}",
        f"mssql://h;password={SECRET}@y",
        f"postgresql://h/db?pass%77ord={SECRET}",
        f"postgresql://u:a/{SECRET}@h/db",
        f"postgresql://u:1/{SECRET}@h/db",
        f"postgresql://u:a?{SECRET}@h/db",
        f"Server=h;Database=d;User ID=u;Password={SECRET}",
        f"Server=h;Database=d;UID=u;Pwd={SECRET}",
    ],
)
@pytest.mark.parametrize("place", ["toml", "json", "connection string", "command line"])
def test_password_where_others_read_it(tmp_path: Path, url: str, place: str) -> None:
    """A password in a file or on a command line is refused, with an alternative and without the password."""
    cli = {"database.url": url} if place == "command line" else {}
    if place == "toml":
        (tmp_path / "reltask.toml").write_text(f"[database]\nurl = {json.dumps(url)}\n")
    elif place != "command line":
        ours = {"Reltask": {"Database": {"Url": url}}}
        content = ours if place == "json" else {"ConnectionStrings": {"SqlAzure": url}}
        (tmp_path / "appsettings.json").write_text(json.dumps(content))
    with pytest.raises(
        SettingsError, match=r"contains a password.*RELTASK_DATABASE_URL.*passfile.*managed identity"
    ) as caught:
        load_settings(environ={}, cli=cli, directory=tmp_path)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app@h/db?passfile=/run/secrets/pgpass",
        "postgresql://h:5432/db?application_name=a@b",
        "postgresql://app:@h/db",
        "sqlite:////srv/a@b/x.db",
        "mssql://h:1433/db?authentication=ActiveDirectoryDefault",
        "Server=tcp:h,1433;Database=d;Authentication=Active Directory Default",
    ],
)
def test_no_password_no_complaint(tmp_path: Path, url: str) -> None:
    """A URL without a password is accepted in a file and on the command line."""
    (tmp_path / "reltask.toml").write_text(f"[database]\nurl = {json.dumps(url)}\n")
    assert load_settings(environ={}, directory=tmp_path).settings.database.url
    assert load_settings(environ={}, directory=NOWHERE, cli={"database.url": url}).settings.database.url


def test_password_from_environment_or_code() -> None:
    """In the environment and in code a password is accepted, and unchanged."""
    environ = {"RELTASK_DATABASE_URL": f" {WITH_PASSWORD}\n"}
    assert load_settings(environ=environ, directory=NOWHERE).settings.database.url == WITH_PASSWORD
    in_code = load_settings(environ={}, directory=NOWHERE, arguments={"database.url": WITH_PASSWORD})
    assert in_code.settings.database.url == WITH_PASSWORD


def test_settings_never_show_the_password(caplog: pytest.LogCaptureFixture) -> None:
    """Neither `reltask config` nor a repr in a log or traceback shows it."""
    loaded = load_settings(environ={"RELTASK_DATABASE_URL": WITH_PASSWORD}, directory=NOWHERE)
    rows = {name: (value, origin) for name, value, origin in render_settings(loaded)}
    assert rows["database.url"] == ("postgresql://app:***@db.example.com/app", "environment RELTASK_DATABASE_URL")
    logging.getLogger("test").warning("loaded %r %s", loaded, loaded.settings.database)
    assert "db.example.com" in caplog.text
    assert SECRET not in caplog.text + repr(loaded) + str(rows)


@pytest.mark.parametrize(
    "key", ["worker.poll", "worker.concurrency", "worker.queues", "log.level", "worker.queue_concurrency"]
)
@pytest.mark.parametrize("value", [WITH_PASSWORD, f"Server=h;Password={SECRET}", [f"a:{SECRET}@h", 1]])
def test_a_misplaced_url_is_not_quoted(key: str, value: object) -> None:
    """Even a URL under the wrong name is not shown in the error."""
    try:
        load_settings(environ={}, directory=NOWHERE, arguments={key: value})
    except SettingsError as error:
        assert SECRET not in str(error)  # noqa: PT017 - some of these are valid names of queues, and then nothing is raised


def test_broken_files_are_not_quoted(tmp_path: Path) -> None:
    """The error about an unparsable file does not quote the file."""
    (tmp_path / "reltask.toml").write_text(f'[database]\nurl = "{WITH_PASSWORD}" oops\n')
    with pytest.raises(SettingsError) as caught:
        load_settings(environ={}, directory=tmp_path)
    assert SECRET not in "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
