"""Tokens, requested by the real azure-identity from a managed-identity endpoint on loopback."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.identity import DefaultAzureCredential, ManagedIdentityCredential

from reltask.errors import MissingExtra, PermanentError, TransientError, UsageError
from reltask.stores.entra import POSTGRES_SCOPE, SQL_SCOPE, Tokens, default_credential, postgres_tokens
from tests.azure.conftest import Answer, Endpoint

ALMOST_OVER = Answer(life=200)
"""azure-identity renews a token that expires within five minutes at every request."""


@pytest.fixture
def credential(endpoint: Endpoint) -> Iterator[ManagedIdentityCredential]:
    """Managed identity only, without azure-identity's retries, which take five seconds."""
    assert endpoint.asked == []
    with ManagedIdentityCredential(retry_total=0) as found:
        yield found


def test_token_acquisition(endpoint: Endpoint) -> None:
    """DefaultAzureCredential gets a token for Azure SQL from the managed identity."""
    with DefaultAzureCredential() as credential:
        assert Tokens(credential).fetch() == endpoint.token(1)
    (asked,) = endpoint.asked
    assert asked["resource"] == SQL_SCOPE.removesuffix("/.default")
    assert asked["header"] == "the-header"
    assert "client_id" not in asked


def test_default_credential_is_made_when_the_first_token_is_needed(endpoint: Endpoint) -> None:
    """Without credential=, azure-identity is not used until a connection is made; then it is the default."""
    tokens = Tokens()
    assert endpoint.asked == []
    assert tokens.fetch() == endpoint.token(1)
    assert isinstance(tokens._credential, DefaultAzureCredential)
    tokens._credential.close()


@pytest.mark.parametrize("by_url", [False, True])
def test_user_assigned_identity(endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, *, by_url: bool) -> None:
    """AZURE_CLIENT_ID, or a URL, chooses one of several managed identities of a host."""
    if not by_url:
        monkeypatch.setenv("AZURE_CLIENT_ID", "my-identity")
    tokens = Tokens(client_id="my-identity" if by_url else None)
    tokens.fetch()
    assert endpoint.asked[0]["client_id"] == "my-identity"
    assert isinstance(tokens._credential, DefaultAzureCredential)
    tokens._credential.close()


def test_good_token_is_not_fetched_again(endpoint: Endpoint, credential: ManagedIdentityCredential) -> None:
    """A token that is valid for an hour serves every connection of that hour."""
    tokens = Tokens(credential)
    assert {tokens.fetch() for _ in range(5)} == {endpoint.token(1)}
    assert len(endpoint.asked) == 1


def test_token_refresh(endpoint: Endpoint, credential: ManagedIdentityCredential) -> None:
    """A token is renewed before it expires: the next connection has the new one."""
    endpoint.say(ALMOST_OVER, Answer())
    tokens = Tokens(credential)
    assert [tokens.fetch(), tokens.fetch(), tokens.fetch()] == [endpoint.token(1), endpoint.token(2), endpoint.token(2)]


@pytest.mark.parametrize("status", [429, 500])
def test_passing_failure_of_the_endpoint_is_retried(endpoint: Endpoint, status: int) -> None:
    """429 and 500 from the endpoint are retried."""
    endpoint.say(Answer(status=status), Answer())
    with DefaultAzureCredential() as credential:
        assert Tokens(credential).fetch() == endpoint.token(2)


