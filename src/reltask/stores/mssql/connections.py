"""Connections to SQL Server, each in its own thread, and the pool of a store.

The driver is synchronous and its calls cannot be cancelled, but it releases the interpreter's lock
while it waits. So each connection has a thread, and the event loop waits for the thread up to a
timeout:

    event loop                             the connection's thread
    await connection.call(work, 30 s) ──►  work(connection)              ◄── an answer, or an error, in time
          └─ timeout, or cancelled: the call returns, and the thread works on

    take ──► idle[-1] ──► call ──► idle.append            the last one given back is the next one taken
                 │          ├─ failed: closed             one that has idled for 5 minutes is closed
                 │          └─ overdue: late, until its thread has finished; if that went well: idle
                 └─ none: connect (at most `pool_size`, and none while `LATE` are late)

So callers that time out do not flood a slow server, or a network that drops packets, with new
connections: earlier calls have to end first.

There are three timeouts, each shorter than the next, so that an error says as much as possible. The
server refuses a lock that takes too long (1222: certainly not applied), the driver ends a statement
that takes too long, and the event loop stops waiting if the network drops packets.

The driver's own pool is switched off for the process, unless the program has enabled it: a closed
connection should end on the server, and with it its locks. At exit the driver closes open
connections from another thread, and crashes if the connection's own thread uses one. So all are
closed before.
"""

from __future__ import annotations

import asyncio
import atexit
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from msgspec import Struct

from reltask.errors import AmbiguousError, ReltaskError, TransientError
from reltask.stores.entra import Tokens
from reltask.stores.mssql.driver import Odbc, PoolingManager, mssql_python
from reltask.stores.mssql.error_numbers import LOST, STALE
from reltask.stores.mssql.errors import answered, connection_failed, quotable, statement_failed
from reltask.stores.mssql.url import Target
from reltask.stores.mssql.values import Row, aware
from reltask.stores.statement import Statement

T = TypeVar("T")

ACCESS_TOKEN = 1256
"""SQL_COPT_SS_ACCESS_TOKEN: the attribute of an ODBC connection that carries the token."""
LOCK_SHARE = 0.6
"""The server's lock timeout as a share of the statement's timeout."""
NVARCHAR = 4_000
"""The longest nvarchar that is not nvarchar(max)."""
LATE = 2
"""While this many connections are overdue, no more are made."""
CLOSE_TIMEOUT = 5.0
"""Seconds to wait until a connection is closed."""
IDLE = 300.0
"""Seconds after which an idle connection is closed. Azure's gateway drops them after 30 minutes without a word, and the
first write would be ambiguous."""
OVERTIME = 2.0
"""Seconds that the event loop waits longer than the driver, whose timeout is in whole seconds."""


class MssqlOptions(Struct, frozen=True, kw_only=True):
    """How a store connects. Lengths are seconds."""

    connect_timeout: float = 10.0
    command_timeout: float = 30.0
    call_timeout: float | None = None
    """For connecting and the statement together; None: each has its own."""
    pool_size: int = 4


class AnsweredError(Exception):
    """An error that a batch has caught on the server and returned, with its number."""

    def __init__(self, number: int, text: str, *, committed: bool = False) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text
        self.committed = committed
        """Whether the batch had committed before: then the error is one of a read that came after it."""


