"""Tokens of Microsoft Entra ID, which replace passwords on Azure.

A token is requested for each physical connection and not cached here: credentials of azure-identity have a cache of
their own and renew a token minutes before it expires. So this module reads no clock; the database decides whether a
token is still valid.

    connect ──► fetch ──► the credential, on a thread ──► a token                 remembered as the last good one
                 │              └─ error, or no answer in time ──► the last good one, if there was any
                 └─ a request is already running: share it                        none: TransientError, AccessRefused

So if the token endpoint is down, slow or refuses for a while, a process with a valid token can still connect, and open
connections are not affected: the database checks the token only at the login.

A token gives access to the database. It is in no log line, no error and no repr, and it is sent over encrypted
connections only: see `stores/mssql/url.py` and `stores/postgres/url.py`. A URL that an environment, a file or a command
line names could be planted; so with such a URL a token goes to Azure's own host names only. A URL that the app's code
gives to `App(…)` may name any host.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from reltask.errors import AccessRefused, MissingExtra, ReltaskError, SettingsError, TransientError, UsageError

SQL_SCOPE = "https://database.windows.net/.default"
"""Azure SQL. Other clouds have scopes of their own: pass a credential that asks for them."""
POSTGRES_SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
"""Azure Database for PostgreSQL: the token is the password."""

_AZURE = (
    ".database.windows.net",  # Azure SQL
    ".database.fabric.microsoft.com",  # SQL databases of Microsoft Fabric
    ".postgres.database.azure.com",
    ".postgres.cosmos.azure.com",
    ".database.usgovcloudapi.net",  # the government's cloud: both
    ".database.chinacloudapi.cn",  # the cloud in China: both
)
"""Under these domains all hosts are Microsoft's."""

PATIENCE = 10.0
"""Seconds that a connection waits for its token. If packets are dropped, a credential can hang for minutes."""
GIVE_UP_AFTER = 60.0
"""Seconds after which a request that still runs is given up and another one started beside it."""

_REMEDY = (
    "Run: az login. On Azure give this host a managed identity (AZURE_CLIENT_ID names a user-assigned one), "
    "or pass App(url, credential=…)."
)

log = logging.getLogger(__name__)


class Credential(Protocol):
    """Any source of tokens: a synchronous credential of azure-identity, or an object of your own."""

    def get_token(self, scope: str, /) -> Any:
        """A token for this scope, with its text in `.token`."""
        ...


def default_credential(client_id: str | None = None) -> Credential:
    """Azure's own chain: environment, workload identity, managed identity, then the developer's own login."""
    try:
        from azure.identity import DefaultAzureCredential  # noqa: PLC0415 - half a second, and only on Azure
    except ImportError as absent:
        raise MissingExtra(
            "Logging in with Microsoft Entra ID needs the azure-identity package.",
            remedy='Run: pip install "reltask[azure]"',
        ) from absent
    # Its log lists every kind of login that failed, before our error; where nothing is configured, it would be printed.
    logging.getLogger("azure.identity").addHandler(logging.NullHandler())
    if client_id is None:
        return DefaultAzureCredential()
    return DefaultAzureCredential(managed_identity_client_id=client_id)


class _Request(NamedTuple):
    """A running request to the credential."""

    answer: Future[str]
    since: float


class Tokens:
    """Tokens for one scope, from one credential. Safe from any number of threads."""

    def __init__(
        self,
        credential: Credential | None = None,
        *,
        scope: str = SQL_SCOPE,
        client_id: str | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Without a credential the default one is created when the first token is requested."""
        self._credential = credential
        self._scope = scope
        self._client_id = client_id
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._request: _Request | None = None
        self._last: str | None = None

    def __repr__(self) -> str:
        return f"Tokens(scope={self._scope!r})"

    def fetch(self, patience: float = PATIENCE) -> str:
        """A token for a new connection. Blocks for at most `patience` seconds."""
        request = self._start_request()
        waited = self._monotonic() - request.since
        try:
            return request.answer.result(max(0.0, patience - waited))
        except TimeoutError:
            failure: ReltaskError = TransientError(
                f"Microsoft Entra ID gave no token within {patience:g} s.",
                remedy="Check the network and the endpoint of the managed identity.",
            )
            return self._fall_back(failure, None)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - a credential of the user's own may raise anything
            return self._fall_back(self._refused(error), error)

    async def fetch_async(self, patience: float = PATIENCE) -> str:
        """The same, without blocking the event loop."""
        return await asyncio.to_thread(self.fetch, patience)

    def _start_request(self) -> _Request:
        """The running request, or a new one."""
        with self._lock:
            now = self._monotonic()
            if self._request is None or now - self._request.since > GIVE_UP_AFTER:
                self._request = _Request(Future(), now)
                threading.Thread(target=self._run, args=(self._request,), name="reltask-token", daemon=True).start()
            return self._request

    def _run(self, request: _Request) -> None:
        """Runs on a thread of its own, because a credential cannot be interrupted."""
        try:
            token = self._get_token()
        except BaseException as error:  # noqa: BLE001 - raised by the callers that wait for it
            self._finish(request)
            request.answer.set_exception(error)
        else:
            self._finish(request, token)
            request.answer.set_result(token)

    def _finish(self, request: _Request, token: str | None = None) -> None:
        with self._lock:
            self._last = token or self._last
            if self._request is request:
                self._request = None

    def _get_token(self) -> str:
        if self._credential is None:
            self._credential = default_credential(self._client_id)
        found = self._credential.get_token(self._scope)
        if inspect.iscoroutine(found):
            found.close()
        token = getattr(found, "token", None)
        if not isinstance(token, str):
            raise UsageError(
                f"{type(self._credential).__name__}.get_token() returned no token.",
                remedy="Use a credential of azure.identity (not of azure.identity.aio) or a compatible object.",
            )
        return token

    def _refused(self, error: Exception) -> ReltaskError:
        """The error for a failed request. Azure's errors do not distinguish a refusal from an overload.

        If a token was issued before, the failure counts as transient.
        """
        if isinstance(error, ReltaskError):
            return error
        message = f"Microsoft Entra ID gave no token: {_first_line(error)}"
        denied = any(kind.__name__ == "ClientAuthenticationError" for kind in type(error).__mro__)
        kind = AccessRefused if denied and self._last is None else TransientError
        return kind(message, remedy=_REMEDY)

    def _fall_back(self, failure: ReltaskError, cause: Exception | None) -> str:
        if self._last is None:
            raise failure from cause
        log.warning("%s Connecting with the last token instead.", failure.message)
        return self._last


def check_hosts(hosts: Iterable[str], origin: str) -> None:
    """Refuse to send a token to a host that is not Azure's; `origin` says where the URL was written."""
    for host in hosts:
        name = host.lower().removesuffix(".")
        if not (name.endswith(_AZURE) and re.fullmatch(r"[a-z0-9.-]+", name)):
            raise SettingsError(
                f"a token of Microsoft Entra ID is only sent to Azure's host names, and the database URL ({origin}) "
                "names another host.",
                remedy="Use the server's name at Azure. If the host is right, write the URL in code: App(url).",
            )


def postgres_tokens(credential: Credential | None = None) -> Tokens:
    """Tokens for Azure Database for PostgreSQL, which takes them as passwords."""
    return Tokens(credential, scope=POSTGRES_SCOPE)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") + "." if lines else f"{type(error).__name__}."
