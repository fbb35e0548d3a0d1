"""From the first schema to the one with leases: no row is lost, and the files can be run again."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from reltask.stores.migration import migrations, schema_version
from reltask.stores.postgres.schema import migrate_postgres
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.sqlite.store import SqliteStore

WORKER = """
insert into reltask{0}workers (
    id, host, pid, version, queues, tasks, concurrency, started_at, heartbeat_at, alive_until)
values ('old', 'host', 1, '1', '["default"]', '["greet"]', 4, {1}, {1}, {1})
"""
TABLES = "select type, name, sql from sqlite_master where name like 'reltask%' order by 1, 2"


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "old.db")


@pytest.fixture
def old_file(path: str) -> Iterator[sqlite3.Connection]:
    """A file as the first version left it, with a worker in it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.executescript(migrations("sqlite")[0].sql)
        connection.execute(WORKER.format("_", 0))
        yield connection


async def test_an_old_file_is_migrated(path: str, old_file: sqlite3.Connection) -> None:
    """Opening it migrates it; its workers are still there, and leases work."""
    store = SqliteStore(path)
    await store.open()
    assert [view.id for view in await store.list_workers()] == ["old"]
    assert await store.mark_dead_workers(leader=None) == ["old"]
    assert await store.list_leases() == []
    await store.close()
    assert old_file.execute("select schema_version from reltask_meta").fetchall() == [(schema_version("sqlite"),)]


async def test_files_run_by_hand_make_the_same_tables(old_file: sqlite3.Connection, tmp_path: Path) -> None:
    """Even twice, on tables in use: the same tables as in a new file, with the same rows."""
    for _ in range(2):
        for migration in migrations("sqlite"):
            old_file.executescript(migration.sql)
    by_hand = old_file.execute(TABLES).fetchall()
    new = SqliteStore(str(tmp_path / "new.db"))
    await new.open()
    await new.close()
    with closing(sqlite3.connect(tmp_path / "new.db")) as connection:
        assert connection.execute(TABLES).fetchall() == by_hand
    assert old_file.execute("select id, dead_at from reltask_workers").fetchall() == [("old", None)]


async def test_an_old_database_is_migrated(empty_postgres_url: str) -> None:
    """`reltask migrate` runs only what is missing; its workers are still there, and leases work."""
    first, *later = migrations("postgres")
    connection = await asyncpg.connect(empty_postgres_url)
    await connection.execute(first.sql)
    await connection.execute(WORKER.format(".", "now() - interval '1 day'"))
    await connection.close()
    assert await migrate_postgres(empty_postgres_url) == [migration.name for migration in later]
    store = PostgresStore(empty_postgres_url)
    await store.open()
    assert await store.mark_dead_workers(leader=None) == ["old"]
    assert await store.list_leases() == []
    await store.close()