class ThreadedConnection:
    """A connection and its thread."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[Any], Any]] | None] = SimpleQueue()
        self._make = make
        self._last: Future[Any] | None = None
        # A daemon: a thread that hangs in the driver must not keep the process alive.
        self._thread = threading.Thread(target=self._serve, name="reltask-mssql", daemon=True)
        self._thread.start()
        _connections.add(self)

    async def call(self, work: Callable[[Any], T], patience: float) -> T:
        """Run `work` in the thread; TimeoutError after `patience` seconds.

        The first call connects.
        """
        self._last = answer = Future[T]()
        self._work.put((answer, work))
        return await asyncio.wait_for(asyncio.wrap_future(answer), patience)

    def when_free(self, free: Callable[[bool], None]) -> None:
        """Call `free` from the thread when the last work has ended: with True, if the connection is usable."""
        assert self._last is not None
        self._last.add_done_callback(lambda last: free(last.cancelled() or _is_orderly(last.exception())))

    def end(self) -> None:
        """Close the connection when the thread has finished its work."""
        self._work.put(None)

    def ended(self, patience: float) -> None:
        """Wait until the connection is closed, for at most `patience` seconds."""
        self._thread.join(max(0.0, patience))

    def _serve(self) -> None:
        connection = None
        while (item := self._work.get()) is not None:
            answer, work = item
            if not answer.set_running_or_notify_cancel():
                continue
            try:
                connection = connection or self._make()
                answer.set_result(work(connection))
            except BaseException as error:  # noqa: BLE001 - raised by `call`
                answer.set_exception(error)
                del error
            del answer, work, item
        if connection is not None:
            _let_go(connection)


_connections: WeakSet[ThreadedConnection] = WeakSet()
"""All connections of the process. Each is kept alive by its thread."""


@atexit.register  # registered after the driver's handler, and therefore called before it
def close_all() -> None:
    """Close all connections, each from its own thread; wait for CLOSE_TIMEOUT in all."""
    until, connections = time.monotonic() + CLOSE_TIMEOUT, list(_connections)
    for connection in connections:
        connection.end()
    for connection in connections:
        connection.ended(until - time.monotonic())


class Connections:
    """The connections of one store."""

    def __init__(self, target: Target, tokens: Tokens | None, options: MssqlOptions) -> None:
        self._target = target
        self.schema = target.schema
        self._tokens = tokens
        self._options = options
        self._idle: list[tuple[ThreadedConnection, float]] = []
        """With the time since when; the last one given back is the next one taken."""
        self._late: set[ThreadedConnection] = set()
        self._room = asyncio.Semaphore(options.pool_size)
        self._waits = asyncio.Semaphore(max(1, options.pool_size // 2))
        self._open_for_use = True

    @property
    def patience(self) -> float:
        """How long the event loop waits for one statement."""
        return self._options.call_timeout or self._options.command_timeout + OVERTIME

    @asynccontextmanager
    async def take(self, *, in_transaction: bool = False) -> AsyncIterator[ThreadedConnection]:
        """A connection that is connected. It is closed after an unexpected error.

        It is also closed after a timeout or a cancellation `in_transaction`: its last statement may
        have begun a transaction that would never end.
        """
        async with self._room:
            connection = self._idle.pop()[0] if self._still_fresh() else await self._connect()
            try:
                yield connection
            except (TimeoutError, asyncio.CancelledError):
                self._set_late(connection, keep=not in_transaction)
                raise
            except BaseException as error:
                self._give_back(connection, usable=_is_orderly(error))
                raise
            self._give_back(connection, usable=True)

    @asynccontextmanager
    async def take_to_wait(self) -> AsyncIterator[ThreadedConnection]:
        """As `take`, for a batch that may wait for another session: at most half of the connections do."""
        async with self._waits, self.take() as connection:
            yield connection

    def _still_fresh(self) -> bool:
        """Whether there is an idle connection, after those were closed that have idled for too long."""
        long_ago = asyncio.get_running_loop().time() - IDLE
        while self._idle and self._idle[0][1] < long_ago:
            self._idle.pop(0)[0].end()
        return bool(self._idle)

    async def _connect(self) -> ThreadedConnection:
        if len(self._late) >= LATE:
            raise TransientError(f"{len(self._late)} connections wait for answers that are overdue; no more are made.")
        self._open_for_use = True
        connection = ThreadedConnection(self._open)
        limit = self._target.connect_timeout or self._options.connect_timeout
        try:
            # A credential may need time before the server is contacted.
            await connection.call(_only_connect, self._options.call_timeout or 2 * limit + OVERTIME)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._set_late(connection)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise statement_failed(error, verb="connect", writes=False) from error
        except BaseException:
            connection.end()
            raise
        return connection

    def _set_late(self, connection: ThreadedConnection, *, keep: bool = True) -> None:
        """Its answer is overdue: when that has arrived, use the connection again, or close it."""
        loop = asyncio.get_running_loop()
        self._late.add(connection)

        def free(usable: bool) -> None:
            try:
                loop.call_soon_threadsafe(self._arrived, connection, usable and keep)
            except RuntimeError:  # the event loop is closed by now
                connection.end()

        connection.when_free(free)

    def _arrived(self, connection: ThreadedConnection, usable: bool) -> None:
        self._late.discard(connection)
        self._give_back(connection, usable=usable)

    def _give_back(self, connection: ThreadedConnection, *, usable: bool) -> None:
        if usable and self._open_for_use:
            self._idle.append((connection, asyncio.get_running_loop().time()))
        else:
            connection.end()

    def _open(self) -> Any:
        if not PoolingManager.is_initialized():
            mssql_python.pooling(enabled=False)
        connection = connect(
            self._target,
            self._tokens,
            connect_timeout=self._options.connect_timeout,
            command_timeout=self._options.command_timeout,
        )
        try:
            limit_locks(connection, (self._options.call_timeout or self._options.command_timeout) * LOCK_SHARE)
        except (mssql_python.Error, RuntimeError, OSError) as error:
            _let_go(connection)
            raise statement_failed(error, verb="connect", writes=False) from quotable(error)
        return connection

    async def close(self) -> None:
        """Close every idle connection; an overdue one is closed when its answer has arrived.

        The driver aborts a process that exits while it closes a connection. So wait for that, for
        up to CLOSE_TIMEOUT.
        """
        self._open_for_use = False
        idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.end()
        await asyncio.gather(*(asyncio.to_thread(connection.ended, CLOSE_TIMEOUT) for connection, _ in idle))


_prepared: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()
"""The cursors of a connection, by the statements that they have prepared."""


def reset(connection: Any) -> None:
    """Give the session its first settings back, with its next request: what a task has set must not meet the next.

    `SET`, `USE`, isolation levels and temporary tables are forgotten, as ADO.NET's pool does it. The server also
    forgets prepared statements.
    """
    for cursor in _prepared.pop(connection, {}).values():
        _let_go(cursor)
    # its own set_attr refuses this attribute, which its own pool uses
    connection._conn.set_attr(Odbc.SQL_ATTR_RESET_CONNECTION.value, Odbc.SQL_RESET_CONNECTION_YES.value)  # noqa: SLF001


def limit_locks(connection: Any, seconds: float) -> None:
    """Set the server's lock timeout for this connection.

    The statement takes no parameters, so it is text.
    """
    execute(connection, "SET LOCK_TIMEOUT " + str(max(1, int(seconds * 1000))))


def execute(connection: Any, sql: str) -> None:
    """Run a batch without parameters and results. Settings that it makes stay with the session."""
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
    finally:
        _let_go(cursor)


def fetch(connection: Any, statement: Statement, columns: dict[str, object]) -> list[Row]:
    """Run one of reltask's own batches: its rows, or the error that it caught."""
    arguments = statement.arguments(columns)
    if not arguments:
        cursor = connection.cursor()
        try:
            cursor.execute(statement.text)
            return _last_rows(cursor)
        finally:
            _let_go(cursor)
    # The cursor keeps the prepared statement. Another one for each call would cost a request to drop the last one.
    prepared = _prepared.setdefault(connection, {})
    cursor = prepared.pop(statement.text, None) or connection.cursor()
    try:
        cursor.setinputsizes([_type(value) for value in arguments])
        cursor.execute(statement.text, arguments)
        rows = _last_rows(cursor)
    except BaseException:
        _let_go(cursor)
        raise
    prepared[statement.text] = cursor
    return rows


