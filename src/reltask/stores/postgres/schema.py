"""The tables in a PostgreSQL database: check their version, and migrate them under a lock."""

from __future__ import annotations

from contextlib import suppress

from reltask.errors import PermanentError, SchemaError
from reltask.model.schema_name import split_schema
from reltask.stores.entra import Credential, postgres_tokens
from reltask.stores.migration import NO_TABLES, Migration, Schema, check_version, migrations, pending
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.driver import asyncpg
from reltask.stores.postgres.errors import statement_failed
from reltask.stores.statement import load

_PATIENCE = 600.0
"""Seconds: a migration may build an index."""
_TRIES = 10
"""Under load a migration may be a deadlock victim: it is rolled back completely and run again."""


def check(row: asyncpg.Record) -> None:
    """Refuse a server that is read-only, and a schema that this version cannot use."""
    if row["in_recovery"]:
        raise PermanentError(
            "this PostgreSQL server is a read replica; workers need the primary.",
            remedy="Use the primary's name in the URL.",
        )
    if row["read_only"]:
        raise PermanentError(
            "this PostgreSQL database is read-only for this user.",
            remedy="Check default_transaction_read_only of the user and of the database.",
        )
    check_version("postgres", Schema.read(row))


async def pending_postgres(url: str, credential: Credential | None = None) -> list[str]:
    """The names of the migrations that this database still needs."""
    connection = await _connect(url, credential)
    _, schema = split_schema(url)
    try:
        return [migration.name for migration in pending("postgres", await _found(connection, schema), schema)]
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise statement_failed(error, verb="migrate --check", writes=False) from error
    finally:
        await connection.close()


async def migrate_postgres(
    url: str, credential: Credential | None = None, *, partition_days: int | None = None
) -> list[str]:
    """Run the pending migrations, each in a transaction of its own, and return their names; divide the ledger."""
    connection = await _connect(url, credential)
    _, schema = split_schema(url)
    try:
        done = [
            migration.name
            for migration in migrations("postgres", schema)
            if await _apply(connection, migration, schema)
        ]
        if partition_days is not None:
            (statement,) = load("postgres", "partition_ledger", "numbered", schema)
            await connection.execute(statement.text, partition_days)
    except (asyncpg.UndefinedColumnError, asyncpg.UndefinedTableError, asyncpg.WrongObjectTypeError) as error:
        raise SchemaError(
            f"the schema {schema} has a table that bears the name of one of reltask's, and is another one: {error}.",
            remedy="Choose another schema for reltask's tables: ?schema=NAME in the URL.",
        ) from error
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError) as error:
        raise statement_failed(error, verb="migrate", writes=True) from error
    else:
        return done
    finally:
        await connection.close()


async def _connect(url: str, credential: Credential | None) -> asyncpg.Connection:
    tokens = None if credential is None else postgres_tokens(credential)
    return await connect(url, PostgresOptions(command_timeout=_PATIENCE, tokens=tokens))


async def _apply(connection: asyncpg.Connection, migration: Migration, schema: str) -> bool:
    for _ in range(_TRIES - 1):
        with suppress(asyncpg.DeadlockDetectedError):
            return await _try(connection, migration, schema)
    return await _try(connection, migration, schema)


async def _try(connection: asyncpg.Connection, migration: Migration, schema: str) -> bool:
    """Run one migration, unless another process has run it before we got the lock."""
    async with connection.transaction():
        for statement in load("postgres", "lock_schema", "numbered", schema):
            await connection.execute(statement.text)
        if migration not in pending("postgres", await _found(connection, schema), schema):
            return False
        await connection.execute(migration.sql)
        return True


async def _found(connection: asyncpg.Connection, schema: str) -> Schema:
    (statement,) = load("postgres", "read_schema", "numbered", schema)
    try:
        async with connection.transaction():
            row = await connection.fetchrow(statement.text)
    except (asyncpg.UndefinedTableError, asyncpg.InvalidSchemaNameError):
        return NO_TABLES
    return NO_TABLES if row is None else Schema.read(row)
