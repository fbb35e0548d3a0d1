"""Links to connections of SQLAlchemy and Django.

Both support several drivers. SQLAlchemy passes a statement to its driver unchanged, so the driver's name determines the
parameter style; Django has one style for all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from reltask.errors import UsageError
from reltask.stores.borrowed.drivers import commits_at_once
from reltask.stores.borrowed.link import BEGIN_SQLITE, Answer, Values
from reltask.stores.borrowed.link import read as read_cursor
from reltask.stores.statement import Style

_DIALECTS = {"postgresql": "postgres", "sqlite": "sqlite", "mssql": "mssql", "microsoft": "mssql"}
_STYLES: dict[str, Style] = {
    "asyncpg": "numbered",
    "psycopg": "pyformat",
    "psycopg_async": "pyformat",
    "psycopg2": "pyformat",
    "pysqlite": "named",
    "aiosqlite": "named",
    "pyodbc": "qmark",
    "aioodbc": "qmark",
    "mssqlpython": "qmark",
}


class _Alchemy:
    """What all of SQLAlchemy's connections and sessions have in common."""

    def __init__(self, owner: Any) -> None:
        self.connection = owner() if callable(owner) else owner  # a scoped session returns the current session
        dialect = (self.connection.get_bind() if _is_session(self.connection) else self.connection).dialect
        if dialect.name in _DIALECTS and dialect.driver not in _STYLES:
            raise UsageError(
                f"connection= goes through SQLAlchemy's driver {dialect.driver}, which reltask cannot use.",
                remedy=f"Use one of {', '.join(sorted(_STYLES))}.",
            )
        self.dialect = _DIALECTS.get(dialect.name, dialect.name)
        self.style: Style = _STYLES.get(dialect.driver, "named")

    def is_open(self) -> bool:
        return bool(self.connection.in_transaction())


class AlchemyLink(_Alchemy):
    """A Connection or a Session."""

    is_async = False

    async def join(self) -> bool:
        return _join(self.connection)

    async def run(self, text: str, values: Values) -> Answer:
        return _run(self.connection, text, values)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        with self.connection.begin():
            yield


class AsyncAlchemyLink(_Alchemy):
    """An AsyncConnection or an AsyncSession: the same, on SQLAlchemy's bridge."""

    is_async = True

    async def join(self) -> bool:
        return bool(await self.connection.run_sync(_join))

    async def run(self, text: str, values: Values) -> Answer:
        answer: Answer = await self.connection.run_sync(_run, text, values)
        return answer

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        async with self.connection.begin():
            yield


def _is_session(owner: Any) -> bool:
    return hasattr(owner, "flush")


def _join(owner: Any) -> bool:
    """SQLAlchemy begins a transaction at the first statement, which may be ours."""
    connection = owner.connection() if _is_session(owner) else owner
    if not connection.in_transaction():
        connection.begin()
    if connection.dialect.name != "sqlite":
        return not getattr(connection.connection.dbapi_connection, "autocommit", False)
    driver = connection.connection.driver_connection
    if not driver.in_transaction and not commits_at_once(driver):
        connection.exec_driver_sql(BEGIN_SQLITE)  # the driver does not recognise an INSERT that starts with WITH
    return bool(driver.in_transaction)


def _run(owner: Any, text: str, values: Values) -> Answer:
    connection = owner
    if _is_session(owner):
        owner.flush()  # keeps the order of the code, as the session's own statements do; the completion comes last
        connection = owner.connection()
    try:
        result = connection.exec_driver_sql(text, _plain(values, connection.dialect.driver))
    except Exception as error:
        if hasattr(error, "hide_parameters"):
            error.hide_parameters = True  # its text would quote the job's arguments
        raise
    return Answer(list(result.keys()), [tuple(row) for row in result]) if result.returns_rows else Answer([], [])


def _plain(values: Values, driver: str) -> Any:
    """The values as this driver takes them: a tuple for positional styles; text instead of UUIDs for psycopg2."""
    if not isinstance(values, Mapping):
        return None if values is None else tuple(values)
    return {name: _text(value) for name, value in values.items()} if driver == "psycopg2" else dict(values)


def _text(value: object) -> object:
    if isinstance(value, list):
        return [_text(one) for one in value]
    return str(value) if isinstance(value, UUID) else value


class DjangoLink:
    """`django.db.connection`, or one of `django.db.connections`."""

    is_async = False

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.dialect = _DIALECTS.get(connection.vendor, connection.vendor)
        self.style: Style = "format" if self.dialect == "mssql" else "pyformat"  # ODBC has no named parameters

    def is_open(self) -> bool:
        return bool(self.connection.in_atomic_block or not self.connection.get_autocommit())

    async def join(self) -> bool:
        return self.is_open()

    async def run(self, text: str, values: Values) -> Answer:
        with self.connection.cursor() as cursor:
            cursor.execute(text, values)
            return read_cursor(cursor)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        from django.db.transaction import atomic  # noqa: PLC0415 - installed if there is such a connection

        with atomic(using=self.connection.alias):
            yield
