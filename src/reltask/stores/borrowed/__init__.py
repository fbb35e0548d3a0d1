"""The user's own connections: reltask's statements on a connection that the application opened.

    asyncpg · psycopg · sqlite3       ┐                              ┌ postgres/borrowed.py ┐
    pyodbc · mssql-python             ├─► a Link: run, begin, end ──►┤ sqlite/borrowed.py   ├─► a store's Transaction
    SQLAlchemy connection or session  │   (one per library)          └ mssql/borrowed.py    ┘   (one per database)
    Django's connection               ┘

A connection is recognised by the name of its class, so that reltask imports no library that the user does not use. A
link's statements belong to the transaction that is open on the connection. `enqueue` neither begins nor ends the user's
transaction: after a rollback the job must not exist. If nothing could be rolled back, `enqueue` refuses the connection.

Errors of statements are the library's own, as the user's code expects them on this connection.
"""

from __future__ import annotations

from collections.abc import Callable

from reltask.errors import UsageError
from reltask.stores.borrowed.drivers import AsyncpgLink, AsyncPsycopgLink, OdbcLink, PsycopgLink, SqliteLink
from reltask.stores.borrowed.frameworks import AlchemyLink, AsyncAlchemyLink, DjangoLink
from reltask.stores.borrowed.link import Link

_KINDS: dict[str, Callable[[object], Link]] = {
    "asyncpg.connection.Connection": AsyncpgLink,
    "asyncpg.pool.PoolConnectionProxy": AsyncpgLink,
    "psycopg.Connection": PsycopgLink,
    "psycopg.AsyncConnection": AsyncPsycopgLink,
    "sqlite3.Connection": SqliteLink,
    "pyodbc.Connection": OdbcLink,
    "mssql_python.connection.Connection": OdbcLink,
    "sqlalchemy.engine.base.Connection": AlchemyLink,
    "sqlalchemy.orm.session.Session": AlchemyLink,
    "sqlalchemy.orm.scoping.scoped_session": AlchemyLink,
    "sqlalchemy.ext.asyncio.engine.AsyncConnection": AsyncAlchemyLink,
    "sqlalchemy.ext.asyncio.session.AsyncSession": AsyncAlchemyLink,
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session": AsyncAlchemyLink,
    "django.utils.connection.ConnectionProxy": DjangoLink,
    "django.db.backends.base.base.BaseDatabaseWrapper": DjangoLink,
}
_ACCEPTED = (
    "a connection of asyncpg, psycopg (3), sqlite3, pyodbc or mssql-python, an SQLAlchemy Connection, Session,"
    " AsyncConnection or AsyncSession, or Django's connection"
)
_NAMES = {"postgres": "PostgreSQL", "sqlite": "SQLite", "mssql": "SQL Server"}


def recognise(connection: object, dialect: str) -> Link:
    """A link to this connection, which must be to this kind of database."""
    for kind in type(connection).__mro__:
        make = _KINDS.get(f"{kind.__module__}.{kind.__qualname__}")
        if make is not None:
            return _of_dialect(make(connection), dialect)
    kind = type(connection)
    raise UsageError(
        f"connection= is a {kind.__module__}.{kind.__qualname__}, which reltask cannot use.",
        remedy=f"Pass {_ACCEPTED}.",
    )


def _of_dialect(link: Link, wanted: str) -> Link:
    if link.dialect != wanted:
        raise UsageError(
            f"connection= is a connection to {_NAMES.get(link.dialect, link.dialect)}, but the app's jobs are in"
            f" {_NAMES[wanted]}.",
            remedy="Pass a connection to the database in the app's URL.",
        )
    return link
