"""`ctx.transaction(connection=…)`: a block on the user's own connection, with every supported library."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

from reltask import App, Context, LockLost, SyncContext
from reltask.errors import AmbiguousError, UsageError
from reltask.events import ResultNotStored, RunSucceeded
from tests.postgres_server import PostgresServer
from tests.store.connections import ON_MSSQL, ON_POSTGRES, ON_SQLITE, ConnectionKind, Undo
from tests.store.user_database import UserDatabase, sqlite_url
from tests.worker.worker_harness import Recorder

pytestmark = pytest.mark.slow

Step = Callable[[Any, Any, Any], Awaitable[object]]
"""What a test does with the context, its open block and the connection."""


class BorrowedConnection(UserDatabase):
    """A task that opens a block on the user's connection, and runs the test's steps in it."""

    def __init__(self, url: str, kind: ConnectionKind) -> None:
        super().__init__(url, kind)
        self.steps: list[tuple[bool, Step]] = []
        self.before: Step | None = None
        self.errors: list[BaseException] = []
        self.failed = threading.Event()
        self.log = Recorder()
        self.app.subscribe(self.log)
        body: Any = self.in_loop if kind.is_async else self.in_thread
        self.app.task(name="body", max_attempts=1)(body)

    async def in_loop(self, ctx: Context) -> None:
        async with self.kind.connect(self.url) as connection:
            try:
                await self.prepare(ctx, connection)
                for complete, step in self.steps:
                    async with ctx.transaction(complete=complete, connection=connection) as tx:
                        assert tx.connection is connection or "Scoped" in repr(self.kind)
                        await step(ctx, tx, connection)
            except BaseException as error:
                self.errors.append(error)
                self.failed.set()
                raise

    def in_thread(self, ctx: SyncContext) -> None:
        self.kind.run(self.synchronous(ctx))

    async def synchronous(self, ctx: SyncContext) -> None:
        async with self.kind.connect(self.url) as connection:
            try:
                await self.prepare(ctx, connection)
                for complete, step in self.steps:
                    with ctx.transaction(complete=complete, connection=connection) as tx:
                        assert tx.connection is connection or "Scoped" in repr(self.kind)
                        await step(ctx, tx, connection)
            except BaseException as error:
                self.errors.append(error)
                self.failed.set()
                raise

    async def prepare(self, ctx: Any, connection: Any) -> None:
        if self.before is not None:
            await self.before(ctx, None, connection)

    def run(self, *steps: Step, chunks: tuple[Step, ...] = (), before: Step | None = None) -> None:
        """Run the task once: its chunks, then its completing block."""
        self.before = before
        self.steps = [*((False, step) for step in chunks), *((True, step) for step in steps)]
        self.app.get_task("body").enqueue_sync()
        self.work()

    def run_until_failed(self, step: Step, *, before: Step | None = None) -> BaseException:
        """Run one block until the body has failed in it; return the error it saw."""
        self.before, self.steps = before, [(True, step)]
        self.app.get_task("body").enqueue_sync()

        async def work() -> None:
            async with self.app.worker():
                assert await asyncio.to_thread(self.failed.wait, 60)

        asyncio.run(work())
        return self.errors[0]

    def writes(self, note: str) -> Step:
        """A step that writes a row in the library's usual way."""
        return lambda _ctx, _tx, connection: self.kind.write(connection, note)

    async def steal(self, connection: Any) -> None:
        """Take the claim away as another worker would.

        On SQLite, which has one writer, do it on this connection.
        """
        if self.is_sqlite:
            await self.run_raw(connection, self.theft())
        else:
            self.ask(self.theft())

    def theft(self) -> str:
        """The statement that takes the claim away."""
        owner = "LockedBy" if self.url.startswith("mssql") else "locked_by"
        return f"update {self.own('jobs')} set fence = fence + 1, {owner} = 'thief' where {owner} is not null"

    async def run_raw(self, connection: Any, sql: str) -> None:
        with closing(driver_of(connection).cursor()) as cursor:
            cursor.execute(sql)


def driver_of(connection: Any) -> Any:
    """The sqlite3 connection below a library's connection."""
    if isinstance(connection, sqlite3.Connection):
        return connection
    if hasattr(connection, "vendor"):
        return connection.connection
    connected = connection.connection() if hasattr(connection, "flush") else connection
    return connected.connection.driver_connection


@pytest.fixture(scope="module")
def shared_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """One database for this module. Every test empties it."""
    yield postgres_server.create_database("borrowed_block", template=postgres_template)
    postgres_server.drop_database("borrowed_block")


