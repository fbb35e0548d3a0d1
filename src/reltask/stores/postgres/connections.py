"""Connections to PostgreSQL, the pool of a store, and its signals.

A connection is kept while it works. The last one given back is the next one taken, so a worker with
little to do needs only one. There is no ping between uses. A broken connection is dropped, and the
next use makes a new one. The first one also LISTENs, while there is a listener:

    take ──► idle[-1] ──► statement ──► idle.append        one connection idles and listens
                 │             └─ failed: terminate        it breaks: wake the worker, connect again,
                 └─ none: connect (at most `pool_size`)    listen again, wake once more (`listening.py`)

Statements that wait for what another session has locked use at most half of the connections: a
user's open transaction that holds a key must not stall a worker whose bodies enqueue the same key.

A connection that is in use when its store is closed is closed when it is given back.

The connections of tasks are for the users' own statements (`plain`). Each is reset when it is given
back, in one round trip: no setting, lock or table of one task reaches the next.

A store sends at most one signal per 10 ms, and never drops the last one of a burst.

    asked   ●  ● ●●     ●                    ●
    sent    ●        ●        ●              ●
            └─10 ms──┴─10 ms──┘              at once after a pause

Session settings are sent when connecting. Plans must not depend on the current statistics, so
generic plans are used, and sequential scans only as a last resort. A statement that has waited for
a row must see the row's new version, so the isolation level is READ COMMITTED, whatever the
server's default. Timeouts on the server are shorter than those of the client, so that after a
timeout the statement has ended. The search path is `pg_catalog` alone: no other user's function or
operator can take the place of one of the server's. The connections of tasks keep the user's path,
where the statements' exact types protect them (SQL.md: exact types). PgBouncer in transaction mode
supports none of this: `?pgbouncer=true` in the URL omits it, and also prepared statements and
LISTEN. With `signals_url` a store listens over one connection of its own, past the pooler; it still
sends signals through it.

Times are decoded here, because a time that Python cannot represent must not make an answer
unreadable: the driver would raise after the claim was committed, and reads `infinity` as a time
without a zone. Such a time is read as one outside the range of valid times, and the worker fails
the job alone. Clamping in the statements would do as well, but every statement that returns a time
would need it. The cost, measured: 0.4 µs per time.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from msgspec import Struct

from reltask.errors import SettingsError, TransientError
from reltask.model.job import LATEST, UNREADABLE
from reltask.model.schema_name import split_schema
from reltask.stores.entra import Tokens, postgres_tokens
from reltask.stores.postgres.driver import asyncpg, know_arrays
from reltask.stores.postgres.errors import connection_failed, uncommitted
from reltask.stores.postgres.listening import Listener, Listening, watch_socket
from reltask.stores.postgres.url import read_url
from reltask.stores.statement import load_batch
from reltask.stores.waking import Cancelled, Ids, LeaseWake, Lost, News, Wake

SERVER_SHARE = 0.8
"""The server's timeout as a share of the client's."""
TOKEN_SHARE = 0.5
"""Fetching a token may take this share of the connect timeout; then the last good one is tried."""
GAP = 0.010
"""Seconds between two signals of one store."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_OF_POSTGRES = datetime(2000, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
LISTEN_AGAIN = 5.0
"""Seconds between two attempts to listen while the database cannot be reached."""


class PostgresOptions(Struct, frozen=True, kw_only=True):
    """How a store connects. Lengths are seconds."""

    connect_timeout: float = 10.0
    command_timeout: float = 30.0
    call_timeout: float | None = None
    """For connecting and the statement together; None: each has its own."""
    pool_size: int = 4
    application_name: str = "reltask"
    signals_url: str | None = None
    """A direct URL of the same database, to listen behind a pooler; None: over the store's own connections."""
    tokens: Tokens | None = None
    """The source of tokens that are used as passwords; None: as the URL says, which may also ask for tokens."""


