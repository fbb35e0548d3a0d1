"""The kinds of connections that users of SQL Server have, if `RELTASK_TEST_MSSQL` names a server.

pyodbc needs an ODBC driver: Microsoft's, if it is installed, otherwise the one that mssql-python
contains.
"""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import mssql_python
import sqlalchemy as sa
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sa_async

from reltask.stores.borrowed.drivers import OdbcLink
from reltask.stores.mssql.url import read_url
from tests.store.connections import INSERT, AlchemyAsyncConnection, ConnectionKind, Django, declare_in_django

ODBC = "ODBC Driver 18 for SQL Server"


def with_pyodbc() -> bool:
    """Whether pyodbc and a driver for it are installed."""
    if find_spec("pyodbc") is None:
        return False
    bundled = _bundled_driver()
    if bundled:  # unixODBC reads this folder at its first use
        folder = Path(tempfile.mkdtemp(prefix="reltask-odbc-"))
        (folder / "odbcinst.ini").write_text(f"[{ODBC}]\nDriver={bundled[0]}\n")
        os.environ.setdefault("ODBCSYSINI", str(folder))
    import pyodbc  # noqa: PLC0415 - it is optional

    pyodbc.pooling = False
    return ODBC in pyodbc.drivers()


def _bundled_driver() -> list[str]:
    spec = find_spec("mssql_python_odbc")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    pattern = f"libs/linux/debian_ubuntu/{platform.machine()}/lib/libmsodbcsql*"
    return [str(path) for folder in folders for path in Path(folder).glob(pattern)]


def connect_pyodbc(url: str, *, autocommit: bool = False) -> Any:
    import pyodbc  # noqa: PLC0415 - it is optional

    return pyodbc.connect(odbc_string(url), autocommit=autocommit)


def odbc_string(url: str) -> str:
    return f"Driver={{{ODBC}}};{read_url(url).connection_string}"


class MssqlPython(ConnectionKind):
    """The default mode: commit() ends what the first statement began."""

    autocommit = False

    def open(self, url: str) -> Any:
        return mssql_python.connect(read_url(url).connection_string, autocommit=self.autocommit)

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        with closing(self.open(url)) as connection:
            yield connection

    def knows_transaction_state(self, url: str) -> bool:
        """On SQL Server asking begins nothing; on Babelfish it begins a transaction."""
        with closing(self.open(url)) as connection:
            return not OdbcLink(connection).is_open()

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()

    async def write(self, connection: Any, note: str) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(INSERT.format(note))


class MssqlPythonByHand(MssqlPython):
    """In autocommit mode, with an explicit BEGIN."""

    autocommit = True

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        self.say(connection, "BEGIN TRANSACTION")
        try:
            yield
        except BaseException:
            self.say(connection, "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")
            raise
        self.say(connection, "COMMIT TRANSACTION")

    def say(self, connection: Any, sql: str) -> None:
        with closing(connection.cursor()) as cursor:
            cursor.execute(sql)


class Pyodbc(MssqlPython):
    def open(self, url: str) -> Any:
        return connect_pyodbc(url, autocommit=self.autocommit)


class PyodbcByHand(MssqlPythonByHand):
    def open(self, url: str) -> Any:
        return connect_pyodbc(url, autocommit=self.autocommit)


class AlchemyMssqlPython(ConnectionKind):
    """SQLAlchemy's connection."""

    def engine(self, url: str) -> sa.Engine:
        def known(connection: Any) -> tuple[int, ...]:
            return version(connection) or (16, 0, 0, 0)  # a server that does not identify as Microsoft's

        engine = sa.create_engine(
            "mssql+mssqlpython://", creator=lambda: MssqlPython().open(url), poolclass=sa.NullPool
        )
        dialect: Any = engine.dialect
        version = dialect._get_server_version_info
        dialect._get_server_version_info = known
        return engine

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        with self.engine(url).connect() as connection:
            yield connection

    async def write(self, connection: Any, note: str) -> None:
        connection.execute(sa.text(INSERT.format(note)))


class AlchemyPyodbc(AlchemyMssqlPython):
    def engine(self, url: str) -> sa.Engine:
        return sa.create_engine("mssql+pyodbc://", creator=lambda: connect_pyodbc(url), poolclass=sa.NullPool)


class AlchemyPyodbcSession(AlchemyPyodbc):
    """SQLAlchemy's session, without begin(), as sessions are mostly used."""

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        with orm.Session(self.engine(url)) as session:
            yield session

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncIterator[None]:
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()


class AlchemyAioodbc(AlchemyAsyncConnection):
    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        target = sa.URL.create("mssql+aioodbc", query={"odbc_connect": odbc_string(url)})
        engine = sa_async.create_async_engine(target, poolclass=sa.NullPool)
        async with engine.connect() as connection:
            yield connection


class DjangoMssql(Django):
    """mssql-django."""

    @asynccontextmanager
    async def connect(self, url: str) -> AsyncIterator[Any]:
        declare_in_django(url, django_settings(url))
        async with super().connect(url) as connection:
            yield connection


def django_settings(url: str) -> dict[str, Any]:
    """A database of mssql-django."""
    parts = sa.make_url(url)
    return {
        "ENGINE": "mssql",
        "NAME": parts.database,
        "USER": parts.username,
        "PASSWORD": parts.password,
        "HOST": parts.host,
        "PORT": parts.port,
        "OPTIONS": {"driver": ODBC, "extra_params": "Encrypt=no;TrustServerCertificate=yes"},
    }


def connection_kinds() -> list[ConnectionKind]:
    """The kinds whose libraries are installed."""
    found: list[ConnectionKind] = [MssqlPython(), MssqlPythonByHand()]
    if find_spec("sqlalchemy.dialects.mssql.mssqlpython"):
        found.append(AlchemyMssqlPython())
    if with_pyodbc():
        found += [Pyodbc(), PyodbcByHand(), AlchemyPyodbc(), AlchemyPyodbcSession()]
        found += [AlchemyAioodbc()] if find_spec("aioodbc") else []
        found += [DjangoMssql()] if find_spec("mssql") else []
    return found