def _last_rows(cursor: Any) -> list[Row]:
    """The rows of the last result set, or the error that the batch caught.

    That error is raised at once. More may follow it, and would hide it: 266, because CATCH has rolled back a
    transaction that was begun before the batch.
    """
    last: list[Row] = []
    for last in results(cursor):
        if last and "error_number" in last[0]:
            said = last[0]
            raise AnsweredError(
                said["error_number"], said["error_message"] or "", committed=bool(said.get("committed"))
            )
    return [{name: aware(value) for name, value in row.items()} for row in last]


def results(cursor: Any) -> Iterator[list[Row]]:
    """Every result set that has columns. Read all of them: an error may follow a result set."""
    while True:
        if cursor.description:
            names = [column[0] for column in cursor.description]
            yield [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        if not cursor.nextset():
            return


def failed(error: BaseException, *, verb: str, writes: bool) -> ReltaskError:
    """An error of a statement as one of reltask's errors."""
    if isinstance(error, ReltaskError):
        return error
    if isinstance(error, AnsweredError):
        known = answered(error.number, error.text, verb=verb, writes=writes)
        return AmbiguousError(f"{verb}: committed, and then: {known}") if error.committed else known
    return statement_failed(error, verb=verb, writes=writes)


def cause(error: BaseException) -> BaseException | None:
    """The cause to chain to a raised error, without the statement's arguments, which must not be logged."""
    return None if isinstance(error, AnsweredError) else quotable(error)


def _type(value: object) -> tuple[int, int, int]:
    """One type and size for all values of a kind, so that the server keeps one plan per batch."""
    if isinstance(value, bool):
        return Odbc.SQL_BIT.value, 1, 0
    if isinstance(value, int):
        return Odbc.SQL_BIGINT.value, 19, 0
    if isinstance(value, float):
        return Odbc.SQL_DOUBLE.value, 15, 0
    if isinstance(value, datetime):
        return Odbc.SQL_TYPE_TIMESTAMP.value, 26, 6
    is_long = isinstance(value, str) and len(value.encode("utf-16-le")) > 2 * NVARCHAR
    return Odbc.SQL_WVARCHAR.value, 0 if is_long else NVARCHAR, 0


def _is_orderly(error: BaseException | None) -> bool:
    """Whether a connection can be used again after this error."""
    return error is None or (isinstance(error, AnsweredError) and error.number not in LOST | STALE)


def _only_connect(_connection: Any) -> None:
    """No work: the first call connects."""


def _let_go(opened: Any) -> None:
    """Close a cursor or a connection."""
    with suppress(mssql_python.Error, RuntimeError, OSError):
        opened.close()


def connect(target: Target, tokens: Tokens | None, *, connect_timeout: float, command_timeout: float) -> Any:
    """A new connection, or one of reltask's errors. Blocks: every connection has a thread of its own.

    The statements themselves begin and end transactions, so the driver begins none.
    """
    patience = target.connect_timeout or connect_timeout
    before: dict[int, int | str | bytes] = {}
    if target.login == "entra":
        assert tokens is not None
        before[ACCESS_TOKEN] = token_attribute(tokens.fetch(patience))
    try:
        connection = mssql_python.connect(
            target.connection_string, autocommit=True, attrs_before=before, timeout=max(1, round(patience))
        )
    except (mssql_python.Error, RuntimeError, OSError) as error:
        raise connection_failed(error) from quotable(error)
    connection.timeout = max(1, round(command_timeout))
    return connection


def token_attribute(token: str) -> bytes:
    """A token as ODBC wants it: its length, then UTF-16."""
    encoded = token.encode("utf-16-le")
    return struct.pack("<I", len(encoded)) + encoded
