"""Connections: how one is made, and the few that a store keeps.

A connection is held for as long as it works. The last one given back is the next one taken, so a worker that has
little to do needs one; there is no RESET and no ping between uses. One that broke is dropped and replaced by the next
use. The first one also LISTENs, while somebody wants to be woken:

    take ──► idle[-1] ──► statement ──► idle.append        one connection idles and listens
                 │             └─ failed: terminate        it breaks: wake the worker; its next statement
                 └─ none: connect (at most `pool_size`)    connects again, listens again, wakes once more

Settings that belong to the session travel with the connect. The plans of these statements must not depend on what
the statistics happen to say, so plans are made once, and whatever reads a whole table is a last resort. Timeouts on the
server are shorter than those of the client, so that "timed out" means ended. PgBouncer in transaction mode can keep
none of this: `?pgbouncer=true` in the URL leaves it out, and with it prepared statements and LISTEN.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from msgspec import Struct

from reltask.errors import SettingsError, TransientError
from reltask.store import LeaseWake, Wake
from reltask.stores.postgres.driver import asyncpg
from reltask.stores.postgres.errors import connection_failed
from reltask.stores.postgres.signals import from_payload

CHANNEL = "reltask"
LEASES_CHANNEL = "reltask_leases"
SERVER_SHARE = 0.8
"""The server gives up after this share of the client's patience."""


class Options(Struct, frozen=True, kw_only=True):
    """How a store connects. Lengths are seconds."""

    connect_timeout: float = 10.0
    command_timeout: float = 30.0
    call_timeout: float | None = None
    """For connecting and the statement together; None: each has its own."""
    pool_size: int = 4
    application_name: str = "reltask"


class Target(Struct, frozen=True):
    """Where a URL leads, as the driver wants to hear it."""

    dsn: str
    tls: bool
    """Whether TLS must be demanded, because the URL leaves this machine and does not choose for itself."""
    pgbouncer: bool


def read_url(url: str) -> Target:
    """Take reltask's own options out of a URL, and decide about TLS."""
    try:
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query, keep_blank_values=True))
        hosts = query.get("host") or parts.netloc.rpartition("@")[2]
    except ValueError:
        raise SettingsError(
            "the database URL cannot be read.",
            remedy="Write postgresql://user@host:5432/database; escape / @ : # ? with %.",
        ) from None
    pgbouncer = query.pop("pgbouncer", "false").lower() in {"1", "true", "yes", "on"}
    tls = "sslmode" not in query and not all(_is_local(host) for host in hosts.split(","))
    return Target(urlunsplit(parts._replace(query=urlencode(query))), tls, pgbouncer)


def _is_local(host: str) -> bool:
    """Whether a host, with or without its port, is this machine."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    if name in {"", "localhost"} or name.startswith("/"):
        return True
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return False


def _encrypted() -> ssl.SSLContext:
    """TLS as `sslmode=require` means it: encrypted, without asking who answers."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _session(options: Options) -> dict[str, str]:
    patience = str(max(1, int(options.command_timeout * SERVER_SHARE * 1000)))
    return {
        "application_name": options.application_name,
        "statement_timeout": patience,
        "idle_in_transaction_session_timeout": patience,
        "jit": "off",
        "plan_cache_mode": "force_generic_plan",
        "enable_seqscan": "off",
        "enable_bitmapscan": "off",
        "enable_hashjoin": "off",
        "enable_mergejoin": "off",
    }


async def connect(
    url: str, options: Options, *, plain: bool = False, settings: Mapping[str, str] | None = None
) -> asyncpg.Connection:
    """A new connection, or one of reltask's errors; `settings` are more of the server's."""
    target = read_url(url)
    session = {"application_name": options.application_name} if plain else _session(options)
    session.update(settings or {})
    arguments: dict[str, Any] = {"statement_cache_size": 0} if target.pgbouncer else {"server_settings": session}
    if target.tls:
        arguments["ssl"] = _encrypted()
    try:
        return await asyncpg.connect(
            target.dsn,
            timeout=options.connect_timeout,
            command_timeout=options.command_timeout,
            max_cached_statement_lifetime=0,
            **arguments,
        )
    except (ValueError, asyncpg.InterfaceError):
        raise SettingsError(
            "the database URL cannot be read.", remedy="Write postgresql://user@host:5432/database."
        ) from None
    except (OSError, TimeoutError, asyncpg.PostgresError) as error:
        raise connection_failed(error) from error


class Listener(NamedTuple):
    """Somebody who wants to be woken."""

    wake: Wake
    lease: LeaseWake | None


class Connections:
    """The connections of one store."""

    def __init__(self, url: str, options: Options, *, plain: bool = False) -> None:
        """`plain` connections are for the user's own statements, and leave the planner alone."""
        self._url = url
        self._options = options
        self._plain = plain
        self._idle: list[asyncpg.Connection] = []
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
                self._after_error(connection, error)
                raise
            except BaseException:
                connection.terminate()
                raise
            self._idle.append(connection)

    def _pop(self) -> asyncpg.Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_closed():
                return connection
        return None

    def _after_error(self, connection: asyncpg.Connection, error: asyncpg.PostgresError) -> None:
        """Keep a connection whose server answered in good order: a constraint, a deadlock, a timeout."""
        orderly = (error.sqlstate or "08")[:2] in {"22", "23", "40", "42", "55"}
        if orderly and not connection.is_closed() and not connection.is_in_transaction():
            self._idle.append(connection)
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
        """Say goodbye on every idle connection."""
        idle, self._idle, self._listening = self._idle, [], None
        for connection in idle:
            try:
                await connection.close(timeout=2.0)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                connection.terminate()
