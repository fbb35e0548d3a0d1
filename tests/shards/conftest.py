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
        yield from _postgres(request.getfixturevalue("postgres_server"), kind, count, request)
    else:
        yield _mssql(request.getfixturevalue("mssql_database"), count)


def _postgres(server: PostgresServer, kind: str, count: int, request: pytest.FixtureRequest) -> Iterator[list[str]]:
    from reltask.stores.postgres.schema import migrate_postgres  # noqa: PLC0415 - the driver is an extra

    names = [f"shards_{next(_numbers)}" for _ in range(count if kind.endswith("databases") else 1)]
    if len(names) == 1:
        base = server.create_database(names[0])
        urls = [f"{base}?schema=shard_{n}" for n in range(count)]
        for url in urls:
            run_in_thread(lambda url=url: migrate_postgres(url))  # type: ignore[misc] # mypy cannot infer it
    else:
        template = request.getfixturevalue("postgres_template")
        urls = [server.create_database(name, template=template) for name in names]
    yield urls
    for name in names:
        server.drop_database(name)


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
