"""From a URL to a connection: what the driver receives, what is refused, and what an error says."""

from __future__ import annotations

import re
import socket
import struct
from types import SimpleNamespace
from typing import Any

import mssql_python
import pytest
from mssql_python.connection_string_parser import _ConnectionStringParser

from reltask import App
from reltask.errors import ConfigurationError, SettingsError, TransientError
from reltask.model.connection_url import from_ado_net
from reltask.stores.entra import Tokens
from reltask.stores.mssql.connections import ACCESS_TOKEN, connect, token_attribute
from reltask.stores.mssql.store import MssqlStore
from reltask.stores.mssql.url import Target, read_url
from tests.azure.conftest import Fixed, needs_libraries

AZURE = "mssql://server.database.windows.net/TaskExecutionDb"
PORTAL = (
    "Server=tcp:server.database.windows.net,1433;Initial Catalog=TaskExecutionDb;Persist Security Info=False;"
    "MultipleActiveResultSets=False;Encrypt=True;TrustServerCertificate=False;Connection Timeout=30;"
)


def keywords(target: Target) -> dict[str, str]:
    """The connection string as the driver's own parser reads it."""
    return dict(_ConnectionStringParser()._parse(target.connection_string))


def test_azure_url_needs_no_more_than_server_and_database() -> None:
    """A URL without a user logs in with Microsoft Entra ID, encrypted, to a server with a valid certificate."""
    target = read_url(AZURE)
    assert (target.login, target.client_id, target.connect_timeout) == ("entra", None, None)
    assert keywords(target) == {
        "server": "tcp:server.database.windows.net,1433",
        "database": "TaskExecutionDb",
        "encrypt": "yes",
        "trustservercertificate": "no",
        "connectretrycount": "0",
    }


def test_string_of_the_portal_means_the_same_as_the_url() -> None:
    """An ADO.NET string, as Azure's portal shows it, needs no editing."""
    target = read_url(from_ado_net(PORTAL))
    assert keywords(target) == keywords(read_url(AZURE))
    assert target.connect_timeout == 30


@pytest.mark.parametrize(
    ("url", "login", "expected"),
    [
        ("mssql://sa:p%3B%7D%7B%3D@db.example/d", "sql", {"uid": "sa", "pwd": "p;}{="}),
        ("mssql://sa:p@db.example/d?encrypt=no", "sql", {"encrypt": "no"}),
        ("mssql://sa:p@db.example/d?encrypt=strict", "sql", {"encrypt": "strict"}),
        ("mssql://sa:p@127.0.0.1:14330/d", "sql", {"server": "tcp:127.0.0.1,14330", "trustservercertificate": "yes"}),
        ("mssql://sa:p@localhost/d?trust_server_certificate=false", "sql", {"trustservercertificate": "no"}),
        ("mssql://sa:p@h/d?trust_server_certificate=true", "sql", {"trustservercertificate": "yes"}),
        ("mssql://h/d?trusted_connection=yes", "windows", {"trusted_connection": "yes"}),
        ("mssql://h/d?integrated_security=SSPI", "windows", {"trusted_connection": "yes"}),
        ("mssql://h/d?instance=SQLEXPRESS&trusted_connection=yes", "windows", {"server": "tcp:h\\SQLEXPRESS"}),
        ("mssql://h/d?authentication=Active%20Directory%20Default", "entra", {}),
        ("mssql://h/d?ApplicationIntent=ReadWrite", "entra", {"applicationintent": "ReadWrite"}),
        ("mssql://h/my%20db?hostname_in_certificate=x", "entra", {"database": "my db", "hostnameincertificate": "x"}),
    ],
)
def test_url(url: str, login: str, expected: dict[str, str]) -> None:
    """Each part of a URL reaches the driver, whatever characters it contains."""
    target = read_url(url)
    assert target.login == login
    assert expected.items() <= keywords(target).items()


