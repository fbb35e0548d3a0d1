"""`reltask doctor` on real databases: it only reads, and its exit status says whether there is a problem."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from reltask.stores.migration import schema_scripts
from tests.cli.project import Project, Result
from tests.mssql_server import VARIABLE, MssqlServer
from tests.postgres_server import PostgresServer

Examined = Callable[[str], Result]


@pytest.fixture
def doctor(project: Project, monkeypatch: pytest.MonkeyPatch) -> Examined:
    """The command on the database of a URL, which may hold a password."""

    def examine(url: str) -> Result:
        monkeypatch.setenv("RELTASK_DATABASE_URL", url)
        return project.run("doctor", "--json")

    return examine


def levels(result: Result) -> dict[str, str]:
    return {finding["check"]: finding["level"] for finding in result.json["findings"]}


def remedy(result: Result, check: str) -> str:
    """The remedy of the only finding of this kind."""
    (found,) = (finding for finding in result.json["findings"] if finding["check"] == check)
    assert found["level"] == "problem"
    return str(found["remedy"])


# SQLite


def test_a_sound_file(project: Project) -> None:
    """Each check has its line, there is nothing to do, and the exit status is 0."""
    project.enqueue("hello", name="Ada")
    result = project.run("doctor", project.app)
    assert result.code == 0
    lines = [line.split()[:2] for line in result.out.splitlines()[2:]]
    checks = ["server", "primary", "schema", "permissions", "clock", "journal"]
    assert lines == [["ok", check] for check in checks]


def test_each_shard_is_examined(project: Project) -> None:
    """A missing one is a problem, with its number; looking for it does not create it."""
    Path("shop.py").write_text(
        'from reltask import App\napp = App(shards=["sqlite:///a.db", "sqlite:///b.db"])\n', encoding="utf-8"
    )
    assert project.run("migrate", "shop:app").code == 0
    sound = project.run("doctor", "shop:app")
    assert (sound.code, sound.out.count("ok       server"), "shard 1: sqlite:///b.db" in sound.out) == (0, 2, True)
    for left in Path().glob("b.db*"):
        left.unlink()
    result = project.run("doctor", "shop:app", "--json")
    assert (result.code, [shard["sound"] for shard in result.json["shards"]]) == (1, [True, False])
    assert not Path("b.db").exists()


def test_no_file(project: Project) -> None:
    """A missing file is a problem, and looking for it does not create it."""
    result = project.run("doctor", project.app)
    assert result.code == 1
    assert "PROBLEM  server  There is no database" in result.out
    assert not Path("jobs.db").exists()


def test_an_empty_file_stays_empty(doctor: Examined, tmp_path: Path) -> None:
    """Missing tables are reported, not created."""
    file = tmp_path / "empty.db"
    file.touch()
    result = doctor(f"sqlite:///{file}")
    assert (result.code, remedy(result, "schema")) == (1, "Run: reltask migrate")
    assert doctor(f"sqlite:///{file}").code == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_file_that_cannot_be_written(doctor: Examined, project: Project, tmp_path: Path) -> None:
    """Workers need to write."""
    project.enqueue("hello", name="Ada")
    (tmp_path / "jobs.db").chmod(0o400)
    assert doctor(f"sqlite:///{tmp_path}/jobs.db").code == 1


def test_a_url_that_means_nothing(doctor: Examined) -> None:
    """A mistake in the settings is a finding too."""
    result = doctor("oracle://server/database")
    assert (result.code, levels(result)) == (1, {"server": "problem"})


# PostgreSQL


@pytest.mark.slow
def test_a_sound_postgres(doctor: Examined, postgres_url: str) -> None:
    """The test server trades durability for speed, which is a finding; all else is sound."""
    result = doctor(postgres_url)
    problems = [finding["check"] for finding in result.json["findings"] if finding["level"] == "problem"]
    assert problems in ([], ["durability"])
    assert {"server", "primary", "schema", "permissions", "clock", "transactions", "connections"} <= set(levels(result))


@pytest.mark.slow
def test_postgres_without_tables(doctor: Examined, empty_postgres_url: str) -> None:
    """The tables do not exist yet."""
    result = doctor(empty_postgres_url)
    assert (result.code, remedy(result, "schema")) == (1, "Run: reltask migrate")


@pytest.mark.slow
def test_no_server_is_there(doctor: Examined) -> None:
    """An unreachable server is a finding, with exit status 1."""
    result = doctor("postgresql://127.0.0.1:1/nothing")
    assert (result.code, levels(result)) == (1, {"server": "problem"})


@pytest.mark.slow
def test_a_server_that_isolates_too_much(
    doctor: Examined, postgres_server: PostgresServer, empty_postgres_url: str
) -> None:
    """Connections of reltask set their isolation; behind PgBouncer the server's default applies: reported."""
    name = empty_postgres_url.rpartition("/")[2]
    postgres_server.execute(f"alter database {name} set default_transaction_isolation = 'repeatable read'")
    assert levels(doctor(empty_postgres_url))["isolation"] == "ok"
    assert "alter role" in remedy(doctor(f"{empty_postgres_url}?pgbouncer=true"), "isolation")


