"""Systems of several shards: SQLite files, prefixes in one file, schemas and databases of PostgreSQL, SQL Server."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reltask import App
from tests.mssql_server import databases
from tests.postgres_server import PostgresServer, run_in_thread

SHARDS = 3
_numbers = itertools.count(1)
KINDS = ["sqlite files", "sqlite prefixes", "postgres schemas", "postgres databases"]
if "mssql" in databases():
    KINDS.append("mssql schemas")
AS_NEW = (
    "set session_replication_role = replica",  # no triggers
    """do $$ declare found record; begin
    for found in select schemaname as place, tablename as name from pg_tables
        where schemaname = 'reltask' or schemaname like 'shard%' loop
        if found.name = 'meta' then execute format('update %I.meta set shard = null, draining = false', found.place);
        else execute format('delete from %I.%I', found.place, found.name);
        end if;
    end loop; end $$""",
)
"""Empties the installs of a database: none says any more which shard it was."""


class System:
    """The databases of a system, and apps on it."""

    def __init__(self, urls: list[str]) -> None:
        self.urls = urls
        self._apps: list[App] = []

    def app(self, urls: list[str | None] | None = None, settings: dict[str, object] | None = None) -> App:
        """An app with tasks of its own. Short times: a shard that is away is noticed soon."""
        given: dict[str, object] = {
            "database.connect_timeout": "2s",
            "database.retry_attempts": 2,
            "database.retry_first": "50ms",
        }
        app = App(shards=self.urls if urls is None else urls, settings=given | (settings or {}))
        self._apps.append(app)
        return app

    def close(self) -> None:
        for app in self._apps:
            app.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def urls(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    """One more than a system has: for a shard that is added later."""
    count = SHARDS + 1
    if kind == "sqlite files":
        yield [f"sqlite:///{tmp_path}/shard{n}.db" for n in range(count)]
    elif kind == "sqlite prefixes":
        yield [f"sqlite:///{tmp_path}/all.db?schema=shard_{n}" for n in range(count)]
    elif kind.startswith("postgres"):
        urls: list[str] = request.getfixturevalue("shard_databases" if kind.endswith("databases") else "shard_schemas")
        server: PostgresServer = request.getfixturevalue("postgres_server")
        for database in {url.partition("?")[0].rpartition("/")[2] for url in urls}:
            server.execute(*AS_NEW, database=database)
        yield list(urls)
    else:
        yield _mssql(request.getfixturevalue("mssql_database"), count)


@pytest.fixture(scope="session")
def shard_schemas(postgres_server: PostgresServer) -> Iterator[list[str]]:
    """Installs in one database. They are made once: a migration takes longer than most tests."""
    from reltask.stores.postgres.schema import migrate_postgres  # noqa: PLC0415 - the driver is an extra

    base = postgres_server.create_database("shards")
    urls = [f"{base}?schema=shard_{n}" for n in range(SHARDS + 1)]
    for url in urls:
        run_in_thread(lambda url=url: migrate_postgres(url))  # type: ignore[misc] # mypy cannot infer it
    yield urls
    postgres_server.drop_database("shards")


@pytest.fixture(scope="session")
def shard_databases(postgres_server: PostgresServer, postgres_template: str) -> Iterator[list[str]]:
    """Installs in a database each."""
    names = [f"shards_{n}" for n in range(SHARDS + 1)]
    yield [postgres_server.create_database(name, template=postgres_template) for name in names]
    for name in names:
        postgres_server.drop_database(name)


def _mssql(database: str, count: int) -> list[str]:
    from reltask.stores.mssql.schema import migrate_mssql  # noqa: PLC0415 - the driver is an extra

    urls = [f"{database}{'&' if '?' in database else '?'}schema=shard_{next(_numbers)}" for _ in range(count)]
    for url in urls:
        run_in_thread(lambda url=url: migrate_mssql(url))  # type: ignore[misc] # mypy cannot infer it
    return urls


@pytest.fixture
def system(urls: list[str]) -> Iterator[System]:
    """A system of three shards."""
    system = System(urls[:SHARDS])
    yield system
    system.close()


def task_of(app: App) -> Any:
    """The task `add` of an app."""

    async def add(x: int) -> int:
        return x + 1

    return app.task(add)
