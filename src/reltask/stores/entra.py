"""Tokens of Microsoft Entra ID, which take the place of passwords on Azure.

A token is asked for at each physical connection, never kept for a later one on purpose: credentials of azure-identity
keep their own, answer from memory while it is good, and renew it minutes before it expires. So no clock is read here;
whether a token still holds is for the database to say.

    connect ──► fetch ──► the credential, on a thread ──► a token                 remembered as the last good one
                 │              └─ error, or no answer in time ──► the last good one, if there was any
                 └─ a question is under way already: share it                     none: TransientError, AccessRefused

So an endpoint that is down, slow or out of patience hurts nobody whose token is still good, and connections that are
open do not notice at all: the database asks for a token only at the login.

A token opens the database to whoever has it. It is in no log line, no error and no repr, and it leaves this process
over encrypted connections alone: see `stores/mssql/connect.py` and `stores/postgres/target.py`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple, Protocol

from reltask.errors import AccessRefused, MissingExtra, ReltaskError, TransientError, UsageError

SQL_SCOPE = "https://database.windows.net/.default"
"""Azure SQL. Other clouds have scopes of their own: pass a credential that asks for them."""
POSTGRES_SCOPE = "https://ossrdbms-aad.database.windows.net/.default"
"""Azure Database for PostgreSQL: the token is the password."""

PATIENCE = 10.0
"""Seconds that a connection waits for its token. Where packets are swallowed a credential can hang for minutes."""
HOPELESS = 60.0
"""Seconds after which a question that is still under way is given up, and another one asked beside it."""

_REMEDY = (
    "Run: az login. On Azure give this host a managed identity (AZURE_CLIENT_ID names a user-assigned one), "
    "or pass App(url, credential=…)."
)

log = logging.getLogger(__name__)


class Credential(Protocol):
    """Whatever can get a token: every synchronous credential of azure-identity, or an object of your own."""

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
    if client_id is None:
        return DefaultAzureCredential()
    return DefaultAzureCredential(managed_identity_client_id=client_id)


class _Question(NamedTuple):
    """One question to the credential that is under way."""

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
        """Without a credential the default one is made when the first token is asked for."""
        self._credential = credential
        self._scope = scope
        self._client_id = client_id
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._question: _Question | None = None
        self._last: str | None = None

    def __repr__(self) -> str:
        return f"Tokens(scope={self._scope!r})"

    def fetch(self, patience: float = PATIENCE) -> str:
        """A token for a connection that is about to be made. Blocks for at most as long as the patience."""
        question = self._ask()
        waited = self._monotonic() - question.since
        try:
            return question.answer.result(max(0.0, patience - waited))
        except TimeoutError:
            failure: ReltaskError = TransientError(
                f"Microsoft Entra ID gave no token within {patience:g} s.",
                remedy="Check the network, and the endpoint of the managed identity.",
            )
            return self._fall_back(failure, None)
        except UsageError:
            raise
        except Exception as error:  # noqa: BLE001 - a credential may be anybody's, and raise anything
            return self._fall_back(self._refused(error), error)

    async def fetch_async(self, patience: float = PATIENCE) -> str:
        """The same for an event loop, which goes on meanwhile."""
        return await asyncio.to_thread(self.fetch, patience)

    def _ask(self) -> _Question:
        """The question that is under way, or a new one."""
        with self._lock:
            now = self._monotonic()
            if self._question is None or now - self._question.since > HOPELESS:
                self._question = _Question(Future(), now)
                threading.Thread(target=self._answer, args=(self._question,), name="reltask-token", daemon=True).start()
            return self._question

    def _answer(self, question: _Question) -> None:
        """Runs on a thread of its own, because a credential cannot be interrupted."""
        try:
            token = self._get_token()
        except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits
            self._close(question)
            question.answer.set_exception(error)
        else:
            self._close(question, token)
            question.answer.set_result(token)

    def _close(self, question: _Question, token: str | None = None) -> None:
        with self._lock:
            self._last = token or self._last
            if self._question is question:
                self._question = None

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
                remedy="Use a credential of azure.identity, not of azure.identity.aio, or an object like them.",
            )
        return token

    def _refused(self, error: Exception) -> ReltaskError:
        """Azure's errors do not tell a refusal from an overload. Where it worked before, it will work again."""
        if isinstance(error, ReltaskError):
            return error
        said = f"Microsoft Entra ID gave no token: {_first_line(error)}"
        denied = any(kind.__name__ == "ClientAuthenticationError" for kind in type(error).__mro__)
        kind = AccessRefused if denied and self._last is None else TransientError
        return kind(said, remedy=_REMEDY)

    def _fall_back(self, failure: ReltaskError, cause: Exception | None) -> str:
        if self._last is None:
            raise failure from cause
        log.warning("%s The token of the last connection is tried again.", failure.message)
        return self._last


def postgres_tokens(credential: Credential | None = None) -> Tokens:
    """Tokens for Azure Database for PostgreSQL, which takes them as passwords."""
    return Tokens(credential, scope=POSTGRES_SCOPE)


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0].rstrip(".") + "." if lines else f"{type(error).__name__}."
