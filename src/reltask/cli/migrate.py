"""`reltask migrate`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import click

from reltask.app import App
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_json, print_line
from reltask.cli.target import with_app_argument_or_new_file
from reltask.errors import ConfigurationError
from reltask.model.connection_url import safe_url
from reltask.stores.choose import check_token_host
from reltask.stores.migration import Dialect, migrations
from reltask.stores.sqlite.connections import Session, SqliteOptions
from reltask.stores.sqlite.schema import ensure_schema, pending_names
from reltask.stores.sqlite.url import database_path, database_schema


@click.command(name="migrate")
@with_app_argument_or_new_file
@click.option("--check", is_flag=True, help="List pending migrations only; exit status 1 if there are any.")
@click.option(
    "--partition-ledger",
    "days",
    type=click.IntRange(1, 366),
    metavar="DAYS",
    help="PostgreSQL: divide the ledger into partitions of this many days, which are dropped whole.",
)
def command(app: App, *, check: bool, days: int | None, as_json: bool) -> int:
    """Create or upgrade reltask's tables. The migration takes a lock; running it again changes nothing.

    PostgreSQL and SQL Server need it once per version, by a user who may create tables. An SQLite file is also migrated
    by the first process that opens it. A newer schema is left alone, and refused if it excludes this version.
    """
    check_token_host(app.loaded, app.credential)
    done = "pending" if check else "done"
    urls = _urls(app)
    if days is not None and (check or any(dialect_of(url) != "postgres" for url in urls)):
        raise click.UsageError("--partition-ledger is for PostgreSQL, and not with --check.")
    found = {url: _pending(url, app.credential) if check else _migrate(url, app.credential, days) for url in urls}
    reports = [{"database": safe_url(url), done: names} for url, names in found.items()]
    if not check:
        app.number_shards()
    if as_json:
        print_json(reports[0] if len(reports) == 1 else reports)
    else:
        for url, names in found.items():
            _print(names, done=done, where=safe_url(url))
    return EXIT_ERROR if check and any(found.values()) else EXIT_OK


def _urls(app: App) -> list[str]:
    """The databases of an app: one, or one for each shard."""
    return list(app.shard_urls.values()) or [app.url]


def dialect_of(url: str) -> Dialect:
    """The SQL dialect of the database that a URL names."""
    if url.startswith("sqlite:"):
        return "sqlite"
    if url.startswith(("postgresql:", "postgres:", "postgresql+", "postgres+")):
        return "postgres"
    if url.startswith(("mssql:", "mssql+")):
        return "mssql"
    raise ConfigurationError(
        f"reltask does not support {url.partition(':')[0]} databases.",
        remedy="Use sqlite:///file.db, postgresql://host/database or mssql://server/database.",
    )


def _migrate(url: str, credential: Any, days: int | None) -> list[str]:
    if dialect_of(url) == "postgres":
        from reltask.stores.postgres.schema import migrate_postgres  # noqa: PLC0415 - the driver is an extra

        return asyncio.run(migrate_postgres(url, credential, partition_days=days))
    if dialect_of(url) == "mssql":
        from reltask.stores.mssql.schema import migrate_mssql  # noqa: PLC0415 - the driver is an extra

        return asyncio.run(migrate_mssql(url, credential))
    session = Session(database_path(url), SqliteOptions(), None, database_schema(url))
    try:
        return ensure_schema(session)
    finally:
        session.close()


def _pending(url: str, credential: Any) -> list[str]:
    if dialect_of(url) == "postgres":
        from reltask.stores.postgres.schema import pending_postgres  # noqa: PLC0415 - the driver is an extra

        return asyncio.run(pending_postgres(url, credential))
    if dialect_of(url) == "mssql":
        from reltask.stores.mssql.schema import pending_mssql  # noqa: PLC0415 - the driver is an extra

        return asyncio.run(pending_mssql(url, credential))
    if not Path(database_path(url)).exists():
        return [migration.name for migration in migrations("sqlite")]
    session = Session(database_path(url), SqliteOptions(), None, database_schema(url))
    try:
        return pending_names(session)
    finally:
        session.close()


def _print(names: list[str], *, done: str, where: str) -> None:
    for name in names:
        print_line(f"{done}: {name}")
    if not names:
        print_line(f"{where} is up to date.")
    elif done == "pending":
        print_line("Run: reltask migrate")
