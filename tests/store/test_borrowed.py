"""Enqueue in the user's own transaction, for every kind of connection that users have."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import django.db
import psycopg
import pytest
import sqlalchemy as sa

from reltask import App, Job
from reltask.errors import SchemaError, TransientError, UsageError
from reltask.model.durable import NewSignal
from reltask.model.job import Outcome
from reltask.model.lease import LeaseRequest, Term
from reltask.stores.borrowed import recognise
from reltask.stores.borrowed.link import is_ambiguous
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.sqlite.connections import SqliteOptions
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.store import Store
from tests.postgres_server import PostgresServer
from tests.store.connections import ON_MSSQL, ON_POSTGRES, ON_SQLITE, ConnectionKind, Sqlite3, Undo, declare_in_django
from tests.store.user_database import UserDatabase, sqlite_url

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def shared_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """One database for this module. Every test empties it."""
    yield postgres_server.create_database("borrowed", template=postgres_template)
    postgres_server.drop_database("borrowed")


@pytest.fixture(params=[*ON_SQLITE, *ON_POSTGRES, *ON_MSSQL], ids=repr)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[UserDatabase]:
    kind: ConnectionKind = request.param
    shared = "mssql_url" if kind in ON_MSSQL else "shared_postgres"
    url = sqlite_url(tmp_path) if kind in ON_SQLITE else request.getfixturevalue(shared)
    database = UserDatabase(url, kind)
    database.clear()
    yield database
    database.app.close()


def test_committed_means_enqueued(database: UserDatabase) -> None:
    """Before the commit neither job nor row is visible; afterwards both are, and the job runs."""
    kind = database.kind

    async def scenario() -> Job[Any]:
        async with kind.connect(database.url) as connection:
            async with kind.transaction(connection):
                await kind.write(connection, "order")
                job = await kind.enqueue(connection, database.task, 1)
                seen.append((database.notes(), database.jobs()))
            return job

    seen: list[Any] = []
    job = kind.run(scenario())
    assert seen == [([], set())]
    assert (database.notes(), database.jobs()) == (["order"], {job.id})
    database.work()
    assert (database.done, [run.outcome for run in job.runs_sync()]) == ([1], [Outcome.SUCCEEDED])


def test_rolled_back_means_never_enqueued(database: UserDatabase) -> None:
    """Neither job nor row exists, and the connection can be used again."""
    kind = database.kind

    async def scenario() -> None:
        async with kind.connect(database.url) as connection:
            with suppress(Undo):
                async with kind.transaction(connection):
                    await kind.write(connection, "gone")
                    await kind.enqueue(connection, database.task, 1)
                    raise Undo
            with suppress(Undo):
                async with kind.transaction(connection):
                    await kind.enqueue(connection, database.task, 2)  # the first statement of its transaction
                    raise Undo
            async with kind.transaction(connection):
                await kind.enqueue(connection, database.task, 3)

    kind.run(scenario())
    database.work()
    assert (database.notes(), database.done) == ([], [3])


def test_committed_means_signalled(database: UserDatabase) -> None:
    """A signal is sent with the user's row or not at all; no other session sees it before the commit."""
    kind, job = database.kind, database.task.enqueue_sync(1)
    store = database.app._make_store()

    async def send(connection: Any, id_: str) -> None:
        joined = await store.borrow(connection).join()
        sent.append(await joined.send_signals([NewSignal(id=id_, name="go", value="1", job_id=job.id)]))

    async def scenario() -> None:
        async with kind.connect(database.url) as connection:
            with suppress(Undo):
                async with kind.transaction(connection):
                    await kind.write(connection, "gone")
                    await send(connection, "undone")
                    raise Undo
            async with kind.transaction(connection):
                await kind.write(connection, "order")
                await send(connection, "click")
                seen.append(database.signals())

    sent: list[Any] = []
    seen: list[list[str]] = []
    kind.run(scenario())
    assert sent == [{"undone": job.id}, {"click": job.id}]
    assert (seen, database.signals(), database.notes()) == ([[]], ["click"], ["order"])


def test_several_in_one_transaction(database: UserDatabase) -> None:
    """Jobs one by one and in a batch, with keys, delays and schedules, are one transaction with the rest."""
    kind = database.kind

    async def scenario() -> list[Job[Any]]:
        async with kind.connect(database.url) as connection, kind.transaction(connection):
            jobs = [await kind.enqueue(connection, database.task, 1)]
            calls = [
                database.task.call(2),
                database.task.using(key="once", delay="1h").call(3),
                database.task.using(key="tenant", cron="0 9 * * *", timezone="Europe/Berlin").call(4),
            ]
            jobs += await kind.enqueue_many(connection, database.app, calls)
            return jobs + await kind.enqueue_many(connection, database.app, [database.task.using(key="once").call(5)])

    *jobs, taken = kind.run(scenario())
    assert [job.created for job in jobs] == [True] * 4
    assert (taken.created, taken.id) == (False, jobs[2].id)
    assert database.jobs() == {job.id for job in jobs}
    database.work()
    assert sorted(database.done) == [1, 2]
    scheduled = jobs[-1].view_sync()
    assert scheduled is not None
    assert scheduled.next_run_time.minute == 0


