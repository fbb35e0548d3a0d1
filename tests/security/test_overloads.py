"""A user who may create in schema `public` must not run code as a worker. Until PostgreSQL 15 every user may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import timedelta

import asyncpg
import pytest

from reltask.stores.migration import migrations, schema_scripts
from reltask.stores.postgres.schema import migrate_postgres
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.statement import compile_statement, read_sql, split
from tests.postgres_server import PostgresServer, run_in_thread
from tests.security import overloads
from tests.store import role_work
from tests.unit.test_sql_layout import STORES

VERBS = sorted(path.stem for path in STORES.glob("postgres/sql/*.sql"))
SCRIPTS = dict(schema_scripts("postgres"))
PLANNED = ("select", "insert", "update", "delete", "with", "table", "values")


def first_word(sql: str) -> str:
    return next(line for line in sql.splitlines() if line and not line.startswith("--")).split()[0]


def statements() -> dict[str, str]:
    """Every statement that is planned, by its name, with the driver's numbers for its parameters."""
    texts = {f"{verb}": read_sql("postgres", verb) for verb in VERBS}
    texts |= {name: SCRIPTS[name] for name in ("003-reclamation-query.sql", "monitoring.sql")}
    every = {f"{name} {nth}": one for name, text in texts.items() for nth, one in enumerate(split(text))}
    return {name: compile_statement(one, "numbered").text for name, one in every.items() if first_word(one) in PLANNED}


@pytest.fixture(scope="module")
def planted(postgres_server: PostgresServer) -> Iterator[str]:
    """The name of a database whose schema `public` has the overloads, to copy from."""
    url = postgres_server.create_database("planted")

    async def plant() -> None:
        owner = await asyncpg.connect(url)
        try:
            texts = [read_sql("postgres", verb) for verb in VERBS] + list(SCRIPTS.values())
            assert await overloads.plant(owner, texts) > 5_000
        finally:
            await owner.close()

    run_in_thread(plant)
    yield "planted"
    postgres_server.drop_database("planted")


@pytest.fixture
async def public_url(planted: str, postgres_server: PostgresServer) -> AsyncIterator[str]:
    """A database with the overloads, and without reltask's tables."""
    yield postgres_server.create_database("overloaded", template=planted)
    postgres_server.drop_database("overloaded")


@pytest.fixture
async def public(public_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Its owner."""
    owner = await asyncpg.connect(public_url)
    try:
        yield owner
    finally:
        await owner.close()


async def test_own_connections_search_the_catalog_alone(postgres_url: str, postgres_server: PostgresServer) -> None:
    """Even if the database names `public` first. A task's own transaction keeps the user's path."""
    name = postgres_url.rpartition("/")[2]
    postgres_server.execute(f"alter database {name} set search_path = public, pg_catalog")
    store = PostgresStore(postgres_url)
    try:
        async with store._connections.take() as own:
            assert await own.fetchval("show search_path") == "pg_catalog"
        async with store.transaction(timeout=timedelta(seconds=10)) as transaction:
            assert (await transaction.fetch("show search_path"))[0]["search_path"] == "public, pg_catalog"
    finally:
        await store.close()


@pytest.mark.slow
async def test_no_statement_uses_an_overload(public: asyncpg.Connection, postgres_url: str) -> None:
    """Each statement becomes the body of a function, so that the catalog says what it depends on.

    The path is the default one: PgBouncer and users' own connections have it.
    """
    for migration in migrations("postgres"):
        await public.execute(migration.sql)
    clean = await asyncpg.connect(postgres_url)
    wrong = {}
    try:
        for nth, (name, text) in enumerate(statements().items()):
            types = ", ".join(parameter.name for parameter in (await clean.prepare(text)).get_parameters())
            try:
                await public.execute(f"create function probe.f{nth}({types}) returns void begin atomic {text};\n end")
            except asyncpg.PostgresError as error:
                wrong[name] = str(error)
                continue
            if used := await overloads.used(public, f"f{nth}"):
                wrong[name] = str(used)
    finally:
        await clean.close()
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
    assert await overloads.used(public) == []


@pytest.mark.slow
async def test_no_verb_calls_an_overload(public: asyncpg.Connection, public_url: str) -> None:
    """Migrating, the roles' script, all verbs of a worker and of a leader, and a task's transaction.

    Behind PgBouncer, where a session has the default path; and directly, with `public` before `pg_catalog`.
    """
    await migrate_postgres(public_url)
    await public.execute(SCRIPTS["permissions.sql"])
    async with role_work.opened(PostgresStore(f"{public_url}?pgbouncer=true")) as store:
        await role_work.work(store)
        await role_work.run_in_transaction(store)
    await public.execute("delete from reltask.jobs")
    await public.execute(f"alter database {public_url.rpartition('/')[2]} set search_path = public, pg_catalog")
    async with role_work.opened(PostgresStore(public_url)) as store:
        await role_work.work(store)
        await role_work.lead(store)
        await role_work.enqueue_many(store)
    assert await overloads.used(public) == []
