"""Links to connections of the database drivers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from reltask.stores.borrowed.link import BEGIN_SQLITE, Answer, Values, read, read_batch
from reltask.stores.statement import Style

_IDLE = 0
"""libpq's PQTRANS_IDLE: connected, and no transaction open."""


class AsyncpgLink:
    """asyncpg: every statement outside a transaction block is committed at once."""

    dialect = "postgres"
    style: Style = "numbered"
    is_async = True

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def is_open(self) -> bool:
        return bool(self.connection.is_in_transaction())

    async def join(self) -> bool:
        return self.is_open()

    async def run(self, text: str, values: Values) -> Answer:
        rows = await self.connection.fetch(text, *(values or ()))
        return Answer(list(rows[0].keys()) if rows else [], [tuple(row) for row in rows])

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield


class _Psycopg:
    """What both kinds of psycopg connection have in common."""

    dialect = "postgres"
    style: Style = "pyformat"

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def is_open(self) -> bool:
        return bool(self.connection.info.transaction_status != _IDLE)

    async def join(self) -> bool:
        return self.is_open() or not self.connection.autocommit


class PsycopgLink(_Psycopg):
    """psycopg, synchronous."""

    is_async = False

    async def run(self, text: str, values: Values) -> Answer:
        from psycopg import Cursor  # noqa: PLC0415 - installed if there is such a connection
        from psycopg.rows import tuple_row  # noqa: PLC0415

        # A plain cursor: the connection's own factories may use another parameter style or row type.
        with Cursor(self.connection, row_factory=tuple_row) as cursor:
            return read(cursor.execute(text, values))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self.connection.transaction():
            yield


class AsyncPsycopgLink(_Psycopg):
    """psycopg, asynchronous."""

    is_async = True

    async def run(self, text: str, values: Values) -> Answer:
        from psycopg import AsyncCursor  # noqa: PLC0415 - installed if there is such a connection
        from psycopg.rows import tuple_row  # noqa: PLC0415

        async with AsyncCursor(self.connection, row_factory=tuple_row) as cursor:
            await cursor.execute(text, values)
            if cursor.description is None:
                return Answer([], [])
            return Answer([column.name for column in cursor.description], await cursor.fetchall())

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.transaction():
            yield


class SqliteLink:
    """sqlite3: it begins transactions implicitly, unless configured otherwise."""

    dialect = "sqlite"
    style: Style = "named"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def is_open(self) -> bool:
        return bool(self.connection.in_transaction)

    async def join(self) -> bool:
        if not self.is_open() and not commits_at_once(self.connection):
            # sqlite3 begins a transaction before an INSERT, but does not recognise one that starts with WITH.
            self.connection.execute(BEGIN_SQLITE)
        return self.is_open()

    async def run(self, text: str, values: Values) -> Answer:
        cursor = self.connection.cursor()
        cursor.row_factory = None
        try:
            return read(cursor.execute(text, values or ()))
        finally:
            cursor.close()

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self.connection.execute(BEGIN_SQLITE)
        try:
            yield
            self._end("commit")
        except BaseException:
            self._end("rollback")
            raise

    def _end(self, statement: str) -> None:
        # As statements, because with autocommit=True the methods commit() and rollback() do nothing.
        if self.is_open():
            self.connection.execute(statement)


class OdbcLink:
    """pyodbc and mssql-python: a transaction begins implicitly at the first statement, unless autocommit is on."""

    dialect = "mssql"
    style: Style = "qmark"
    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def is_open(self) -> bool:
        ((count,),) = self._run("SELECT @@TRANCOUNT", None).rows
        return bool(count)

    async def join(self) -> bool:
        return not self.connection.autocommit or self.is_open()

    async def run(self, text: str, values: Values) -> Answer:
        return self._run(text, values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        by_hand = bool(self.connection.autocommit)
        if by_hand:
            self._run("BEGIN TRANSACTION", None)
        try:
            yield
            if by_hand:
                self._run("COMMIT TRANSACTION", None)
            else:
                self.connection.commit()
        except BaseException:
            self._run("IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION", None)
            raise

    def _run(self, text: str, values: Values) -> Answer:
        cursor = self.connection.cursor()
        try:
            if values:
                cursor.execute(text, list(values))
            else:
                cursor.execute(text)
            return read_batch(cursor)
        finally:
            cursor.close()


def commits_at_once(connection: Any) -> bool:
    """Whether an sqlite3 connection commits each statement; Python 3.12 has a second setting for that."""
    return connection.isolation_level is None or getattr(connection, "autocommit", False) is True