@pytest.mark.parametrize("status", [429, 500, 400, 403])
def test_failing_endpoint_does_not_hurt_a_token_that_is_good(
    endpoint: Endpoint, credential: ManagedIdentityCredential, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    """If no new token can be had, the last one is tried: it may be valid for minutes, and the server decides."""
    endpoint.say(ALMOST_OVER, Answer(status=status))
    tokens = Tokens(credential)
    with caplog.at_level(logging.DEBUG):
        first = tokens.fetch()
        assert tokens.fetch() == first
    warnings = [record for record in caplog.records if record.name == "reltask.stores.entra"]
    assert [record.levelname for record in warnings] == ["WARNING"]


def test_endpoint_that_recovers_is_used_again(endpoint: Endpoint, credential: ManagedIdentityCredential) -> None:
    """Each connection asks again. (After 429 or 500 azure-identity pauses for a while.)"""
    endpoint.say(ALMOST_OVER, Answer(status=403), Answer())
    tokens = Tokens(credential)
    assert [tokens.fetch() for _ in range(3)] == [endpoint.token(1), endpoint.token(1), endpoint.token(3)]


@pytest.mark.parametrize("status", [429, 500, 400, 403])
def test_refusal_says_what_to_do(endpoint: Endpoint, credential: ManagedIdentityCredential, status: int) -> None:
    """Without a token there is no connection; the error names the ways to get one."""
    endpoint.say(Answer(status=status))
    with pytest.raises(PermanentError, match=r"gave no token.*az login.*AZURE_CLIENT_ID.*credential=") as caught:
        Tokens(credential).fetch()
    assert caught.value.__cause__ is not None


def test_endpoint_that_is_away_is_transient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable endpoint is a transient error."""
    monkeypatch.setenv("IDENTITY_ENDPOINT", "http://127.0.0.1:9/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "h")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ManagedIdentityCredential(retry_total=0) as credential, pytest.raises(TransientError, match="gave no token"):
        Tokens(credential).fetch()


def test_time_out(endpoint: Endpoint, credential: ManagedIdentityCredential) -> None:
    """A connection waits for its token up to a limit. A late answer serves the next connection."""
    endpoint.say(Answer(hangs=True), Answer())
    tokens = Tokens(credential)
    with pytest.raises(TransientError, match=r"no token within 0\.01 s"):
        tokens.fetch(patience=0.01)
    endpoint.released.set()
    assert tokens.fetch() == endpoint.token(1)


def test_time_out_does_not_hurt_a_token_that_is_good(endpoint: Endpoint, credential: ManagedIdentityCredential) -> None:
    """A black hole costs the timeout once.

    While the request is open, other connections do not wait for it.
    """
    endpoint.say(ALMOST_OVER, Answer(hangs=True))
    tokens = Tokens(credential)
    first = tokens.fetch()
    assert tokens.fetch(patience=0.01) == first
    assert tokens.fetch(patience=0.01) == first
    endpoint.released.set()
    assert tokens.fetch() == endpoint.token(2)
    assert len(endpoint.asked) == 2


class Gate:
    """A credential that answers when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.reached = threading.Event()
        self.open = threading.Event()

    def get_token(self, scope: str) -> Any:
        self.asked += 1
        self.reached.set()
        self.open.wait(10)
        return SimpleNamespace(token=f"{scope} {self.asked}")


def test_connections_made_together_share_one_request() -> None:
    """A worker that opens all its connections sends one request, not one each."""
    gate, found = Gate(), []
    tokens = Tokens(gate)
    threads = [threading.Thread(target=lambda: found.append(tokens.fetch())) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.open.set()
    for thread in threads:
        thread.join()
    assert len(set(found)) <= gate.asked < 8


def test_request_that_never_ends_is_sent_again() -> None:
    """A credential that hangs does not block later ones for ever."""
    now = [0.0]
    gate = Gate()
    tokens = Tokens(gate, monotonic=lambda: now[0])
    for now[0] in (0.0, 30.0):
        with pytest.raises(TransientError):
            tokens.fetch(patience=0.01)
        assert gate.reached.wait(10)
    assert gate.asked == 1
    now[0] = 61.0
    gate.open.set()
    assert tokens.fetch() == f"{SQL_SCOPE} 2"


def test_asynchronous_credential_is_refused() -> None:
    """A credential of azure.identity.aio belongs to one event loop; connections are made on threads."""

    class Asynchronous:
        async def get_token(self, *_: str) -> Any:
            return SimpleNamespace(token="t")

    with pytest.raises(UsageError, match=r"not of azure\.identity\.aio"):
        Tokens(Asynchronous()).fetch()


def test_token_is_never_shown(
    endpoint: Endpoint, credential: ManagedIdentityCredential, caplog: pytest.LogCaptureFixture
) -> None:
    """No repr, log line or error contains a token."""
    endpoint.say(ALMOST_OVER, Answer(status=500))
    tokens = Tokens(credential)
    with caplog.at_level(logging.DEBUG):
        tokens.fetch()
        tokens.fetch()
    assert len(endpoint.asked) == 2
    assert endpoint.token(1) not in f"{tokens!r} {caplog.text}"


def test_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without azure-identity the error says what to install."""
    monkeypatch.setitem(sys.modules, "azure.identity", None)
    with pytest.raises(MissingExtra, match=r"reltask\[azure\]"):
        default_credential()


async def test_tokens_for_postgres(endpoint: Endpoint, credential: ManagedIdentityCredential) -> None:
    """Azure Database for PostgreSQL has its own scope; the event loop is not blocked."""
    assert await postgres_tokens(credential).fetch_async() == endpoint.token(1)
    assert endpoint.asked[0]["resource"] == POSTGRES_SCOPE.removesuffix("/.default")
