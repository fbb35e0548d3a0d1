"""The real driver at a gateway that speaks TDS: which server gets a token, and what a refusal becomes.

The server's texts are those that Microsoft documents. What the driver makes of them is the driver's
own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import mssql_python
import pytest

from reltask import App, events
from reltask.errors import AccessRefused, PermanentError, ReltaskError, SchemaError, SettingsError, TransientError
from reltask.stores.entra import Tokens
from reltask.stores.mssql.connections import connect, execute
from reltask.stores.mssql.errors import statement_failed
from reltask.stores.mssql.url import read_url
from tests.azure.conftest import Answer, Endpoint, Fixed, needs_libraries
from tests.azure.gateway import Gateway, Refusal, gateway
from tests.mssql_server import VARIABLE
from tests.worker.worker_harness import Recorder

pytestmark = [pytest.mark.slow, needs_libraries]
needs_server = pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no server")

TRUSTED = "?trust_server_certificate=true"
"""On loopback, where no authority certifies a name."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Gateway]:
    """A gateway; each connection to it is new, as reltask's are."""
    mssql_python.pooling(enabled=False)
    with gateway(tmp_path) as opened:
        yield opened


def connect_to(server: Gateway, tokens: Tokens | None = None, *, options: str = TRUSTED, user: str = "") -> Any:
    """Connect through the gateway."""
    target = read_url(f"mssql://{user}127.0.0.1:{server.port}/TaskExecutionDb{options}")
    return connect(target, tokens or Tokens(Fixed()), connect_timeout=10, command_timeout=10)


def test_connection_by_managed_identity(server: Gateway, endpoint: Endpoint) -> None:
    """The token of the managed identity opens the database: inside TLS, without user and password."""
    with closing(connect_to(server, Tokens())) as connection:
        execute(connection, "SELECT 1")
    (login,) = server.logins
    assert (login.token, login.database) == (endpoint.token(1), "TaskExecutionDb")
    assert (login.user, login.password) == ("", b"")


def test_next_connection_brings_the_renewed_token(server: Gateway, endpoint: Endpoint) -> None:
    """A token that is about to expire is renewed between two connections; the first one stays open."""
    endpoint.say(Answer(life=200), Answer())
    tokens = Tokens()
    with closing(connect_to(server, tokens)) as first, closing(connect_to(server, tokens)):
        execute(first, "SELECT 1")
    assert [login.token for login in server.logins] == [endpoint.token(1), endpoint.token(2)]


def test_endpoint_that_is_down_hurts_no_new_connection(server: Gateway, endpoint: Endpoint) -> None:
    """The last good token also opens the next connection, while the server accepts it."""
    endpoint.say(Answer(life=200), Answer(status=400))
    tokens = Tokens()
    for _ in range(2):
        connect_to(server, tokens).close()
    assert [login.token for login in server.logins] == [endpoint.token(1)] * 2


def test_sql_login_is_a_login_without_token(server: Gateway) -> None:
    """User and password, and nothing of Microsoft Entra ID."""
    connect_to(server, user="sa:geheim@").close()
    (login,) = server.logins
    assert (login.user, login.token) == ("sa", None)
    assert login.password != b""


REFUSALS = [
    (
        Refusal(
            40615,
            "Cannot open server 'reltaskexec' requested by the login. Client with IP address '203.0.113.7' is not "
            "allowed to access the server. To enable access, use the Windows Azure Management Portal or run "
            "sp_set_firewall_rule on the master database.",
        ),
        PermanentError,
        "203.0.113.7.*firewall rule",
    ),
    (
        Refusal(
            40914,
            "Cannot open server 'reltaskexec' requested by the login. Client is not allowed to access the server.",
        ),
        PermanentError,
        "virtual network rule",
    ),
    (
        Refusal(
            47073,
            "Reason: An instance-specific error occurred while establishing a connection to SQL Server. Connection was "
            "denied because Deny Public Network Access is set to Yes.",
        ),
        PermanentError,
        "private endpoint",
    ),
    (
        Refusal(40532, 'Cannot open server "nope" requested by the login. The login failed.'),
        PermanentError,
        "name of the server",
    ),
    (
        Refusal(18456, "Login failed for user '<token-identified principal>'. Token is expired."),
        PermanentError,
        "az login",
    ),
    (Refusal(18456, "Login failed for user '<token-identified principal>'."), PermanentError, "CREATE USER"),
    (
        Refusal(37353, "Server identity is not configured. It is not currently configured to accept this token."),
        PermanentError,
        "Entra administrator",
    ),
    (
        Refusal(18488, "Login failed for user 'sa'. Reason: The password of the account must be changed."),
        PermanentError,
        "password must be changed",
    ),
    (
        Refusal(4060, 'Cannot open database "TaskExecutionDb" requested by the login. The login failed.', 11),
        TransientError,
        "correct its name in the URL.*has a user there",
    ),
    (
        Refusal(
            40613,
            "Database 'TaskExecutionDb' on server 'reltaskexec' is not currently available. Please retry the "
            "connection later.",
            17,
        ),
        TransientError,
        "not currently available",
    ),
    (
        Refusal(40501, "The service is currently busy. Retry the request after 10 seconds. Code: 131075.", 20),
        TransientError,
        "busy",
    ),
    (
        Refusal(
            10928,
            "Resource ID : 1. The request limit for the database is 30 and has been reached. See 'x' for help.",
            20,
        ),
        TransientError,
        "pool_size",
    ),
    (
        Refusal(
            978,
            "The target database ('TaskExecutionDb') is in an availability group and is currently accessible for "
            "connections when the application intent is set to read only.",
        ),
        TransientError,
        "primary",
    ),
    (
        Refusal(
            976,
            "The target database, 'TaskExecutionDb', is participating in an availability group and is currently not "
            "accessible for queries.",
        ),
        TransientError,
        "primary",
    ),
]


