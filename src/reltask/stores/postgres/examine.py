"""The facts about a PostgreSQL database for `reltask doctor`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from reltask.errors import PermanentError, SchemaError
from reltask.model.doctor import Facts
from reltask.stores.migration import NO_TABLES, Schema, schema_version

SETTINGS = ("fsync", "synchronous_commit", "transaction_isolation", "search_path", "open_schemas")
Ask = Callable[[str], Awaitable[list[Any]]]


async def examine(ask: Ask, schema: str) -> Facts:
    """Facts from a server that may have no tables yet."""
    (row,) = await ask("examine")
    found = await _schema(ask)
    return Facts(
        schema=schema,
        database="postgres",
        server=f"PostgreSQL {row['version']}",
        user=row["username"],
        now=row["now"],
        primary=not row["in_recovery"],
        writable=not row["read_only"],
        schema_version=found.version,
        oldest_version=found.oldest,
        spoken_version=schema_version("postgres"),
        may=frozenset(what for what in ("run", "operate", "enqueue", "read") if row[f"may_{what}"]),
        connections=row["connections"],
        connection_limit=row["connection_limit"],
        oldest_transaction=row["oldest_transaction"],
        oldest_owner=row["oldest_owner"],
        settings={name: row[name] for name in SETTINGS},
    )


async def _schema(ask: Ask) -> Schema:
    try:
        return Schema.read((await ask("read_schema"))[0])
    except (SchemaError, PermanentError):  # no tables, or none that this user may read
        return NO_TABLES
