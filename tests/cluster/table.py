"""A user's table in the same database, without any constraint: `ctx.transaction()` writes to it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any
from uuid import UUID

import asyncpg

from tests import mssql_server
from tests.postgres_server import run_in_thread

CREATE = "create table if not exists written (job text not null, slot bigint not null, fence bigint not null)"
INSERT = "insert into written (job, slot, fence) values (:job, :slot, :fence)"
SELECT = "select job from written"
ON_MSSQL = {
    CREATE: "DROP TABLE IF EXISTS written;"
    " CREATE TABLE written (job nvarchar(36) NOT NULL, slot bigint NOT NULL, fence bigint NOT NULL)"
}
"""What differs on SQL Server.

The database is shared by the session, and may have the last test's table.
"""


def create(url: str) -> None:
    """Create the table."""
    run(url, CREATE)


def read(url: str) -> list[UUID]:
    """The job of every row."""
    return [UUID(row[0]) for row in run(url, SELECT)]


def run(url: str, statement: str) -> list[Any]:
    """Run a statement, and return its rows."""
    if url.startswith("mssql"):
        with closing(mssql_server.open_connection(url)) as connection:
            return mssql_server.run(connection, ON_MSSQL.get(statement, statement))
    return _on_sqlite(url, statement) if url.startswith("sqlite") else _on_postgres(url, statement)


def _on_sqlite(url: str, statement: str) -> list[Any]:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)) as connection, connection:
        return connection.execute(statement).fetchall()


def _on_postgres(url: str, statement: str) -> list[Any]:
    rows: list[Any] = []

    async def ask() -> None:
        connection = await asyncpg.connect(url)
        try:
            rows.extend(await connection.fetch(statement))
        finally:
            await connection.close()

    run_in_thread(ask)
    return rows