@pytest.mark.parametrize(("refusal", "kind", "advice"), REFUSALS, ids=[str(row[0].number) for row in REFUSALS])
def test_refused_login(server: Gateway, refusal: Refusal, kind: type[ReltaskError], advice: str) -> None:
    """Each refusal says what to do, and shows no token."""
    server.refuses_login = refusal
    with pytest.raises(kind, match=f"(?s){advice}") as caught:
        connect_to(server)
    assert f"({refusal.number})" in str(caught.value)
    assert "the-token" not in f"{caught.value!r} {caught.value.__cause__!r}"


ERRORS = [
    (Refusal(208, "Invalid object name 'reltask.Jobs'.", 16), SchemaError, "reltask migrate"),
    (
        Refusal(229, "The SELECT permission was denied on the object 'Jobs', database 'D', schema 'reltask'."),
        AccessRefused,
        "ALTER ROLE reltask_run",
    ),
    (
        Refusal(
            916, 'The server principal "x" is not able to access the database "D" under the current security context.'
        ),
        AccessRefused,
        "CREATE USER",
    ),
    (
        Refusal(3906, 'Failed to update database "D" because the database is read-only.', 16),
        TransientError,
        "primary",
    ),
]


@pytest.mark.parametrize(("refusal", "kind", "advice"), ERRORS, ids=[str(row[0].number) for row in ERRORS])
def test_refused_statement(server: Gateway, refusal: Refusal, kind: type[ReltaskError], advice: str) -> None:
    """An error that no statement can catch on the server is raised by the driver, and classified."""
    connection = connect_to(server)
    server.refuses_batch = refusal
    with pytest.raises(mssql_python.Error) as caught:
        execute(connection, "SELECT 1")
    server.refuses_batch = None
    connection.close()
    error = statement_failed(caught.value, verb="read_schema", writes=False)
    assert type(error) is kind
    assert re.search(advice, str(error)), str(error)


def test_server_that_proves_nothing_gets_no_token(server: Gateway) -> None:
    """A certificate that no authority signed: the connection ends before the login."""
    with pytest.raises(PermanentError, match=r"certificate.*cannot be verified"):
        connect_to(server, options="")
    assert server.logins == []


def test_server_without_tls_gets_no_token(server: Gateway) -> None:
    """A server that offers no encryption gets no token."""
    server.offers_tls = False
    with pytest.raises(PermanentError, match="does not offer TLS"):
        connect_to(server)
    server.wait()
    assert server.clear == []


def test_token_is_not_sent_unencrypted_even_if_asked_to(server: Gateway) -> None:
    """`encrypt=no` with a token: nothing is sent to the server."""
    with pytest.raises(SettingsError, match="never sent unencrypted"):
        connect_to(server, options="?encrypt=no")
    assert server.threads == []


@needs_server
async def test_mssql_worker_without_a_password(server: Gateway, endpoint: Endpoint, mssql_url: str) -> None:
    """As on Azure, with a real server behind the gateway: a job runs, and every login used a token."""
    server.behind = urlsplit(mssql_url)
    app = App(f"mssql://127.0.0.1:{server.port}{server.behind.path}{TRUSTED}")
    recorder = Recorder()
    app.subscribe(recorder)

    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    async with app.worker():
        job = await greet.enqueue("Ada")
        await recorder.wait(events.RunSucceeded, job_id=job.id)
        (run,) = await job.runs()
    assert (run.outcome, run.result) == ("succeeded", '"hello Ada"')
    assert {(login.user, login.token) for login in server.logins} == {("", endpoint.token(1))}
