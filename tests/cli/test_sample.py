"""The sample job of the seed scripts is the job of the sample app."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from reltask.sample import TASK, app
from reltask.stores.migration import Dialect, schema_scripts
from tests import mssql_server
from tests.cli.project import Project
from tests.postgres_server import PostgresServer


def seed_script(dialect: Dialect) -> str:
    (script,) = (text for name, text in schema_scripts(dialect) if name.startswith("002-"))
    return script


@pytest.mark.parametrize("dialect", ["mssql", "postgres", "sqlite"])
def test_seed_names_the_task_of_the_sample(dialect: Dialect) -> None:
    """A seeded database runs its job on the sample app: workers claim only names they know."""
    assert app.registry.names() == [TASK]
    assert f"'{TASK}'" in seed_script(dialect)


@pytest.fixture(params=mssql_server.databases())
def seeded(request: pytest.FixtureRequest, project: Project) -> str:
    """The URL of a database with tables in which the seed script was run twice."""
    dialect: Dialect = request.param
    url: str = "sqlite:///sample.db" if dialect == "sqlite" else request.getfixturevalue(f"{dialect}_url")
    assert project.call("migrate", RELTASK_DATABASE_URL=url).code == 0
    for _ in range(2):
        SEEDS[dialect](request, url)
    return url


def seed_sqlite(_request: pytest.FixtureRequest, url: str) -> None:
    with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as connection:
        connection.executescript(seed_script("sqlite"))


def seed_postgres(request: pytest.FixtureRequest, url: str) -> None:
    server: PostgresServer = request.getfixturevalue("postgres_server")
    server.execute(seed_script("postgres"), database=url.rpartition("/")[2])


def seed_mssql(_request: pytest.FixtureRequest, url: str) -> None:
    with closing(mssql_server.open_connection(url)) as connection:
        mssql_server.run(connection, seed_script("mssql"))


SEEDS = {"sqlite": seed_sqlite, "postgres": seed_postgres, "mssql": seed_mssql}


def test_seeded_job_is_run_and_not_doubled(project: Project, seeded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A starting worker adopts the seeded row as its declaration: one job, one run per slot."""
    monkeypatch.setenv("RELTASK_DATABASE_URL", seeded)
    (before,) = project.run("jobs", "list", "--json").json
    for _ in range(2):
        assert project.call("worker", "reltask.sample:app", "--once", TaskExecution__TaskDurationSeconds="0").code == 0
    (after,) = project.run("jobs", "list", "--json").json
    assert (after["id"], after["task"]) == (before["id"], TASK)
    (run,) = project.run("runs", "--json").json
    assert (run["job_id"], run["outcome"]) == (before["id"], "succeeded")