@pytest.fixture(params=[*ON_SQLITE, *ON_POSTGRES, *ON_MSSQL], ids=repr)
def borrowed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BorrowedConnection]:
    kind: ConnectionKind = request.param
    shared = "mssql_url" if kind in ON_MSSQL else "shared_postgres"
    url = sqlite_url(tmp_path) if kind in ON_SQLITE else request.getfixturevalue(shared)
    if not kind.knows_transaction_state(url):
        pytest.skip("this server begins a transaction by being asked whether one is open")
    borrowed = BorrowedConnection(url, kind)
    borrowed.clear()
    yield borrowed
    borrowed.app.close()


def test_effects_and_completion_commit_together(borrowed: BorrowedConnection) -> None:
    """Nothing is visible before the block ends; then the rows, the success, the result and the enqueued job are."""

    async def write(_ctx: Any, tx: Any, connection: Any) -> None:
        await borrowed.kind.write(connection, "library")
        if borrowed.kind.is_async:
            await tx.execute("insert into effects (note) values (:note)", note="tx")
            rows = await tx.fetch("select count(*) as n from effects")
            await borrowed.task.enqueue(7)
        else:
            tx.execute("insert into effects (note) values (:note)", note="tx")
            rows = tx.fetch("select count(*) as n from effects")
            borrowed.task.enqueue_sync(7)
        tx.result = rows
        seen.append((borrowed.notes(), borrowed.outcomes(), len(borrowed.jobs())))

    seen: list[Any] = []
    borrowed.run(write)
    assert borrowed.errors == []
    assert seen == [([], [], 1)]
    assert (borrowed.notes(), borrowed.done, borrowed.jobs()) == (["library", "tx"], [7], set())
    assert borrowed.outcomes() == ["succeeded", "succeeded"]
    assert [run.result for run in borrowed.app.runs_sync(task="body")] == ['[{"n":2}]']


def test_result_that_cannot_be_stored_is_reported(borrowed: BorrowedConnection) -> None:
    """The block commits without it: a success, and an event says what is missing, as for a return value."""

    async def give(_ctx: Any, tx: Any, _connection: Any) -> None:
        tx.result = object()

    borrowed.run(give)
    assert [(run.outcome, run.result) for run in borrowed.app.runs_sync(task="body")] == [("succeeded", None)]
    (event,) = borrowed.log.of(ResultNotStored)
    assert "object cannot be stored" in event.reason


def test_an_exception_undoes_both(borrowed: BorrowedConnection) -> None:
    """The rows are rolled back, and the run has failed."""

    async def fail(_ctx: Any, _tx: Any, connection: Any) -> None:
        await borrowed.kind.write(connection, "gone")
        raise Undo

    borrowed.run(fail)
    assert [type(error) for error in borrowed.errors] == [Undo]
    assert (borrowed.notes(), borrowed.outcomes()) == ([], ["failed"])


def test_a_lost_fence_undoes_everything(borrowed: BorrowedConnection) -> None:
    """The claim was lost while the block was open: the completion matches nothing, and the rows are rolled back."""

    async def lose(_ctx: Any, _tx: Any, connection: Any) -> None:
        await borrowed.kind.write(connection, "gone")
        await borrowed.steal(connection)

    assert isinstance(borrowed.run_until_failed(lose), LockLost)
    assert (borrowed.notes(), "succeeded" in borrowed.outcomes()) == ([], False)


def test_a_claim_lost_before_the_block(borrowed: BorrowedConnection) -> None:
    """The block does not begin."""

    async def lose(_ctx: Any, _tx: Any, _connection: Any) -> None:
        borrowed.ask(borrowed.theft())

    async def enter(*_: Any) -> None:
        entered.append(True)

    entered: list[bool] = []
    assert isinstance(borrowed.run_until_failed(enter, before=lose), LockLost)
    assert entered == []


@pytest.mark.parametrize("borrowed", ON_POSTGRES, ids=repr, indirect=True)
def test_a_refused_commit_refuses_the_completion(borrowed: BorrowedConnection) -> None:
    """A constraint checked at the commit also rolls back the completion: both are one transaction."""
    borrowed.ask("alter table effects add unique (note) deferrable initially deferred")

    async def write_twice(_ctx: Any, _tx: Any, connection: Any) -> None:
        await borrowed.kind.write(connection, "twice")
        await borrowed.kind.write(connection, "twice")

    borrowed.run(write_twice)
    assert (borrowed.notes(), borrowed.outcomes()) == ([], ["failed"])
    assert "duplicate key" in str(borrowed.errors[0])


