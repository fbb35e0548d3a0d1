"""Migrations on PostgreSQL: under a lock, once each, and never on a newer schema."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from reltask.errors import SchemaError
from reltask.stores.migration import migrations, schema_scripts, schema_version
from reltask.stores.postgres.schema import migrate_postgres, pending_postgres
from reltask.stores.postgres.store import PostgresStore

COLUMNS = """
select table_name, column_name, data_type, is_nullable, column_default, generation_expression
from information_schema.columns where table_schema = 'reltask' order by 1, 2
"""
INDEXES = "select tablename, indexname, indexdef from pg_indexes where schemaname = 'reltask' order by 1, 2"
CONSTRAINTS = """
select conrelid::regclass::text, conname, pg_get_constraintdef(oid)
from pg_constraint where connamespace = 'reltask'::regnamespace order by 1, 2
"""
ALL = [migration.name for migration in migrations("postgres")]


@pytest.fixture
async def database(empty_postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_postgres_url)
    yield connection
    await connection.close()


async def describe(connection: asyncpg.Connection) -> list[list[Any]]:
    return [[tuple(row) for row in await connection.fetch(query)] for query in (COLUMNS, INDEXES, CONSTRAINTS)]


async def test_second_migration_changes_nothing(empty_postgres_url: str, database: asyncpg.Connection) -> None:
    """Migrating is safe to repeat: the schema is the same, and nothing is reported as done."""
    assert await migrate_postgres(empty_postgres_url) == ALL
    fresh = await describe(database)
    assert await migrate_postgres(empty_postgres_url) == []
    assert await describe(database) == fresh
    assert fresh[0]


async def test_files_run_by_hand_make_the_same_schema(empty_postgres_url: str, database: asyncpg.Connection) -> None:
    """Running the files by hand, even twice, gives the schema of `reltask migrate`, which then has nothing to do."""
    for _ in range(2):
        for migration in migrations("postgres"):
            await database.execute(migration.sql)
    by_hand = await describe(database)
    assert await pending_postgres(empty_postgres_url) == []
    await database.execute("drop schema reltask cascade")
    await migrate_postgres(empty_postgres_url)
    assert await describe(database) == by_hand


async def test_migrators_share_the_work(empty_postgres_url: str) -> None:
    """Several processes deploy at the same time: each migration is run by one of them."""
    done = await asyncio.gather(*(migrate_postgres(empty_postgres_url) for _ in range(4)))
    assert sorted(name for names in done for name in names) == sorted(ALL)


async def test_check_only_lists_what_would_run(empty_postgres_url: str, database: asyncpg.Connection) -> None:
    """`migrate --check` only reads."""
    assert await pending_postgres(empty_postgres_url) == ALL
    assert await database.fetchval("select to_regnamespace('reltask')") is None


async def test_schema_that_excludes_this_version_is_refused(postgres_url: str) -> None:
    """A database that only newer code may use is left alone, and the message says what to do."""
    await _set_version(postgres_url, schema_version("postgres") + 1)
    with pytest.raises(SchemaError, match="Upgrade reltask"):
        await migrate_postgres(postgres_url)
    with pytest.raises(SchemaError, match="Upgrade reltask"):
        await pending_postgres(postgres_url)
    with pytest.raises(SchemaError, match="Upgrade reltask"):
        await _open(postgres_url)


async def test_missing_and_old_schema_say_what_to_run(empty_postgres_url: str) -> None:
    """A worker on a database without tables, or with older ones, names the command."""
    with pytest.raises(SchemaError, match="Run: reltask migrate"):
        await _open(empty_postgres_url)
    await migrate_postgres(empty_postgres_url)
    await _set_version(empty_postgres_url, 0)
    with pytest.raises(SchemaError, match="Run: reltask migrate"):
        await _open(empty_postgres_url)


async def test_seed_can_be_run_twice_and_drop_removes_all(postgres_url: str) -> None:
    """The scripts for operators work, and can be run again."""
    scripts = dict(schema_scripts("postgres"))
    connection = await asyncpg.connect(postgres_url)
    try:
        for name in ("002-seed-sample-job.sql", "003-reclamation-query.sql") * 2:
            await connection.execute(scripts[name])
        assert await connection.fetchval("select count(*) from reltask.jobs where task = 'SampleTask'") == 1
        for _ in range(2):
            await connection.execute(scripts["drop.sql"])
        assert await connection.fetchval("select to_regnamespace('reltask')") is None
    finally:
        await connection.close()


@pytest.mark.parametrize("partition_days", [None, 7])
async def test_drop_keeps_what_is_not_reltasks(empty_postgres_url: str, partition_days: int | None) -> None:
    """A schema of the user's choice may have tables of their own: they stay, and nothing else does."""
    await migrate_postgres(f"{empty_postgres_url}?schema=shop", partition_days=partition_days)
    connection = await asyncpg.connect(empty_postgres_url)
    try:
        await connection.execute("create table shop.orders as select 1 as id")
        for _ in range(2):
            await connection.execute(dict(schema_scripts("postgres", "shop"))["drop.sql"])
        left = "select relname::text from pg_class where relnamespace = 'shop'::regnamespace"
        functions = "select count(*) from pg_proc where pronamespace = 'shop'::regnamespace"
        assert [row["relname"] for row in await connection.fetch(left)] == ["orders"]
        assert await connection.fetchval(functions) == 0
    finally:
        await connection.close()


async def test_another_programs_tables_are_not_taken_for_reltasks(empty_postgres_url: str) -> None:
    """A schema that has a table `jobs` of its own is refused as it is, with the advice to choose another one."""
    connection = await asyncpg.connect(empty_postgres_url)
    try:
        await connection.execute("create schema shop; create table shop.jobs (title text)")
        with pytest.raises(SchemaError, match="schema shop has a table") as refused:
            await migrate_postgres(f"{empty_postgres_url}?schema=shop")
        assert "another schema" in str(refused.value)
        there = "select relname::text from pg_class where relnamespace = 'shop'::regnamespace and relkind in ('r', 'i')"
        assert [row["relname"] for row in await connection.fetch(there)] == ["jobs"]
    finally:
        await connection.close()


async def test_reclamation_by_hand_does_what_a_worker_does(postgres_url: str) -> None:
    """The documented query frees an expired claim, with a ledger row, and leaves a valid one alone."""
    connection = await asyncpg.connect(postgres_url)
    insert = """
    insert into reltask.jobs (id, task, next_run_time, locked_by, locked_at, heartbeat_at, claim_timeout_ms,
                              lock_expires_at, fence, attempt)
    select gen_random_uuid(), task, now(), 'w', now(), now(), 1000, now() + expires, 1, 1
    from (values ('dead', interval '-1 second'), ('living', interval '1 minute')) as claim (task, expires)
    """
    try:
        await connection.execute(insert)
        await connection.execute(dict(schema_scripts("postgres"))["003-reclamation-query.sql"])
        held = await connection.fetch("select task from reltask.jobs where locked_by is not null")
        lost = await connection.fetch("select task, worker, fence from reltask.runs where outcome = 'lost'")
    finally:
        await connection.close()
    assert [row["task"] for row in held] == ["living"]
    assert [tuple(row) for row in lost] == [("dead", "w", 1)]


async def _set_version(url: str, version: int) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute("update reltask.meta set schema_version = $1, oldest_version = $1", version)
    await connection.close()


async def _open(url: str) -> None:
    store = PostgresStore(url)
    try:
        await store.open()
    finally:
        await store.close()
