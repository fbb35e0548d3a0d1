"""Schema migrations: numbered files in `database/<dialect>/`, run once each, in order.

    001-create-tables.sql       a migration: its number is the schema version that it creates
    002-seed-sample-job.sql     no migration: a sample to run by hand
    003-reclamation-query.sql   no migration: shows a DBA what a reclaim does
    004-create-leases.sql       a migration; the number is the version, so versions 2 and 3 do not exist
    005-create-steps.sql        a migration
    006-create-control.sql      a migration

`NNN-create-…` and `NNN-alter-…` are migrations; in `database/mssql`, by the custom there, `NNN-Create….sql` and
`NNN-Alter….sql`. Each can be run again. Its last statement writes two numbers into the `meta` table, so that a DBA who
runs the files by hand gets the same database: its own, and the oldest version whose code may still run on the result.

    code of version 6      schema 6, oldest 6      starts
                           schema 7, oldest 6      starts: 007 only adds; old and new workers run side by side
                           schema 8, oldest 8      refused: 008 changes what version 6 relies on
    code of version 7      schema 6                refused: reltask migrate has to run first

Each runs in one transaction, under a lock, after the version is read again: if two processes migrate, the second finds
nothing to do. A schema newer than this version of reltask is never changed.

In an installed wheel the files are inside the package, in a checkout beside `src`.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any, Literal, NamedTuple

from reltask.errors import SchemaError
from reltask.model.schema_name import SCHEMA
from reltask.stores.statement import in_schema

Dialect = Literal["postgres", "sqlite", "mssql"]

_MIGRATION = re.compile(r"(\d{3})-(?:(?:create|alter)-|(?:Create|Alter)[A-Z]).*\.sql")


class Migration(NamedTuple):
    """One step of the schema."""

    version: int
    name: str
    sql: str


class Schema(NamedTuple):
    """What a database says about its tables."""

    version: int
    oldest: int
    """The oldest schema version whose code may run on them."""

    @classmethod
    def read(cls, row: Any) -> Schema:
        """From a row of read_schema.sql, as any driver returns it."""
        return cls(row["schema_version"], row["oldest_version"])


NO_TABLES = Schema(0, 0)


def _folder(dialect: Dialect) -> Traversable:
    packaged = files("reltask") / "database" / dialect
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "database" / dialect


@cache
def schema_scripts(dialect: Dialect, schema: str = SCHEMA) -> list[tuple[str, str]]:
    """Every script of a dialect with its text for this schema: numbered ones in order, then the others by name."""
    found = [entry for entry in _folder(dialect).iterdir() if entry.name.endswith(".sql")]
    found.sort(key=lambda entry: (not entry.name[0].isdigit(), entry.name))
    return [(entry.name, in_schema(entry.read_text(encoding="utf-8"), schema)) for entry in found]


@cache
def migrations(dialect: Dialect, schema: str = SCHEMA) -> list[Migration]:
    """The scripts that make the tables, in order."""
    matches = [(_MIGRATION.fullmatch(name), name, sql) for name, sql in schema_scripts(dialect, schema)]
    return [Migration(int(match[1]), name, sql) for match, name, sql in matches if match]


def schema_version(dialect: Dialect) -> int:
    """The schema version that this reltask needs."""
    return migrations(dialect)[-1].version


def check_version(dialect: Dialect, found: Schema) -> None:
    """Refuse a database whose schema this version of reltask cannot use."""
    needed = schema_version(dialect)
    if found.version < needed:
        raise SchemaError(
            f"the database has schema version {found.version}, but this reltask needs version {needed}.",
            remedy="Run: reltask migrate",
        )
    if found.oldest > needed:
        raise SchemaError(
            f"the database has schema version {found.version}, which only code of version {found.oldest} or newer may "
            f"use; this reltask speaks version {needed}.",
            remedy="Upgrade reltask here: a newer one has migrated the database.",
        )


def pending(dialect: Dialect, found: Schema, schema: str = SCHEMA) -> list[Migration]:
    """The migrations that a database still needs: none if it is newer, and refused if this reltask cannot use it."""
    if found.version > schema_version(dialect):
        check_version(dialect, found)
    return [migration for migration in migrations(dialect, schema) if migration.version > found.version]
