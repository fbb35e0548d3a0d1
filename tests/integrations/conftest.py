"""Django projects with their tables, each on a database of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import pytest

from tests.integrations.django_environment import Project, interpreter
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def migrated(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Project]:
    """The example project with its tables, of one version of Django on one kind of database: to copy from."""

    @cache
    def migrate(param: str) -> Project:
        version, _, kind = param.partition(" on ")
        if kind == "SQLite":
            environment = {"SHOP_DATABASE": str(tmp_path_factory.mktemp("django") / "shop.db")}
        else:
            server: PostgresServer = request.getfixturevalue("postgres_server")
            environment = on_postgres(server.create_database(f"django_{version.replace('.', '_')}"))
        project = Project(interpreter(version), environment)
        project.manage("migrate")
        return project

    return migrate


def on_postgres(url: str) -> dict[str, str]:
    """What libpq reads; the password is in PGPASSWORD already."""
    parts = urlsplit(url)
    place = {"PGDATABASE": parts.path[1:], "PGHOST": str(parts.hostname), "PGPORT": str(parts.port)}
    return {**place, "PGUSER": parts.username or ""}


@pytest.fixture(params=["5.2 on SQLite", "6 on PostgreSQL"])
def project(request: pytest.FixtureRequest, tmp_path: Path, migrated: Callable[[str], Project]) -> Iterator[Project]:
    """The example project with its tables; each test has its own database."""
    template = migrated(request.param)
    if "SQLite" in request.param:
        copy = shutil.copy(template.environment["SHOP_DATABASE"], tmp_path / "shop.db")
        yield Project(template.python, {"SHOP_DATABASE": str(copy)})
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        name = f"django_{uuid4().hex}"
        yield Project(
            template.python, on_postgres(server.create_database(name, template=template.environment["PGDATABASE"]))
        )
        server.drop_database(name)