def _session(options: PostgresOptions) -> dict[str, str]:
    patience = str(max(1, int(options.command_timeout * SERVER_SHARE * 1000)))
    return {
        "application_name": options.application_name,
        "search_path": "pg_catalog",
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


class TaskConnection(asyncpg.Connection):  # type: ignore[misc] # the driver has no types
    """A connection for a task's own statements."""

    def get_reset_query(self) -> str:
        return load_batch("postgres", "reset_session", "numbered").text


async def connect(
    url: str, options: PostgresOptions, *, plain: bool = False, settings: Mapping[str, str] | None = None
) -> asyncpg.Connection:
    """A new connection, or one of reltask's errors; `settings` are further server settings."""
    target = read_url(url, entra=options.tokens is not None)
    session = {"application_name": options.application_name} if plain else _session(options)
    session.update(settings or {})
    # Each statement is planned once, however long it is: the longest takes 4 ms. By default the driver leaves out
    # those above 15 kB.
    kept: dict[str, Any] = {"max_cacheable_statement_size": 0, "server_settings": session}
    arguments: dict[str, Any] = {"statement_cache_size": 0} if target.pgbouncer else kept
    if plain and not target.pgbouncer:  # a pooler's session belongs to the pooler
        arguments["connection_class"] = TaskConnection
    if target.entra:
        tokens = options.tokens or postgres_tokens()
        arguments["password"] = partial(tokens.fetch_async, options.connect_timeout * TOKEN_SHARE)
    try:
        connection = await asyncpg.connect(
            target.dsn,
            ssl=target.tls_context(),
            timeout=options.connect_timeout,
            command_timeout=None if plain else options.command_timeout,  # a task's are limited by its lock timeout
            max_cached_statement_lifetime=0,
            **arguments,
        )
        watch_socket(connection)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.TargetServerAttributeNotMatched) as error:
        raise target.mistake(error) or connection_failed(error, token=target.entra) from error
    except (ValueError, asyncpg.InterfaceError) as error:
        raise target.mistake(error) or SettingsError(
            "the database URL cannot be read.", remedy="Write postgresql://user@host:5432/database."
        ) from None
    if not plain:  # sends nothing: the driver knows this type
        await connection.set_type_codec(
            "timestamptz", schema="pg_catalog", encoder=_to_wire, decoder=_from_wire, format="tuple"
        )
    know_arrays(connection)
    return connection


