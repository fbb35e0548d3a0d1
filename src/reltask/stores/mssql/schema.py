"""The tables in a SQL Server database: check their version, and migrate them under a lock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from reltask.errors import SchemaError, TransientError
from reltask.stores.entra import Credential, Tokens
from reltask.stores.migration import NO_TABLES, Migration, Schema, check_version, migrations, pending
from reltask.stores.mssql.connections import (
    Connections,
    MssqlOptions,
    ThreadedConnection,
    cause,
    execute,
    failed,
    fetch,
)
from reltask.stores.mssql.errors import low_compatibility_level, read_only
from reltask.stores.mssql.transaction import send
from reltask.stores.mssql.url import read_url
from reltask.stores.mssql.values import Row
from reltask.stores.statement import load_batch

T = TypeVar("T")

_PATIENCE = 600.0
"""Seconds: a migration may build an index."""
_TRIES = 10
"""Under load a migration may be a deadlock victim: it is rolled back completely and run again."""
_LEVEL = 130
"""The first compatibility level with OPENJSON; a database restored from SQL Server 2014 keeps 120."""


def check(row: Row) -> None:
    """Refuse a database that is read-only or has no OPENJSON, and a schema that this version cannot use."""
    if row["read_only"]:
        raise read_only()
    level = row["compatibility_level"]
    if level is not None and level < _LEVEL:
        raise low_compatibility_level(level, needed=_LEVEL)
    check_version("mssql", Schema.read(row))


async def pending_mssql(url: str, credential: Credential | None = None) -> list[str]:
    """The names of the migrations that this database still needs."""

    async def look(line: ThreadedConnection, schema: str) -> list[str]:
        return [migration.name for migration in pending("mssql", await _found(line, schema), schema)]

    return await _connected(url, credential, look)


async def migrate_mssql(url: str, credential: Credential | None = None) -> list[str]:
    """Run the pending migrations, each in a transaction of its own, and return their names."""

    async def migrate(line: ThreadedConnection, schema: str) -> list[str]:
        return [migration.name for migration in migrations("mssql", schema) if await _apply(line, migration, schema)]

    return await _connected(url, credential, migrate)


async def _connected(
    url: str, credential: Credential | None, work: Callable[[ThreadedConnection, str], Awaitable[T]]
) -> T:
    target = read_url(url)
    tokens = Tokens(credential, client_id=target.client_id)
    connections = Connections(target, tokens, MssqlOptions(command_timeout=_PATIENCE, pool_size=1))
    try:
        async with connections.take() as line:
            return await work(line, target.schema)
    finally:
        await connections.close()


async def _apply(line: ThreadedConnection, migration: Migration, schema: str) -> bool:
    for _ in range(_TRIES - 1):
        try:
            return await _try(line, migration, schema)
        except TransientError:
            await send(line, "rollback_transaction", _PATIENCE, writes=False)
    return await _try(line, migration, schema)


async def _try(line: ThreadedConnection, migration: Migration, schema: str) -> bool:
    """Run one migration, unless another process has run it before we got the lock.

    The script's own transaction is nested in ours.
    """
    await send(line, "begin_transaction", _PATIENCE, writes=False)
    try:
        await _lock(line, schema)
        missing = migration in pending("mssql", await _found(line, schema), schema)
        if missing:
            await _run(line, migration)
    except BaseException:
        await send(line, "rollback_transaction", _PATIENCE, writes=False)
        raise
    await send(line, "commit_transaction", _PATIENCE, writes=True)
    return missing


async def _lock(line: ThreadedConnection, schema: str) -> None:
    (lock,) = await _ask(line, "lock_schema", schema)
    if lock["granted"] < 0:
        raise TransientError("another migration is running.", remedy="Wait until it has ended, then run it again.")


async def _run(line: ThreadedConnection, migration: Migration) -> None:
    """Run the script as one batch, whose errors the driver reports."""
    try:
        await line.call(lambda connection: execute(connection, migration.sql), _PATIENCE)
    except Exception as error:  # noqa: BLE001 - every error of the driver becomes one of reltask's errors
        raise failed(error, verb="migrate", writes=False) from cause(error)


async def _found(line: ThreadedConnection, schema: str) -> Schema:
    if not (await _ask(line, "find_schema", schema))[0]["found"]:
        return NO_TABLES
    return Schema.read((await _ask(line, "read_schema", schema))[0])


async def _ask(line: ThreadedConnection, verb: str, schema: str) -> list[Row]:
    def ask(connection: Any) -> list[Row]:
        return fetch(connection, load_batch("mssql", verb, "qmark", schema), {})

    try:
        return await line.call(ask, _PATIENCE)
    except SchemaError:
        raise
    except Exception as error:  # noqa: BLE001 - every error of the driver becomes one of reltask's errors
        raise failed(error, verb=verb, writes=False) from cause(error)