@pytest.mark.slow
def test_a_schema_that_is_open_to_all(
    doctor: Examined, postgres_server: PostgresServer, empty_postgres_url: str
) -> None:
    """A note where every user may create functions; a problem where they come before PostgreSQL's own."""
    name = empty_postgres_url.rpartition("/")[2]
    postgres_server.execute("revoke create on schema public from public", database=name)
    assert levels(doctor(empty_postgres_url))["schemas"] == "ok"
    postgres_server.execute("grant create on schema public to public", database=name)
    assert "revoke create on schema public from public;" in doctor(empty_postgres_url).out
    postgres_server.execute(f"alter database {name} set search_path = public, pg_catalog")
    assert levels(doctor(empty_postgres_url))["schemas"] == "note"
    assert "search_path = pg_catalog" in remedy(doctor(f"{empty_postgres_url}?pgbouncer=true"), "schemas")


LOGINS = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'patient_{0}') then create role patient_{0} login; end if;
end $$;
"""
GRANT = "grant reltask_{0} to patient_{0}"


@pytest.mark.slow
def test_what_a_role_may_do(doctor: Examined, postgres_server: PostgresServer, postgres_url: str) -> None:
    """A worker's role is ok, a smaller one is a note, no role is a problem."""
    name = postgres_url.rpartition("/")[2]
    logins = [LOGINS.format(role) for role in ("run", "operate", "enqueue", "read", "unprivileged")]
    grants = [GRANT.format(role) for role in ("run", "operate", "enqueue", "read")]
    permissions = dict(schema_scripts("postgres"))["permissions.sql"]
    postgres_server.execute(permissions, *logins, *grants, database=name)

    def said(role: str) -> list[str]:
        found = doctor(postgres_server.url(name, user=f"patient_{role}")).json["findings"]
        return [finding["level"] for finding in found if finding["check"] in ("schema", "permissions")]

    assert said("run") == ["ok", "ok"]
    assert said("operate") == ["ok", "note"]
    assert said("enqueue") == ["ok", "note"]
    assert said("read") == ["ok", "note"]
    assert said("unprivileged") == ["problem"]  # it cannot even see that there are tables
    for table in ("steps", "signals", "child_ends", "marks"):
        postgres_server.execute(f"revoke update on reltask.{table} from reltask_run", database=name)
        assert said("run") == ["ok", "note"], table
        postgres_server.execute(f"grant update on reltask.{table} to reltask_run", database=name)


# SQL Server

on_mssql = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no server")


@on_mssql
@pytest.mark.slow
def test_a_sound_mssql(doctor: Examined, mssql_url: str) -> None:
    """A migrated database is sound, and the server's properties are checked."""
    result = doctor(mssql_url)
    assert result.code == 0
    assert {"server", "primary", "schema", "permissions", "clock", "snapshot"} <= set(levels(result))
    assert "password" not in result.out


@on_mssql
@pytest.mark.slow
def test_mssql_without_tables(doctor: Examined, tds_server: MssqlServer) -> None:
    """The tables do not exist yet."""
    result = doctor(tds_server.create_database())
    assert (result.code, remedy(result, "schema")) == (1, "Run: reltask migrate")


@on_mssql
@pytest.mark.slow
def test_an_mssql_database_that_is_not_there(doctor: Examined, mssql_database: str) -> None:
    """The server answers, the database does not exist: the finding says which."""
    result = doctor(mssql_database.replace("/reltask_", "/no_reltask_"))
    assert (result.code, levels(result)) == (1, {"server": "problem"})
    assert "correct its name in the URL" in remedy(result, "server")
