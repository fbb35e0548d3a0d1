"""The facts about a SQL Server database for `reltask doctor`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta

from reltask.errors import PermanentError, SchemaError
from reltask.model.doctor import Facts
from reltask.stores.migration import NO_TABLES, Schema, schema_version
from reltask.stores.mssql.values import Row

Ask = Callable[[str], Awaitable[list[Row]]]

_AZURE = {5: "Azure SQL Database", 8: "Azure SQL Managed Instance"}
"""By SERVERPROPERTY('EngineEdition'); all others say themselves what they are."""
_SETTINGS = ("read_committed_snapshot", "optimized_locking", "lock_escalation", "service_objective")
_USAGE = ("worker_percent", "session_percent", "cpu_percent")


async def examine(ask: Ask, schema: str) -> Facts:
    """Facts from a server that may have no tables yet."""
    (row,) = await ask("examine")
    seconds = row["oldest_transaction"]
    found = await _schema(ask)
    return Facts(
        schema=schema,
        database="mssql",
        server=f"{_AZURE[edition]} {row['version']}" if (edition := row["engine_edition"]) in _AZURE else row["words"],
        user=row["username"],
        now=row["now"],
        writable=row["updateability"] != "READ_ONLY",
        schema_version=found.version,
        oldest_version=found.oldest,
        spoken_version=schema_version("mssql"),
        may=frozenset(what for what in ("run", "operate", "enqueue", "read") if row[f"may_{what}"]),
        connections=row["connections"],
        connection_limit=row["connection_limit"],
        oldest_transaction=None if seconds is None else timedelta(seconds=seconds),
        oldest_owner=row["oldest_owner"],
        settings={name: str(row[name]) for name in (*_SETTINGS, *_USAGE) if row[name] is not None},
    )


async def _schema(ask: Ask) -> Schema:
    try:
        return Schema.read((await ask("read_schema"))[0])
    except (SchemaError, PermanentError):  # no tables, or none that this user may read
        return NO_TABLES