def test_chunks_commit_one_by_one(borrowed: BorrowedConnection) -> None:
    """Each chunk stays if a later one fails; only the completing block ends the slot."""

    async def fail(_ctx: Any, _tx: Any, connection: Any) -> None:
        await borrowed.kind.write(connection, "gone")
        raise Undo

    borrowed.run(borrowed.writes("three"), chunks=(borrowed.writes("one"), borrowed.writes("two")))
    assert (borrowed.notes(), borrowed.outcomes()) == (["one", "three", "two"], ["succeeded"])
    borrowed.run(chunks=(borrowed.writes("four"), fail))
    assert [type(error) for error in borrowed.errors] == [Undo]
    assert borrowed.notes() == ["four", "one", "three", "two"]


@pytest.mark.parametrize("borrowed", ON_SQLITE, ids=repr, indirect=True)
def test_a_block_that_failed_leaves_the_connection_usable(borrowed: BorrowedConnection) -> None:
    """Its transaction has ended, so the next block can begin one on the same connection."""

    async def fail_first(ctx: Any, _tx: Any, connection: Any) -> None:
        with suppress(Undo), ctx.transaction(complete=False, connection=connection):
            await borrowed.kind.write(connection, "gone")
            raise Undo

    borrowed.run(borrowed.writes("kept"), before=fail_first)
    assert (borrowed.errors, borrowed.notes(), borrowed.outcomes()) == ([], ["kept"], ["succeeded"])


def test_an_open_transaction_is_not_taken_over(borrowed: BorrowedConnection) -> None:
    """The block must not commit a transaction that the user has begun."""

    async def nest(ctx: Any, _tx: Any, connection: Any) -> None:
        async with borrowed.kind.transaction(connection):
            await borrowed.kind.write(connection, "mine")
            if borrowed.kind.is_async:
                async with ctx.transaction(connection=connection):
                    pass
            else:
                with ctx.transaction(connection=connection):
                    pass

    borrowed.run(before=nest)
    (error,) = borrowed.errors
    assert isinstance(error, UsageError)
    assert "without an open transaction" in str(error)
    assert ("autocommit=False" in str(error)) is borrowed.is_sqlite  # sqlite3 has no other kind of connection
    assert (borrowed.notes(), borrowed.outcomes()) == ([], ["failed"])


def test_connection_inside_a_block(borrowed: BorrowedConnection) -> None:
    """An enqueue inside the block joins it; one that names a connection is refused."""

    async def enqueue(_ctx: Any, _tx: Any, connection: Any) -> None:
        with pytest.raises(UsageError, match="Leave out connection="):
            await borrowed.kind.enqueue(connection, borrowed.task, 1)

    borrowed.run(enqueue)
    assert (borrowed.errors, borrowed.outcomes()) == ([], ["succeeded"])


@pytest.mark.parametrize("borrows", [True, False], ids=["own connection", "reltask's"])
@pytest.mark.parametrize("borrowed", [ON_SQLITE[0], ON_POSTGRES[2]], ids=repr, indirect=True)
def test_a_schedule_enqueued_inside_has_its_first_slot(borrowed: BorrowedConnection, borrows: bool) -> None:
    """A schedule made in a block starts at its own next time, by the database's clock, and not at once."""

    @borrowed.app.task
    def plan(ctx: SyncContext) -> None:
        borrowed.kind.run(planning(ctx))

    async def planning(ctx: SyncContext) -> None:
        async with borrowed.kind.connect(borrowed.url) as connection:
            with ctx.transaction(connection=connection if borrows else None):
                borrowed.task.using(key="tenant", cron="0 9 * * *").enqueue_sync(1)

    plan.enqueue_sync()
    borrowed.work()
    (job,) = borrowed.app.jobs_sync()
    assert (job.next_run_time.hour, job.next_run_time.minute, borrowed.done) == (9, 0, [])


# Each kind of task has its kind of connection


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    app = App(sqlite_url(tmp_path), settings={"worker.shutdown_grace": "0s"})
    app.status_sync()
    yield app
    app.close()


async def drain(app: App) -> Recorder:
    log = Recorder()
    app.subscribe(log)
    async with app.worker() as worker:
        await worker.drained()
    return log


