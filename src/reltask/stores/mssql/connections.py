"""Connections: each lives in a thread of its own, and a store keeps a few.

The driver is synchronous and cannot be told to stop, but it waits without holding up the interpreter. So a connection
gets a thread, and the event loop waits for the thread for as long as its patience lasts:

    event loop                       the connection's thread
    await line.call(work, 30 s) ──►  work(connection)              ◄── an answer, or an error, in time
          └─ patience ended, or cancelled: nobody waits for the line any longer

    take ──► idle[-1] ──► call ──► idle.append            the last one given back is the next one taken
                 │          ├─ failed: closed
                 │          └─ overdue: late, until the thread has its connection back; if all is well with it: idle
                 └─ none: connect (at most `pool_size`, and nothing beside `LATE` late ones)

So a server that is slow, or a network that swallows everything, is not stormed with new connections by whoever has run
out of patience: what was asked of it before has to come to an end first.

Three patiences, each shorter than the next, so that an answer says as much as possible: a lock that does not come is
refused by the server (1222: certainly not applied), a statement that takes too long is ended by the driver, and a
network that swallows everything is left behind by the event loop.

The driver's own pool is switched off for the process, unless somebody has asked for it: a closed connection should be
closed, and take its locks with it. At the end of the process the driver closes whatever is open, from a thread that is
not the connection's own, and crashes if that one uses it: so each takes its leave before.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, suppress
from datetime import datetime
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

from msgspec import Struct
from mssql_python.constants import ConstantsDDBC as Odbc
from mssql_python.pooling import PoolingManager

from reltask.errors import ReltaskError, TransientError
from reltask.stores.entra import Tokens
from reltask.stores.mssql.driver import mssql_python
from reltask.stores.mssql.error_numbers import LOST
from reltask.stores.mssql.errors import answered, quotable, statement_failed
from reltask.stores.mssql.url import Target, connect
from reltask.stores.mssql.values import Row, aware
from reltask.stores.statement import Statement

T = TypeVar("T")

LOCK_SHARE = 0.6
"""The server gives up waiting for a lock after this share of a statement's time."""
NVARCHAR = 4_000
"""What fits into an nvarchar that is not nvarchar(max)."""
LATE = 2
"""So many connections may be overdue before no more are made."""
GOODBYE = 5.0
"""Seconds that a connection may take to be closed before nobody waits for it."""
OVERTIME = 2.0
"""Seconds that the event loop waits longer than the driver, which counts whole ones."""


class MssqlOptions(Struct, frozen=True, kw_only=True):
    """How a store connects. Lengths are seconds."""

    connect_timeout: float = 10.0
    command_timeout: float = 30.0
    call_timeout: float | None = None
    """For connecting and the statement together; None: each has its own."""
    pool_size: int = 4


class AnsweredError(Exception):
    """An error that a statement has caught on the server, with its number."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(number, text)
        self.number = number
        self.text = text


class ThreadedConnection:
    """One connection, and the thread that it lives in."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._work: SimpleQueue[tuple[Future[Any], Callable[[Any], Any]] | None] = SimpleQueue()
        self._make = make
        self._last: Future[Any] | None = None
        # A thread that hangs in the driver must not keep the process from ending.
        self._thread = threading.Thread(target=self._serve, name="reltask-mssql", daemon=True)
        self._thread.start()
        _lines.add(self)

    async def call(self, work: Callable[[Any], T], patience: float) -> T:
        """What the work answers, in its thread; TimeoutError when the patience ends. The first call connects."""
        self._last = answer = Future[T]()
        self._work.put((answer, work))
        return await asyncio.wait_for(asyncio.wrap_future(answer), patience)

    def when_free(self, tell: Callable[[bool], None]) -> None:
        """Tell, from the line's own thread, when its last work has come to an end, and whether to a good one."""
        assert self._last is not None
        self._last.add_done_callback(lambda last: tell(last.cancelled() or _is_orderly(last.exception())))

    def end(self) -> None:
        """Close the connection once the thread has it back."""
        self._work.put(None)

    def ended(self, patience: float) -> None:
        """Wait until the connection is closed, but not for longer than this."""
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
            except BaseException as error:  # noqa: BLE001 - it belongs to whoever waits for the answer
                answer.set_exception(error)
                del error
            del answer, work, item
        if connection is not None:
            with suppress(mssql_python.Error, RuntimeError, OSError):
                connection.close()


_lines: WeakSet[ThreadedConnection] = WeakSet()
"""Every line of the process: its thread keeps it alive."""


@atexit.register  # after the driver's own, and therefore called before it
def take_leave() -> None:
    """Close all connections, each from its own thread; what hangs is left behind after a while."""
    until, lines = time.monotonic() + GOODBYE, list(_lines)
    for line in lines:
        line.end()
    for line in lines:
        line.ended(until - time.monotonic())


