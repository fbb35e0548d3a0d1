"""Connections: how one is made, and the few that a store keeps.

A connection is held for as long as it works. The last one given back is the next one taken, so a worker that has
little to do needs one; there is no RESET and no ping between uses. One that broke is dropped and replaced by the next
use. The first one also LISTENs, while somebody wants to be woken:

    take ──► idle[-1] ──► statement ──► idle.append        one connection idles and listens
                 │             └─ failed: terminate        it breaks: wake the worker; its next statement
                 └─ none: connect (at most `pool_size`)    connects again, listens again, wakes once more

One that is in use when its store is closed is closed when it comes back.

Settings that belong to the session travel with the connect. The plans of these statements must not depend on what
the statistics happen to say, so plans are made once, and whatever reads a whole table is a last resort. Whoever has
waited for a row must go on with what is there then, so the isolation is READ COMMITTED, whatever the server's default.
Timeouts on the server are shorter than those of the client, so that "timed out" means ended. PgBouncer in transaction
mode can keep none of this: `?pgbouncer=true` in the URL leaves it out, and with it prepared statements and LISTEN.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, NamedTuple

from msgspec import Struct

from reltask.errors import SettingsError, TransientError
from reltask.stores.entra import Tokens, postgres_tokens
from reltask.stores.postgres.driver import asyncpg
from reltask.stores.postgres.errors import connection_failed
from reltask.stores.postgres.signals import from_payload
from reltask.stores.postgres.url import read_url
from reltask.stores.store import LeaseWake, Wake

CHANNEL = "reltask"
LEASES_CHANNEL = "reltask_leases"
SERVER_SHARE = 0.8
"""The server gives up after this share of the client's patience."""
TOKEN_SHARE = 0.5
"""A token may take this share of the time for connecting; then the last good one is tried."""


class PostgresOptions(Struct, frozen=True, kw_only=True):
    """How a store connects. Lengths are seconds."""

    connect_timeout: float = 10.0
    command_timeout: float = 30.0
    call_timeout: float | None = None
    """For connecting and the statement together; None: each has its own."""
    pool_size: int = 4
    application_name: str = "reltask"
    tokens: Tokens | None = None
    """Where passwords come from, if tokens take their place; None: from the URL, which may ask for tokens, too."""


def _session(options: PostgresOptions) -> dict[str, str]:
    patience = str(max(1, int(options.command_timeout * SERVER_SHARE * 1000)))
    return {
        "application_name": options.application_name,
        "statement_timeout": patience,
        "idle_in_transaction_session_timeout": patience,
        "default_transaction_isolation": "read committed",
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }


async def connect(
    url: str, options: PostgresOptions, *, plain: bool = False, settings: Mapping[str, str] | None = None
) -> asyncpg.Connection:
    """A new connection, or one of reltask's errors; `settings` are more of the server's."""
    target = read_url(url, entra=options.tokens is not None)
    session = {"application_name": options.application_name} if plain else _session(options)
    session.update(settings or {})
    arguments: dict[str, Any] = {"statement_cache_size": 0} if target.pgbouncer else {"server_settings": session}
    if target.entra:
        tokens = options.tokens or postgres_tokens()
        arguments["password"] = partial(tokens.fetch_async, options.connect_timeout * TOKEN_SHARE)
    try:
        return await asyncpg.connect(
            target.dsn,
            ssl=target.tls_context(),
            timeout=options.connect_timeout,
            command_timeout=options.command_timeout,
            max_cached_statement_lifetime=0,
            **arguments,
        )
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched) as error:
        raise target.mistake(error) or connection_failed(error, token=target.entra) from error
    except (ValueError, asyncpg.InterfaceError) as error:
        raise target.mistake(error) or SettingsError(
            "the database URL cannot be read.", remedy="Write postgresql://user@host:5432/database."
        ) from None


class Listener(NamedTuple):
    """Somebody who wants to be woken."""

    wake: Wake
    lease: LeaseWake | None


class Connections:
    """The connections of one store."""

    def __init__(self, url: str, options: PostgresOptions, *, plain: bool = False) -> None:
        """`plain` connections are for the user's own statements, and leave the planner alone."""
        self._url = url
        self._options = options
        self._plain = plain
        self._idle: list[asyncpg.Connection] = []
        self._closed = False
        self._room = asyncio.Semaphore(options.pool_size)
        self._listeners: list[Listener] = []
        self._listening: asyncpg.Connection | None = None

    @asynccontextmanager
    async def take(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for one statement. An error inside the block costs the connection only if it may be broken."""
        async with self._room:
            connection = self._pop() or await connect(self._url, self._options, plain=self._plain)
            try:
                await self._listen_on(connection)
                yield connection
            except asyncpg.PostgresError as error:
                await self._after_error(connection, error)
                raise
            except BaseException:
                connection.terminate()
                raise
            await self._give_back(connection)

    def _pop(self) -> asyncpg.Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    async def _give_back(self, connection: asyncpg.Connection) -> None:
        """Keep it for the next statement, unless nobody would ever close it."""
        if self._closed:
            await _say_goodbye(connection)
        else:
            self._idle.append(connection)

    async def _after_error(self, connection: asyncpg.Connection, error: asyncpg.PostgresError) -> None:
        """Keep a connection whose server answered in good order: a constraint, a deadlock, a timeout."""
        orderly = (error.sqlstate or "08")[:2] in {"22", "23", "40", "42", "55"}
        if orderly and not connection.is_closed() and not connection.is_in_transaction():
            await self._give_back(connection)
        else:
            connection.terminate()

    @asynccontextmanager
    async def listening(self, wake: Wake, lease: LeaseWake | None) -> AsyncIterator[bool]:
        """Call `wake` and `lease` at their notifications; False where notifications cannot reach us."""
        if read_url(self._url).pgbouncer:
            yield False
            return
        listener = Listener(wake, lease)
        self._listeners.append(listener)
        try:
            with suppress(TransientError):  # not there now: the next statement that gets through listens
                async with self.take():
                    pass
            yield True
        finally:
            self._listeners.remove(listener)  # the connection goes on listening, to nobody, until it is closed

    async def _listen_on(self, connection: asyncpg.Connection) -> None:
        """Make this the listening connection if one is wanted and none lives. What was missed meanwhile: wake once."""
        if not self._listeners or (self._listening is not None and not self._listening.is_closed()):
            return
        self._listening = connection
        try:
            await connection.add_listener(CHANNEL, self._notified)
            await connection.add_listener(LEASES_CHANNEL, self._lease_notified)
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
            connection.terminate()
            raise connection_failed(error) from error
        connection.add_termination_listener(self._gone)
        self._gone()

    def _notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        for listener in self._listeners:
            listener.wake(from_payload(payload))

    def _lease_notified(self, _connection: object, _pid: int, _channel: str, payload: str) -> None:
        self._wake_lease(payload)

    def _gone(self, *_: object) -> None:
        """The connection that waited for notifications has gone, or is new: what was missed is anybody's guess."""
        for listener in self._listeners:
            listener.wake(None)
        self._wake_lease(None)

    def _wake_lease(self, name: str | None) -> None:
        for listener in self._listeners:
            if listener.lease is not None:
                listener.lease(name)

    async def close(self) -> None:
        """Say goodbye on every idle connection; one that is in use hears it when it comes back."""
        self._closed = True
        idle, self._idle, self._listening = self._idle, [], None
        try:
            while idle:
                await _say_goodbye(idle.pop())
        finally:
            for connection in idle:  # this was cut off before their turn
                connection.terminate()


async def _say_goodbye(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=2.0)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()
