"""The kinds of connections that users have: how each library connects, writes and commits.

    ConnectionKind ─► connect(url) ─► transaction(connection) ─► write(connection, note), enqueue(connection, task, …)

All methods are coroutines. Those of a synchronous library never wait, so `run` executes them
without a loop, as their users do; Django would refuse anything else.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, closing
from typing import Any, TypeVar

import asyncpg
import django
import psycopg
import sqlalchemy as sa
from django.conf import settings as django_settings
from django.db import connections as django_connections
from django.db import transaction as django_transaction
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from reltask import Job
from reltask.producer.transaction import run_here
from tests.mssql_server import VARIABLE

T = TypeVar("T")
INSERT = "insert into effects (note) values ('{}')"
"""Into a user's table without any constraint, so that a duplicate would show."""


class Undo(Exception):
    """Raised by a test inside a transaction, to roll it back."""


class ConnectionKind:
    """One kind of connection."""

    is_async = False

    def __repr__(self) -> str:
        return type(self).__name__

    connect: Any
    """connect(url): a new connection, closed when the block ends."""

    def knows_transaction_state(self, url: str) -> bool:  # noqa: ARG002 - for those that have to ask
        """Whether its connections can say if a transaction is open."""
        return True

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        """A transaction as users of the library write it."""
        with connection.begin():
            yield

    async def write(self, connection: Any, note: str) -> None:
        """Write one row of the user's."""
        connection.execute(INSERT.format(note))

    async def enqueue(self, connection: Any, task: Any, *args: Any) -> Job[Any]:
        job: Job[Any] = task.using(connection=connection).enqueue_sync(*args)
        return job

    async def enqueue_many(self, connection: Any, app: Any, calls: Any) -> list[Job[Any]]:
        jobs: list[Job[Any]] = app.enqueue_many_sync(calls, connection=connection)
        return jobs

    def run(self, scenario: Coroutine[Any, Any, T]) -> T:
        """Run a scenario as this kind of connection needs it: with or without a loop."""
        return asyncio.run(scenario) if self.is_async else run_here(scenario)


class AsyncConnectionKind(ConnectionKind):
    is_async = True

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        async with connection.begin():
            yield

    async def write(self, connection: Any, note: str) -> None:
        await connection.execute(INSERT.format(note))

    async def enqueue(self, connection: Any, task: Any, *args: Any) -> Job[Any]:
        job: Job[Any] = await task.using(connection=connection).enqueue(*args)
        return job

    async def enqueue_many(self, connection: Any, app: Any, calls: Any) -> list[Job[Any]]:
        jobs: list[Job[Any]] = await app.enqueue_many(calls, connection=connection)
        return jobs


# Drivers


class Sqlite3(ConnectionKind):
    """The default mode: transactions begin by themselves."""

    options: dict[str, Any] = {}

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[sqlite3.Connection]:
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), **self.options)) as connection:
            connection.row_factory = sqlite3.Row  # users may set any row factory
            yield connection

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        with connection:
            yield


class Sqlite3ByHand(Sqlite3):
    """In autocommit mode, with an explicit BEGIN."""

    options = {"isolation_level": None}

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        connection.execute("begin")
        with connection:
            yield


class NoCommit(sqlite3.Connection):
    """A connection as with autocommit=True, for Python versions without it."""

    def commit(self) -> None:
        """Do nothing."""

    def rollback(self) -> None:
        """Do nothing."""


class Sqlite3Autocommit(Sqlite3ByHand):
    """In the autocommit mode of Python 3.12, where commit() and rollback() do nothing."""

    options = {"autocommit": True} if sys.version_info >= (3, 12) else {"isolation_level": None, "factory": NoCommit}

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        connection.execute("begin")
        try:
            yield
        except BaseException:
            connection.execute("rollback")
            raise
        connection.execute("commit")


class Asyncpg(AsyncConnectionKind):
    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        connection = await asyncpg.connect(url)
        try:
            yield connection
        finally:
            connection.terminate()  # a body that is stopped has no time for an orderly close

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        async with connection.transaction():
            yield


class AsyncpgPool(Asyncpg):
    """With the JSON codec of asyncpg's documentation."""

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        pool = asyncpg.create_pool(url, min_size=1, max_size=1, init=self._speak_json)
        async with pool, pool.acquire() as connection:
            yield connection

    @staticmethod
    async def _speak_json(connection: Any) -> None:
        await connection.set_type_codec("json", encoder=json.dumps, decoder=json.loads, schema="pg_catalog")


class Psycopg(ConnectionKind):
    """The default mode: commit() ends what the first statement began."""

    options: dict[str, Any] = {"row_factory": psycopg.rows.dict_row}

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        with psycopg.connect(url, **self.options) as connection:
            yield connection

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