class Connections:
    """The lines of one store."""

    def __init__(self, target: Target, tokens: Tokens | None, options: MssqlOptions) -> None:
        self._target = target
        self._tokens = tokens
        self._options = options
        self._idle: list[ThreadedConnection] = []
        self._late: set[ThreadedConnection] = set()
        self._room = asyncio.Semaphore(options.pool_size)
        self._open_for_use = True

    @property
    def patience(self) -> float:
        """How long the event loop waits for one statement."""
        return self._options.call_timeout or self._options.command_timeout + OVERTIME

    @asynccontextmanager
    async def take(self, *, in_transaction: bool = False) -> AsyncIterator[ThreadedConnection]:
        """A connected line. One on which something unforeseen happened is given up.

        So is one that is left `in_transaction`: what it was asked last may have begun one that nobody will ever end.
        """
        async with self._room:
            line = self._idle.pop() if self._idle else await self._connect()
            try:
                yield line
            except (TimeoutError, asyncio.CancelledError):
                self._leave(line, keep=not in_transaction)
                raise
            except BaseException as error:
                self._give_back(line, well=_is_orderly(error))
                raise
            self._give_back(line, well=True)

    async def _connect(self) -> ThreadedConnection:
        if len(self._late) >= LATE:
            raise TransientError(f"{len(self._late)} connections wait for answers that are overdue; no more are made.")
        self._open_for_use = True
        line = ThreadedConnection(self._open)
        limit = self._options.connect_timeout
        try:
            # A credential may need its own time before the server is asked.
            await line.call(_nothing, self._options.call_timeout or 2 * limit + OVERTIME)
        except (TimeoutError, asyncio.CancelledError) as error:
            self._leave(line)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise statement_failed(error, verb="connect", writes=False) from error
        except BaseException:
            line.end()
            raise
        return line

    def _leave(self, line: ThreadedConnection, *, keep: bool = True) -> None:
        """Its answer is overdue: when that has arrived, it may come back or is closed."""
        loop = asyncio.get_running_loop()
        self._late.add(line)

        def tell(well: bool) -> None:
            try:
                loop.call_soon_threadsafe(self._arrived, line, well and keep)
            except RuntimeError:  # the event loop is closed by now
                line.end()

        line.when_free(tell)

    def _arrived(self, line: ThreadedConnection, well: bool) -> None:
        self._late.discard(line)
        self._give_back(line, well=well)

    def _give_back(self, line: ThreadedConnection, *, well: bool) -> None:
        if well and self._open_for_use:
            self._idle.append(line)
        else:
            line.end()

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
            raise statement_failed(error, verb="connect", writes=False) from quotable(error)
        return connection

    async def close(self) -> None:
        """End every idle line; those that are overdue end when they come back.

        The driver aborts a process that ends while it says goodbye to a server: that is waited for, within reason.
        """
        self._open_for_use = False
        idle, self._idle = self._idle, []
        for line in idle:
            line.end()
        await asyncio.gather(*(asyncio.to_thread(line.ended, GOODBYE) for line in idle))


def limit_locks(connection: Any, seconds: float) -> None:
    """How long the server lets this connection wait for a lock. The setting takes no parameter, so it is spelt out."""
    execute(connection, "SET LOCK_TIMEOUT " + str(max(1, int(seconds * 1000))))


def execute(connection: Any, sql: str) -> None:
    """A batch without parameters and without an answer. What it sets stays set."""
    cursor = connection.cursor()
    try:
        cursor.execute(sql)
    finally:
        _let_go(cursor)


def fetch(connection: Any, statement: Statement, columns: dict[str, object]) -> list[Row]:
    """One of reltask's own batches: its answer, or the error that it caught."""
    arguments = statement.arguments(columns)
    cursor = connection.cursor()
    try:
        if arguments:
            cursor.setinputsizes([_type(value) for value in arguments])
            cursor.execute(statement.text, arguments)
        else:
            cursor.execute(statement.text)
        rows = []
        for rows in results(cursor):
            if rows and "error_number" in rows[0]:
                raise AnsweredError(rows[0]["error_number"], rows[0]["error_message"] or "")
        return [{name: aware(value) for name, value in row.items()} for row in rows]
    finally:
        _let_go(cursor)


def results(cursor: Any) -> Iterator[list[Row]]:
    """Every result set that has columns. All have to be read, because an error may come behind an answer."""
    while True:
        if cursor.description:
            names = [column[0] for column in cursor.description]
            yield [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        if not cursor.nextset():
            return


def failed(error: BaseException, *, verb: str, writes: bool) -> ReltaskError:
    """Whatever went wrong with a statement, as one of reltask's errors."""
    if isinstance(error, ReltaskError):
        return error
    if isinstance(error, AnsweredError):
        return answered(error.number, error.text, verb=verb, writes=writes)
    return statement_failed(error, verb=verb, writes=writes)


def cause(error: BaseException) -> BaseException | None:
    """What may be chained to it without carrying arguments into a log."""
    return None if isinstance(error, AnsweredError) else quotable(error)


def _type(value: object) -> tuple[int, int, int]:
    """The same type and size for every value of a kind, so that the server keeps one plan for a batch, not hundreds."""
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
    """Whether a connection can be used again: the server has answered in good order."""
    return error is None or (isinstance(error, AnsweredError) and error.number not in LOST)


def _nothing(_connection: Any) -> None:
    """Connect, and no more."""


def _let_go(cursor: Any) -> None:
    with suppress(mssql_python.Error, RuntimeError, OSError):
        cursor.close()