def test_no_signal_before_the_commit(database: UserDatabase) -> None:
    """A notified worker claims at once, so the signal must follow the commit: `notify` sends it."""
    woken: list[str] = []
    database.app._sender.wakes.add(Sleeper(woken).wake)  # only the part of a worker that is woken
    kind = database.kind

    async def scenario() -> None:
        async with kind.connect(database.url) as connection, kind.transaction(connection):
            await kind.enqueue(connection, database.task, 1)

    kind.run(scenario())
    assert woken == []
    database.app.notify_sync()
    assert woken == ["woken"]


class Sleeper:
    def __init__(self, woken: list[str]) -> None:
        self._woken = woken

    def wake(self, _: object) -> None:
        self._woken.append("woken")


# A leader's own transaction


def test_a_leader_guards_its_own_transaction(database: UserDatabase) -> None:
    """Until its commit the lease cannot be acquired; then it can, and the old term is refused."""
    kind, name = database.kind, str(uuid4())
    store = _store(database, START)
    assert _try(database, name, START) == 1

    async def scenario() -> None:
        async with kind.connect(database.url) as connection:
            async with kind.transaction(connection):
                leader = await store.borrow(connection).join()
                answers.append(await leader.guard_lease(Term(name, 1)))
                await kind.write(connection, "led")
                answers.append(_try(database, name, LATER))
            answers.append(_try(database, name, LATER))
            with suppress(Undo):
                async with kind.transaction(connection):
                    await kind.write(connection, "too late")
                    late = await store.borrow(connection).join()
                    answers.append(await late.guard_lease(Term(name, 1)))
                    raise Undo

    answers: list[Any] = []
    kind.run(scenario())
    assert answers == [True, None, 2, False]
    assert database.notes() == ["led"]


START = datetime.fromisoformat("2025-03-30T00:00:00Z")
LATER = START + timedelta(hours=1)


def _store(database: UserDatabase, now: datetime) -> Store:
    if database.is_sqlite:
        options = SqliteOptions(command_timeout=timedelta(milliseconds=50))
        return SqliteStore(database.url, options=options, now=lambda: now, inline=True)
    if database.kind in ON_MSSQL:
        from reltask.stores.mssql.store import MssqlStore  # noqa: PLC0415 - the driver is an extra

        return MssqlStore(database.url, now=lambda: now)
    return PostgresStore(database.url, now=lambda: now)


def _try(database: UserDatabase, name: str, now: datetime) -> int | None:
    """Another worker's try for a lease, on its own connection and thread; on SQLite without a busy timeout."""

    async def acquire() -> int | None:
        store = _store(database, now)
        request = LeaseRequest(name=name, holder="rival", acquisition=uuid4(), ttl=timedelta(seconds=10))
        try:
            return (await store.acquire_lease(request)).term
        except TransientError:
            return None
        finally:
            await store.close()

    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(lambda: asyncio.run(acquire())).result()


# What is refused


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(f"sqlite:///{tmp_path}/app.db")

    @app.task
    async def greet(name: str) -> None: ...

    yield app
    app.close()


def greet(app: App, connection: Any) -> None:
    app.get_task("greet").using(connection=connection).enqueue_sync("Ada")


def test_unknown_connection(app: App) -> None:
    """Another object is refused, with the list of supported ones; nothing is imported to find out."""
    with pytest.raises(UsageError, match=r"a builtins\.int, which.*asyncpg, psycopg \(3\), sqlite3, pyodbc"):
        greet(app, 42)


def test_a_subclass_is_recognised() -> None:
    """Users subclass their drivers' connections."""

    class Mine(sqlite3.Connection):
        pass

    with closing(sqlite3.connect(":memory:", factory=Mine)) as connection:
        assert recognise(connection, "sqlite").connection is connection


def test_another_kind_of_database(postgres_url: str) -> None:
    """A job in a database without workers would never run."""
    app = App(postgres_url)

    @app.task
    async def greet(name: str) -> None: ...

    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(UsageError, match="a connection to SQLite, but the app's jobs are in PostgreSQL"),
    ):
        greet.using(connection=connection).enqueue_sync("Ada")


def test_a_file_without_tables(app: App, tmp_path: Path) -> None:
    """Another file, or one that no worker has opened yet: the error says so, and nothing stays open."""
    with (
        closing(sqlite3.connect(tmp_path / "other.db")) as connection,
        pytest.raises(SchemaError, match=r"no reltask tables.*reltask migrate"),
    ):
        greet(app, connection)