class PsycopgAutocommit(Psycopg):
    """In autocommit mode, with transaction blocks."""

    options = {"autocommit": True, "cursor_factory": psycopg.RawCursor}

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        with connection.transaction():
            yield


class AsyncPsycopg(AsyncConnectionKind):
    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        connection = await psycopg.AsyncConnection.connect(url)
        try:
            yield connection
        finally:
            await asyncio.shield(connection.close())

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        async with connection.transaction():
            yield


# SQLAlchemy


class AlchemyConnection(ConnectionKind):
    driver = "postgresql+psycopg"

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        engine = sa.create_engine(with_driver(url, self.driver), poolclass=sa.NullPool)
        with engine.connect() as connection:
            yield connection

    async def write(self, connection: Any, note: str) -> None:
        connection.execute(sa.text(INSERT.format(note)))


class AlchemySession(AlchemyConnection):
    """Without begin(), as sessions are mostly used."""

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        engine = sa.create_engine(with_driver(url, self.driver), poolclass=sa.NullPool)
        with orm.Session(engine) as session:
            yield session

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


class AlchemyPsycopg2(AlchemyConnection):
    driver = "postgresql+psycopg2"


class AlchemySqlite(AlchemyConnection):
    driver = "sqlite"


class AlchemySqliteSession(AlchemySession):
    driver = "sqlite"


class AlchemySqliteScoped(AlchemySession):
    driver = "sqlite"

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        session = orm.scoped_session(orm.sessionmaker(sa.create_engine(url, poolclass=sa.NullPool)))
        try:
            yield session
        finally:
            session.remove()


class AlchemyAsyncConnection(AsyncConnectionKind):
    driver = "postgresql+asyncpg"

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        engine = sa_async.create_async_engine(with_driver(url, self.driver), poolclass=sa.NullPool)
        async with engine.connect() as connection:
            yield connection

    async def write(self, connection: Any, note: str) -> None:
        await connection.execute(sa.text(INSERT.format(note)))


class AlchemyAsyncSession(AlchemyAsyncConnection):
    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        engine = sa_async.create_async_engine(with_driver(url, self.driver), poolclass=sa.NullPool)
        async with sa_async.AsyncSession(engine) as session:
            yield session


class AlchemyAsyncPsycopg(AlchemyAsyncSession):
    driver = "postgresql+psycopg"


def with_driver(url: str, driver: str) -> str:
    """SQLAlchemy's spelling of a URL."""
    return f"{driver}:{url.partition(':')[2]}"


# Django


class Django(ConnectionKind):
    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        alias = declare_in_django(url)
        try:
            yield django_connections[alias]
        finally:
            django_connections[alias].close()
            del django_connections[alias]

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        with django_transaction.atomic(using=connection.alias):
            yield

    async def write(self, connection: Any, note: str) -> None:
        with connection.cursor() as cursor:
            cursor.execute(INSERT.format(note))


class DjangoSqlite(Django):
    pass


def declare_in_django(url: str, declared: dict[str, Any] | None = None) -> str:
    """Add a database to Django's settings, as a project would; return its alias."""
    if not django_settings.configured:
        django_settings.configure(USE_TZ=True, DATABASES={"default": {"ENGINE": "django.db.backends.dummy"}})
        django.setup()
    database: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3", "NAME": url.removeprefix("sqlite:///")}
    if url in django_connections.settings:
        return url
    if not url.startswith("sqlite") and declared is None:
        parts = sa.make_url(url)
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": parts.database, "USER": parts.username}
        database |= {"PASSWORD": parts.password or "", "HOST": parts.host, "PORT": parts.port, "OPTIONS": parts.query}
    configured = django_connections.configure_settings({"default": {}, url: declared or database})
    django_connections.settings[url] = configured[url]
    return url


ON_SQLITE: list[ConnectionKind] = [
    Sqlite3(),
    Sqlite3ByHand(),
    Sqlite3Autocommit(),
    AlchemySqlite(),
    AlchemySqliteSession(),
    AlchemySqliteScoped(),
    DjangoSqlite(),
]
ON_POSTGRES: list[ConnectionKind] = [
    Asyncpg(),
    AsyncpgPool(),
    Psycopg(),
    PsycopgAutocommit(),
    AsyncPsycopg(),
    AlchemyConnection(),
    AlchemySession(),
    AlchemyPsycopg2(),
    AlchemyAsyncConnection(),
    AlchemyAsyncSession(),
    AlchemyAsyncPsycopg(),
    Django(),
]


def on_mssql() -> list[ConnectionKind]:
    """The kinds of SQL Server, if there is a server to test them on."""
    if not os.environ.get(VARIABLE):
        return []
    from tests.store.mssql_connections import connection_kinds  # noqa: PLC0415 - it needs the driver

    return connection_kinds()


ON_MSSQL = on_mssql()