def _to_wire(moment: datetime) -> tuple[int]:
    return ((moment - _EPOCH_OF_POSTGRES) // _MICROSECOND,)


def _from_wire(stored: tuple[int]) -> datetime:
    """A time: microseconds since 2000. `infinity` is the largest number, `-infinity` the smallest."""
    try:
        return _EPOCH_OF_POSTGRES + timedelta(0, 0, stored[0])
    except OverflowError:
        return UNREADABLE if stored[0] < 0 else LATEST


class Connections:
    """The connections of one store."""

    def __init__(self, url: str, options: PostgresOptions, *, plain: bool = False, schema: str | None = None) -> None:
        """`plain` connections are for the user's own statements: without the planner settings.

        `schema` names the channels; None: the URL does.
        """
        self._url = url
        self.schema = schema or split_schema(url)[1]
        self._options = options
        self._plain = plain
        self._idle: list[asyncpg.Connection] = []
        self._closed = False
        self._room = asyncio.Semaphore(options.pool_size)
        self._waits = asyncio.Semaphore(max(1, options.pool_size // 2))
        self._listening = Listening(self.schema)

    @property
    def command_timeout(self) -> float:
        """Seconds for one of reltask's own statements."""
        return self._options.command_timeout

    @asynccontextmanager
    async def take(self) -> AsyncIterator[asyncpg.Connection]:
        """A connection for one statement. After an error it is closed only if it may be broken."""
        async with self._room:
            connection, listening = None, self._listening
            while self._idle and (connection is None or connection.is_closed()):
                connection = self._idle.pop()
            if connection is None or connection.is_closed():
                connection = await connect(self._url, self._options, plain=self._plain)
            try:
                if listening.listeners and (listening.connection is None or listening.connection.is_closed()):
                    await listening.begin(connection)
                yield connection
                _check_committed(connection)
            except asyncpg.PostgresError as error:
                await self._after_error(connection, error)
                raise
            except BaseException:
                connection.terminate()
                raise
            if self._closed or self._plain or connection is listening.connection:
                await self._give_back(connection)
            else:
                self._idle.append(connection)

    @asynccontextmanager
    async def take_to_wait(self) -> AsyncIterator[asyncpg.Connection]:
        """As `take`, for a statement that may wait for another session: at most half of the connections do."""
        async with self._waits, self.take() as connection:
            yield connection

    async def _give_back(self, connection: asyncpg.Connection) -> None:
        """Keep it for the next statement; once the store is closed, close it."""
        is_task = type(connection) is TaskConnection  # isinstance() is true for every connection of this driver
        if is_task and not await _reset(connection, self.command_timeout):
            connection.terminate()
        elif self._closed:
            await _close(connection)
        else:
            if connection is self._listening.connection:
                self._listening.answered()
            self._idle.append(connection)

    async def _after_error(self, connection: asyncpg.Connection, error: asyncpg.PostgresError) -> None:
        """Keep a connection after an ordinary error of the server: a constraint, a deadlock, a timeout."""
        orderly = (error.sqlstate or "08")[:2] in {"22", "23", "40", "42", "55"}
        if orderly and not connection.is_closed() and not connection.is_in_transaction():
            await self._give_back(connection)
        else:
            connection.terminate()

    @asynccontextmanager
    async def listening(
        self,
        wake: Wake,
        lease: LeaseWake | None,
        lost: Lost | None,
        *,
        cancelled: Cancelled | None = None,
        awaited: Ids | None = None,
        ended: Ids | None = None,
    ) -> AsyncIterator[bool]:
        """Call these at each notification; yields False where there are none."""
        if read_url(self._url).pgbouncer:
            yield False
            return
        listener = Listener(wake, lease, lost, cancelled, awaited, ended)
        self._listening.listeners.append(listener)
        keeping: asyncio.Task[None] | None = None
        try:
            with suppress(TransientError):  # unavailable now: the next statement that succeeds also listens
                async with self.take():
                    pass
            keeping = asyncio.create_task(self._keep_listening(), name="listening")
            yield True
        finally:
            self._listening.listeners.remove(listener)  # the connection itself listens until it is closed
            if keeping is not None:
                keeping.cancel()
                await asyncio.wait({keeping})

    async def _keep_listening(self) -> None:
        """Listen again after a loss, and notice one that the driver does not see."""
        while True:
            if not self._listening.is_missing:
                if await self._listening.too_quiet():
                    await self._send_alive()
                continue
            try:
                async with self.take():
                    pass
            except Exception:  # noqa: BLE001 - whatever it was, the store's next statement reports it
                await asyncio.sleep(LISTEN_AGAIN)

    async def _send_alive(self) -> None:
        """Over the listening connection, unless a statement uses it: then its answer says as much."""
        async with self._room:
            connection = self._listening.connection
            if connection is None or connection not in self._idle:
                self._listening.postpone()
                return
            self._idle.remove(connection)
            is_alive = False
            try:
                is_alive = await self._listening.send_alive(connection)
            finally:
                if not is_alive:
                    self._terminate_all(connection)
            if is_alive:
                await self._give_back(connection)

    def _terminate_all(self, unanswered: asyncpg.Connection) -> None:
        """The idle connections, too: they took the same way, and the next statement would wait on one of them."""
        for connection in (unanswered, *self._idle):
            connection.terminate()
        self._idle.clear()

    async def close(self) -> None:
        """Close every idle connection; one that is in use is closed when it is given back."""
        self._closed = True
        idle, self._idle, self._listening.connection = self._idle, [], None
        try:
            while idle:
                await _close(idle.pop())
        finally:
            for connection in idle:  # left after a cancellation
                connection.terminate()


def _check_committed(connection: asyncpg.Connection) -> None:
    """An error if one of reltask's own statements has left a transaction open: the connection is then closed."""
    own = type(connection) is not TaskConnection
    if own and not connection.is_closed() and connection.is_in_transaction():
        raise uncommitted()


async def _reset(connection: asyncpg.Connection, limit: float) -> bool:
    """Remove what a task has left in its session; False if that failed, so that it must not be used again."""
    try:
        await connection.reset(timeout=limit)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError):
        return False
    except BaseException:
        connection.terminate()
        raise
    return True


async def _close(connection: asyncpg.Connection) -> None:
    try:
        await connection.close(timeout=2.0)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
        connection.terminate()


class Signals:
    """A throttle for `send`. Waiting signals are sent as one, with the earliest time."""

    def __init__(self, send: Callable[[News], Awaitable[None]]) -> None:
        self._send = send
        self._free_at = 0.0
        self._planned: asyncio.Task[None] | None = None
        self._news: News = None
        self._under_way: set[asyncio.Task[None]] = set()
        """Planned, or being sent. Both still need a connection."""

    async def signal(self, news: News) -> None:
        """Send now, or merge this signal with the planned one."""
        if self._planned is not None and not self._planned.done():  # done: it was cancelled
            self._news = _merged(news, self._news)
            return
        loop = asyncio.get_running_loop()
        wait = self._free_at - loop.time()
        if wait > 0:
            self._news = news
            self._planned = loop.create_task(self._send_later(wait))
            self._under_way.add(self._planned)
            self._planned.add_done_callback(self._under_way.discard)
            return
        self._free_at = loop.time() + GAP
        await self._send(news)

    async def _send_later(self, wait: float) -> None:
        await asyncio.sleep(wait)
        self._planned = None  # later signals plan another one: this one may be sent before their commit
        self._free_at = asyncio.get_running_loop().time() + GAP
        await self._send(self._news)

    async def close(self) -> None:
        """Wait for signals that are planned or being sent.

        They are sent even if this is cancelled.
        """
        if self._under_way:
            await asyncio.wait(self._under_way)


def _merged(one: News, other: News) -> News:
    """Now comes before later; the usual number of answers before another one."""
    if isinstance(one, datetime) and isinstance(other, datetime):
        return min(one, other)
    if isinstance(one, datetime) or isinstance(other, datetime):
        return other if isinstance(one, datetime) else one
    return None if one is None or other is None else max(one, other)
