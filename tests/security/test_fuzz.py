"""Text from outside: URLs, settings files and variables. Bad text is one of reltask's errors, never another one.

Random text alone seldom gets past the first check, so most of it is put together from pieces of good text.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reltask.config import load_settings, safe_url
from reltask.config.fields import dotnet_names, fields, sections
from reltask.errors import ReltaskError, SettingsError
from reltask.model.clock import SystemClock
from reltask.model.connection_url import from_ado_net, holds_password
from reltask.model.settings import DatabaseSettings
from reltask.stores.choose import check_token_host, make_store
from reltask.stores.mssql.url import read_url as read_mssql_url
from reltask.stores.postgres.url import read_url as read_postgres_url
from reltask.stores.sqlite.url import database_path

pytestmark = pytest.mark.slow

# URLs

SCHEMES = ["sqlite", "postgresql", "postgres", "mssql", "postgresql+asyncpg", "mssql+odbc", "SQLITE", "http", ""]
PIECES = [
    *("://", ":///", "/", "//", ":", "@", "?", "&", "=", "#", ";", ",", "%", "%00", "%2F", "%zz", "[", "]", "[::1]"),
    *(
        "user",
        "s3cret",
        "host",
        "127.0.0.1",
        "localhost",
        "db",
        "1433",
        "99999",
        "-1",
        "\uff15\uff14",
        "x",
        "..",
        "\\",
        "{",
        "}",
    ),
    *("sslmode=", "verify-full", "require", "sslrootcert=", "system", "auth=entra", "pgbouncer=true", "host=/run"),
    *("service=s", "encrypt=", "strict", "connect_timeout=", "1e400", "nan", "authentication=", "instance=", "\x00"),
    *("trusted_connection=yes", "hostname_in_certificate=x", "Server=tcp:", "Database=", "\n", "\ud800", "é", "٣"),
]
pieces = st.lists(st.sampled_from(PIECES), max_size=14).map("".join)
urls = st.one_of(
    st.text(),
    st.builds("{}://{}".format, st.sampled_from(SCHEMES), pieces),
    st.builds("{}://{}".format, st.sampled_from(SCHEMES), st.text()),
    st.builds("{}://user@host/db?{}".format, st.sampled_from(SCHEMES), pieces),
    st.builds("{}{}".format, pieces, st.text(max_size=5)),
)


def ours(read: Callable[..., Any], *given: Any, **named: Any) -> None:
    """Call it; only reltask's errors may be raised, or that a file is missing."""
    with suppress(ReltaskError, OSError):
        read(*given, **named)


@given(urls)
@example("postgresql://[")
@example("mssql://user:pw@host:99999/db")
@example("mssql://host/db?connect_timeout=x")
@example("mssql://host/db?connect_timeout=nan")
@example("sqlite:///\x00")
@example("postgresql://h/d?sslrootcert=\x00")
def test_any_text_as_a_url(url: str) -> None:
    """Every reader of URLs reads it or refuses it, and so does the choice of a store."""
    for entra in (False, True):
        ours(read_postgres_url, url, entra=entra)
    ours(read_mssql_url, url)
    if url.startswith("sqlite:"):
        ours(lambda: Path(database_path(url)).stat())
    ours(make_store, url, DatabaseSettings(url=url), clock=SystemClock(), rng=random.Random())
    for show in (safe_url, holds_password):
        show(url)


@given(urls)
def test_any_text_as_the_setting_of_the_database(url: str) -> None:
    """From a variable it goes further: to the rule where tokens may be sent."""

    def load() -> None:
        loaded = load_settings(environ={"RELTASK_DATABASE_URL": url}, directory=Path("/nonexistent"))
        check_token_host(loaded, None)

    ours(load)


@given(st.one_of(st.text(), pieces))
def test_any_text_as_a_connection_string(text: str) -> None:
    """ADO.NET's form is read by hand; a mistake is a ValueError, which the setting's reader reports."""
    with suppress(ValueError):
        from_ado_net(text)


@pytest.mark.parametrize("option", ["sslrootcert=%00", "sslcert=%00", "auth=entra&sslrootcert=%00"])
def test_text_that_names_no_file(option: str) -> None:
    """A NUL would end the name for the system, and reach other code as a ValueError."""
    with pytest.raises(SettingsError):
        read_postgres_url(f"postgresql://u@db.example.com/d?{option}").tls_context()


# Settings

WORDS = [*sections(), *fields(), *(key.partition(".")[2] for key in fields()), *dotnet_names()]
WORDS += [
    "TaskExecution",
    "Reltask",
    "ConnectionStrings",
    "SqlAzure",
    "[",
    "]",
    "=",
    "\n",
    '"',
    "{",
    "}",
    ":",
    ",",
    "//",
]
VALUES = [
    "10s",
    "auto",
    "0",
    "-1",
    "1e999",
    "9" * 400,
    "99999999999d",
    "",
    " ",
    ",",
    "a=b=c",
    "=",
    "mail=2",
    "NaN",
    "true",
]
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(VALUES))
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
)
tables = st.dictionaries(
    st.sampled_from(WORDS), st.one_of(values, st.dictionaries(st.sampled_from(WORDS), values, max_size=4)), max_size=4
)
written = st.one_of(
    st.binary(max_size=200),
    st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.lists(st.sampled_from([*WORDS, *VALUES]), max_size=20).map(lambda words: " ".join(words).encode()),
    tables.map(lambda table: json.dumps(table).encode()),
)


@given(st.sampled_from(["reltask.toml", "appsettings.json"]), written)
@example("reltask.toml", b"\xff")
@example("appsettings.json", b"[" * 100_000)
@example("reltask.toml", b"a=" + b"[" * 100_000)
@example("reltask.toml", b"a = " + b"9" * 5_000)
@example("appsettings.json", b'{"Reltask": {"Worker": {"Concurrency": ' + b"9" * 5_000 + b"}}}")
def test_any_bytes_as_a_settings_file(name: str, content: bytes) -> None:
    """A file is read or refused, whatever it contains; too deep or too long is a mistake of the file."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(content)
        ours(load_settings, environ={}, directory=Path(folder))


@given(
    st.dictionaries(
        st.one_of(st.sampled_from(["RELTASK_", "TaskExecution__", "ConnectionStrings__"]), st.text(max_size=5)),
        st.text(max_size=30),
    ),
    st.data(),
)
def test_any_text_as_the_environment(environ: dict[str, str], data: st.DataObject) -> None:
    """Names that begin like ours and any value for each setting."""
    name = data.draw(st.sampled_from([field.variable for field in fields().values()]))
    value = data.draw(st.one_of(st.text(max_size=30), st.sampled_from(VALUES), pieces))
    ours(load_settings, environ={**environ, name: value}, directory=Path("/nonexistent"))
    ours(load_settings, environ={}, arguments={name.removeprefix("RELTASK_"): value}, directory=Path("/nonexistent"))