def test_sqlite3_autocommit(app: App, tmp_path: Path) -> None:
    """Nothing could be rolled back, so nothing is enqueued."""
    app.status_sync()
    with (
        closing(sqlite3.connect(tmp_path / "app.db", isolation_level=None)) as connection,
        pytest.raises(UsageError, match="Open a transaction on it"),
    ):
        greet(app, connection)
    assert app.jobs_sync() == []


def test_alchemy_autocommit(app: App, tmp_path: Path) -> None:
    """SQLAlchemy's AUTOCOMMIT level means the same."""
    app.status_sync()
    engine = sa.create_engine(f"sqlite:///{tmp_path}/app.db", isolation_level="AUTOCOMMIT")
    with engine.connect() as connection, pytest.raises(UsageError, match="Open a transaction on it"):
        greet(app, connection)
    engine.dispose()
    assert app.jobs_sync() == []


def test_django_outside_atomic(app: App, tmp_path: Path) -> None:
    """Django commits each statement outside atomic()."""
    app.status_sync()
    alias = declare_in_django(f"sqlite:///{tmp_path}/app.db")
    with pytest.raises(UsageError, match="Open a transaction on it"):
        greet(app, django.db.connections[alias])
    django.db.connections[alias].close()
    assert app.jobs_sync() == []


async def test_postgres_autocommit(postgres_url: str) -> None:
    """With asyncpg outside a block, psycopg with autocommit, SQLAlchemy with AUTOCOMMIT: refused, nothing written."""
    app = App(postgres_url)

    @app.task
    async def greet() -> None: ...

    one = await asyncpg.connect(postgres_url)
    with pytest.raises(UsageError, match="Open a transaction on it"):
        await greet.using(connection=one).enqueue()
    await one.close()
    with psycopg.connect(postgres_url, autocommit=True) as two, pytest.raises(UsageError, match="Open a transaction"):
        greet.using(connection=two).enqueue_sync()
    for driver in ("psycopg", "psycopg2"):
        engine = sa.create_engine(postgres_url.replace("postgresql", f"postgresql+{driver}", 1))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as three, pytest.raises(UsageError):
            greet.using(connection=three).enqueue_sync()
        engine.dispose()
    assert await app.jobs() == []
    app.close()


async def test_the_other_enqueue_is_named(app: App, postgres_url: str) -> None:
    """Each kind of connection has its call; the wrong one names the right one."""
    greet = app.get_task("greet")
    with closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(UsageError, match=r"call enqueue_sync\(\)"):
            await greet.using(connection=connection).enqueue("Ada")
        with pytest.raises(UsageError, match=r"call enqueue_many_sync\(\)"):
            await app.enqueue_many([greet.call("Ada")], connection=connection)
    on_postgres = App(postgres_url)

    @on_postgres.task
    async def send() -> None: ...

    one = await asyncpg.connect(postgres_url)
    with pytest.raises(UsageError, match=r"Write: await enqueue\(\)"):
        send.using(connection=one).enqueue_sync()
    await one.close()


async def test_a_synchronous_connection_in_asynchronous_code(app: App, tmp_path: Path) -> None:
    """A synchronous connection may be used in asynchronous code, though it blocks the loop."""
    await app.status()
    async with Sqlite3().connect(f"sqlite:///{tmp_path}/app.db") as connection:
        with connection:
            greet(app, connection)
    assert len(await app.jobs()) == 1


def test_a_call_keeps_no_connection(app: App) -> None:
    """A call bound to a connection by `using` is refused: `enqueue_many` takes the connection itself."""
    with closing(sqlite3.connect(":memory:")) as connection, pytest.raises(UsageError, match="enqueue_many"):
        app.get_task("greet").using(connection=connection).call("Ada")


def test_errors_do_not_quote_arguments(app: App, tmp_path: Path) -> None:
    """SQLAlchemy shows a failed statement's values; a job's arguments may be secret."""
    app.status_sync()
    engine = sa.create_engine(f"sqlite:///{tmp_path}/app.db")
    with engine.connect() as connection:
        connection.exec_driver_sql("drop table reltask_runs")
        connection.exec_driver_sql("create table reltask_runs (x)")
        with pytest.raises(sa.exc.OperationalError) as raised:
            app.get_task("greet").using(connection=connection).enqueue_sync("hunter2")
    engine.dispose()
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize(
    ("error", "doubtful"),
    [
        (psycopg.errors.ForeignKeyViolation(), False),
        (psycopg.errors.AdminShutdown(), True),
        (psycopg.OperationalError("server closed the connection unexpectedly"), True),
        (asyncpg.UniqueViolationError(), False),
        (asyncpg.ConnectionDoesNotExistError(), True),
        (sa.exc.IntegrityError("commit", None, psycopg.errors.UniqueViolation()), False),
        (OSError(), True),
    ],
)
def test_which_commits_are_in_doubt(error: Exception, doubtful: bool) -> None:
    """A server's answer means that nothing was applied, unless it says that the server is shutting down."""
    assert is_ambiguous(error) is doubtful