async def test_async_task_refuses_a_blocking_connection(app: App) -> None:
    """It would block the worker's loop; the error says what to write instead."""
    refused: list[str] = []

    @app.task
    async def body(ctx: Context) -> None:
        with closing(sqlite3.connect(":memory:")) as connection:
            try:
                async with ctx.transaction(connection=connection):
                    pass
            except UsageError as error:
                refused.append(str(error))

    await body.enqueue()
    await drain(app)
    assert refused[0].startswith("A synchronous connection would block the worker's event loop. Write the task as def")


async def test_def_task_refuses_an_asynchronous_connection(postgres_url: str) -> None:
    """A thread without a loop cannot wait for it."""
    app, refused = App(postgres_url, settings={"worker.shutdown_grace": "0s"}), []
    connection = await asyncpg.connect(postgres_url)

    @app.task
    def body(ctx: SyncContext) -> None:
        try:
            with ctx.transaction(connection=connection):
                pass
        except UsageError as error:
            refused.append(str(error))

    await body.enqueue()
    await drain(app)
    await connection.close()
    app.close()
    assert refused == ["A def task cannot wait for an asynchronous connection. Write the task as async def."]


async def test_a_stricter_isolation_level_is_lowered(postgres_url: str) -> None:
    """In a snapshot older than the last heartbeat the completion would fail: the block uses READ COMMITTED."""
    app = App(postgres_url, settings={"worker.shutdown_grace": "0s"})

    @app.task(max_attempts=1)
    def body(ctx: SyncContext) -> None:
        with psycopg.connect(postgres_url) as connection, psycopg.connect(postgres_url) as heartbeat:
            connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
            with ctx.transaction(connection=connection):
                heartbeat.execute("update reltask.jobs set heartbeat_at = heartbeat_at + interval '1 millisecond'")
                heartbeat.commit()

    await body.enqueue()
    await drain(app)
    assert [run.outcome for run in await app.runs()] == ["succeeded"]
    app.close()


# Mistakes of the user, and failures


async def test_a_commit_inside_the_block_is_noticed(app: App, tmp_path: Path) -> None:
    """What is committed stays, but the slot does not count as done."""
    errors: list[Exception] = []

    @app.task(max_attempts=1)
    def body(ctx: SyncContext) -> None:
        with closing(sqlite3.connect(tmp_path / "user.db")) as connection:
            try:
                with ctx.transaction(connection=connection):
                    connection.commit()
            except UsageError as error:
                errors.append(error)
                raise

    await body.enqueue()
    await drain(app)
    assert "was ended inside the block" in str(errors[0])
    assert [run.outcome for run in await app.runs()] == ["failed"]


async def test_coroutine_for_a_result_undoes_both(app: App, tmp_path: Path) -> None:
    """A forgotten `await` is noticed before the commit: rows and completion are rolled back, and the job runs again."""

    async def work() -> None: ...

    @app.task(backoff="1h")
    async def forgetful(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await tx.execute("create table effects (note text)")
            tx.result = work()

    job = await forgetful.enqueue()
    await drain(app)
    (run,) = await job.runs()
    assert (run.outcome, await job.view() is not None) == ("failed", True)
    assert "never run" in (run.error or "")
    with closing(sqlite3.connect(tmp_path / "user.db")) as file:
        assert file.execute("select name from sqlite_master where name = 'effects'").fetchall() == []


class AnswerLost(sqlite3.Connection):
    """Commits, then raises."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *values)
        if sql == "commit":
            raise OSError("connection reset")
        return cursor


class RequestLost(sqlite3.Connection):
    """Raises before it commits."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "commit":
            raise OSError("connection reset")
        return super().execute(sql, *values)


@pytest.mark.parametrize("kind", [AnswerLost, RequestLost])
async def test_a_commit_in_doubt_is_looked_up(app: App, tmp_path: Path, kind: type[sqlite3.Connection]) -> None:
    """The ledger says whether a commit without an answer happened: if so the body continues, otherwise it raises."""
    after: list[object] = []

    @app.task(max_attempts=1)
    def body(ctx: SyncContext) -> None:
        with closing(sqlite3.connect(tmp_path / "user.db", factory=kind)) as connection:
            try:
                with ctx.transaction(connection=connection) as tx:
                    tx.execute("create table effects (note text)")
            except AmbiguousError as error:
                after.append(type(error.__cause__))
                raise
            after.append("went on")

    await body.enqueue()
    log = await drain(app)
    (run,) = await app.runs()
    if kind is AnswerLost:
        assert (after, run.outcome, len(log.of(RunSucceeded))) == (["went on"], "succeeded", 1)
    else:
        assert (after, run.outcome, len(log.of(RunSucceeded))) == ([OSError], "failed", 0)