def test_managed_identity_by_url() -> None:
    """ADO.NET's way to name a user-assigned identity: the user is its client id, and no password."""
    target = read_url("mssql://my-identity@h/d?authentication=ActiveDirectoryManagedIdentity")
    assert (target.login, target.client_id) == ("entra", "my-identity")
    assert "uid" not in keywords(target)


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        (f"{AZURE}?encrypt=no", "never sent unencrypted.*encrypt=no from the URL"),
        (f"{AZURE}?encrypt=optional", "never sent unencrypted"),
        ("mssql://localhost/d?encrypt=false", "never sent unencrypted"),
        (f"{AZURE}?trust_server_certificate=true", "certificate is verified"),
        (f"{AZURE}?encrypt=maybe", "not yes, no or strict"),
        (f"{AZURE}?encrpyt=yes", "encrpyt.*Did you mean encrypt"),
        ("mssql://user@h/d", "a user, but no password.*Entra"),
        ("mssql://h/d?authentication=ActiveDirectoryInteractive", "ActiveDirectoryInteractive.*credential="),
        ("mssql://h", "names no database"),
        ("mssql:///d", "cannot be read"),
        ("mssql://h:port/d", "cannot be read"),
    ],
)
def test_url_that_cannot_be_right(url: str, complaint: str) -> None:
    """The error says what is wrong, and what to write instead."""
    with pytest.raises(SettingsError, match=complaint):
        read_url(url)


def test_secrets_are_not_shown() -> None:
    """A password appears in no repr and in no error."""
    assert "geheim" not in repr(read_url("mssql://sa:geheim@h/d"))
    with pytest.raises(SettingsError) as caught:
        read_url("mssql://sa:geheim@h:port/d")
    assert "geheim" not in str(caught.value)


def test_token_as_odbc_wants_it() -> None:
    """Four bytes of length, then UTF-16 without a byte order mark."""
    attribute = token_attribute("abc")
    assert struct.unpack("<I", attribute[:4]) == (6,)
    assert attribute[4:].decode("utf-16-le") == "abc"


def test_sql_connection_carries_the_token_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The token is passed beside the connection string, never in it, with no user and no second login."""
    calls: list[Any] = []

    def record(string: str, **options: Any) -> Any:
        calls.append((string, options))
        return SimpleNamespace(timeout=0)

    monkeypatch.setattr(mssql_python, "connect", record)
    connection = connect(read_url(AZURE), Tokens(Fixed()), connect_timeout=10, command_timeout=24)
    ((string, options),) = calls
    assert options == {"autocommit": True, "attrs_before": {ACCESS_TOKEN: token_attribute("the-token")}, "timeout": 10}
    assert not {"the-token", "uid", "pwd", "authentication"} & set(string.lower().replace("=", ";").split(";"))
    assert connection.timeout == 24


@pytest.mark.slow
@needs_libraries
def test_connection_failure_handling_invalid_server() -> None:
    """A server that does not exist gives a clear, transient error."""
    with pytest.raises(TransientError, match=r"[Cc]heck the (server's )?name"):
        connect(read_url("mssql://no-such-server.invalid/d"), Tokens(Fixed()), connect_timeout=1, command_timeout=1)


@pytest.mark.slow
@needs_libraries
def test_server_that_does_not_answer() -> None:
    """A port that never answers, as behind a firewall: the attempt ends in time, and says what to check."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = read_url(f"mssql://sa:geheim@127.0.0.1:{silent.getsockname()[1]}/d")
        with pytest.raises(TransientError, match=r"no answer in time.*firewall blocks that port") as caught:
            connect(target, None, connect_timeout=1, command_timeout=1)
    assert "geheim" not in f"{caught.value!r} {caught.value.__cause__!r}"


@pytest.mark.slow
@needs_libraries
def test_wrong_port() -> None:
    """Nothing listens there: the message neither shows the driver's code nor names another port than the URL's."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    target = read_url(f"mssql://sa:geheim@127.0.0.1:{port}/d")
    with pytest.raises(TransientError, match="no SQL Server answers on this port") as caught:
        connect(target, None, connect_timeout=1, command_timeout=1)
    assert not re.search("0x|1433", str(caught.value))


def test_credential_of_the_app() -> None:
    """`App(credential=…)` uses that credential only. It is refused where no store could use it."""
    store = App(AZURE, credential=Fixed())._make_store()
    assert isinstance(store, MssqlStore)
    assert store._tokens.fetch(1.0) == "the-token"
    with pytest.raises(ConfigurationError, match="mssql:// and postgresql://"):
        App("sqlite:///x.db", credential=Fixed())._make_store()
