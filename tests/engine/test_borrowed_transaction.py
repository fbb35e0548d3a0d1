"""`ctx.transaction(connection=…)`: the user's own connection, with every library that can lend one."""

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
from tests.engine.stage import Recorder
from tests.postgres_server import PostgresServer
from tests.store.lenders import ON_MSSQL, ON_POSTGRES, ON_SQLITE, Lender, Undo
from tests.store.shop import Shop, sqlite_url

pytestmark = pytest.mark.slow

Step = Callable[[Any, Any, Any], Awaitable[object]]
"""What a test does with the context, its open block and the connection."""


class Stand(Shop):
    """A shop whose task opens a block on the user's own connection, and does in it what the test says."""

    def __init__(self, url: str, lender: Lender) -> None:
        super().__init__(url, lender)
        self.steps: list[tuple[bool, Step]] = []
        self.before: Step | None = None
        self.errors: list[BaseException] = []
        self.failed = threading.Event()
        self.log = Recorder()
        self.app.subscribe(self.log)
        body: Any = self.in_loop if lender.is_async else self.in_thread
        self.app.task(name="body", max_attempts=1)(body)

    async def in_loop(self, ctx: Context) -> None:
        async with self.lender.connect(self.url) as connection:
            try:
                await self.prepare(ctx, connection)
                for complete, step in self.steps:
                    async with ctx.transaction(complete=complete, connection=connection) as tx:
                        assert tx.connection is connection or "Scoped" in repr(self.lender)
                        await step(ctx, tx, connection)
            except BaseException as error:
                self.errors.append(error)
                self.failed.set()
                raise

    def in_thread(self, ctx: SyncContext) -> None:
        self.lender.play(self.synchronous(ctx))

    async def synchronous(self, ctx: SyncContext) -> None:
        async with self.lender.connect(self.url) as connection:
            try:
                await self.prepare(ctx, connection)
                for complete, step in self.steps:
                    with ctx.transaction(complete=complete, connection=connection) as tx:
                        assert tx.connection is connection or "Scoped" in repr(self.lender)
                        await step(ctx, tx, connection)
            except BaseException as error:
                self.errors.append(error)
                self.failed.set()
                raise

    async def prepare(self, ctx: Any, connection: Any) -> None:
        if self.before is not None:
            await self.before(ctx, None, connection)

    def play(self, *steps: Step, chunks: tuple[Step, ...] = (), before: Step | None = None) -> None:
        """Run the task once: its chunks, then its completing block."""
        self.before = before
        self.steps = [*((False, step) for step in chunks), *((True, step) for step in steps)]
        self.app.get_task("body").enqueue_sync()
        self.work()

    def play_until_failed(self, step: Step, *, before: Step | None = None) -> BaseException:
        """The same with one block, until the body has failed in it; the error that it saw."""
        self.before, self.steps = before, [(True, step)]
        self.app.get_task("body").enqueue_sync()

        async def work() -> None:
            async with self.app.worker():
                assert await asyncio.to_thread(self.failed.wait, 60)

        asyncio.run(work())
        return self.errors[0]

    def writes(self, note: str) -> Step:
        """A step that writes a row in the library's own way."""
        return lambda _ctx, _tx, connection: self.lender.write(connection, note)

    async def steal(self, connection: Any) -> None:
        """Let the claim pass on: as another worker would, or on SQLite, where no other can write, as if one had."""
        if self.is_sqlite:
            await self.run_raw(connection, self.theft())
        else:
            self.ask(self.theft())

    def theft(self) -> str:
        """What another worker does to a claim."""
        owner = "LockedBy" if self.url.startswith("mssql") else "locked_by"
        return f"update {self.own('jobs')} set fence = fence + 1, {owner} = 'thief' where {owner} is not null"

    async def run_raw(self, connection: Any, sql: str) -> None:
        with closing(driver_of(connection).cursor()) as cursor:
            cursor.execute(sql)


def driver_of(connection: Any) -> Any:
    """The sqlite3 connection beneath one of a library's."""
    if isinstance(connection, sqlite3.Connection):
        return connection
    if hasattr(connection, "vendor"):
        return connection.connection
    connected = connection.connection() if hasattr(connection, "flush") else connection
    return connected.connection.driver_connection


@pytest.fixture(scope="module")
def shared_postgres(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """One database for this module: every test empties it."""
    yield postgres_server.create_database("borrowed_block", template=postgres_template)
    postgres_server.drop_database("borrowed_block")


@pytest.fixture(params=[*ON_SQLITE, *ON_POSTGRES, *ON_MSSQL], ids=repr)
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    lender: Lender = request.param
    shared = "mssql_url" if lender in ON_MSSQL else "shared_postgres"
    url = sqlite_url(tmp_path) if lender in ON_SQLITE else request.getfixturevalue(shared)
    if not lender.can_tell(url):
        pytest.skip("this server begins a transaction by being asked whether one is open")
    stand = Stand(url, lender)
    stand.clear()
    yield stand
    stand.app.close()


def test_effects_and_completion_commit_together(stand: Stand) -> None:
    """Nothing is seen before the block ends; then the rows, the success, the result and a job enqueued inside are."""

    async def write(_ctx: Any, tx: Any, connection: Any) -> None:
        await stand.lender.write(connection, "library")
        if stand.lender.is_async:
            await tx.execute("insert into effects (note) values (:note)", note="tx")
            rows = await tx.fetch("select count(*) as n from effects")
            await stand.task.enqueue(7)
        else:
            tx.execute("insert into effects (note) values (:note)", note="tx")
            rows = tx.fetch("select count(*) as n from effects")
            stand.task.enqueue_sync(7)
        tx.result = rows
        seen.append((stand.notes(), stand.outcomes(), len(stand.jobs())))

    seen: list[Any] = []
    stand.play(write)
    assert stand.errors == []
    assert seen == [([], [], 1)]
    assert (stand.notes(), stand.done, stand.jobs()) == (["library", "tx"], [7], set())
    assert stand.outcomes() == ["succeeded", "succeeded"]
    assert [run.result for run in stand.app.runs_sync(task="body")] == ['[{"n":2}]']


def test_result_that_cannot_be_stored_is_told_of(stand: Stand) -> None:
    """The block commits without it: a success, and an event that says what is missing, as for a return value."""

    async def give(_ctx: Any, tx: Any, _connection: Any) -> None:
        tx.result = object()

    stand.play(give)
    assert [(run.outcome, run.result) for run in stand.app.runs_sync(task="body")] == [("succeeded", None)]
    (told,) = stand.log.of(ResultNotStored)
    assert "object cannot be stored" in told.reason


def test_an_exception_undoes_both(stand: Stand) -> None:
    """The rows are gone, the run has failed."""

    async def fail(_ctx: Any, _tx: Any, connection: Any) -> None:
        await stand.lender.write(connection, "gone")
        raise Undo

    stand.play(fail)
    assert [type(error) for error in stand.errors] == [Undo]
    assert (stand.notes(), stand.outcomes()) == ([], ["failed"])


def test_a_lost_fence_undoes_everything(stand: Stand) -> None:
    """The claim passed on while the block was open: the completion matches nothing, and the user's rows are gone."""

    async def lose(_ctx: Any, _tx: Any, connection: Any) -> None:
        await stand.lender.write(connection, "gone")
        await stand.steal(connection)

    assert isinstance(stand.play_until_failed(lose), LockLost)
    assert (stand.notes(), "succeeded" in stand.outcomes()) == ([], False)


def test_a_claim_lost_before_the_block(stand: Stand) -> None:
    """The block does not even begin."""

    async def lose(_ctx: Any, _tx: Any, _connection: Any) -> None:
        stand.ask(stand.theft())

    async def enter(*_: Any) -> None:
        entered.append(True)

    entered: list[bool] = []
    assert isinstance(stand.play_until_failed(enter, before=lose), LockLost)
    assert entered == []


@pytest.mark.parametrize("stand", ON_POSTGRES, ids=repr, indirect=True)
def test_a_refused_commit_refuses_the_completion(stand: Stand) -> None:
    """A constraint that is checked at the commit undoes the completion, too: they are one transaction."""
    stand.ask("alter table effects add unique (note) deferrable initially deferred")

    async def write_twice(_ctx: Any, _tx: Any, connection: Any) -> None:
        await stand.lender.write(connection, "twice")
        await stand.lender.write(connection, "twice")

    stand.play(write_twice)
    assert (stand.notes(), stand.outcomes()) == ([], ["failed"])
    assert "duplicate key" in str(stand.errors[0])


def test_chunks_commit_one_by_one(stand: Stand) -> None:
    """Each chunk stays when a later one fails; the slot ends with the completing block only."""

    async def fail(_ctx: Any, _tx: Any, connection: Any) -> None:
        await stand.lender.write(connection, "gone")
        raise Undo

    stand.play(stand.writes("three"), chunks=(stand.writes("one"), stand.writes("two")))
    assert (stand.notes(), stand.outcomes()) == (["one", "three", "two"], ["succeeded"])
    stand.play(chunks=(stand.writes("four"), fail))
    assert [type(error) for error in stand.errors] == [Undo]
    assert stand.notes() == ["four", "one", "three", "two"]


@pytest.mark.parametrize("stand", ON_SQLITE, ids=repr, indirect=True)
def test_a_block_that_failed_leaves_the_connection_usable(stand: Stand) -> None:
    """Its transaction is over, so that the next block can begin one on the same connection."""

    async def fail_first(ctx: Any, _tx: Any, connection: Any) -> None:
        with suppress(Undo), ctx.transaction(complete=False, connection=connection):
            await stand.lender.write(connection, "gone")
            raise Undo

    stand.play(stand.writes("kept"), before=fail_first)
    assert (stand.errors, stand.notes(), stand.outcomes()) == ([], ["kept"], ["succeeded"])


def test_an_open_transaction_is_not_taken_over(stand: Stand) -> None:
    """What the user has begun is the user's to end: the block would commit it behind their back."""

    async def nest(ctx: Any, _tx: Any, connection: Any) -> None:
        async with stand.lender.transaction(connection):
            await stand.lender.write(connection, "mine")
            if stand.lender.is_async:
                async with ctx.transaction(connection=connection):
                    pass
            else:
                with ctx.transaction(connection=connection):
                    pass

    stand.play(before=nest)
    (error,) = stand.errors
    assert isinstance(error, UsageError)
    assert "without an open transaction" in str(error)
    assert ("autocommit=False" in str(error)) is stand.is_sqlite  # with which sqlite3 has no other connections
    assert (stand.notes(), stand.outcomes()) == ([], ["failed"])


def test_connection_inside_a_block(stand: Stand) -> None:
    """An enqueue inside the block joins it; one that names a connection is refused."""

    async def enqueue(_ctx: Any, _tx: Any, connection: Any) -> None:
        with pytest.raises(UsageError, match="Leave out connection="):
            await stand.lender.enqueue(connection, stand.task, 1)

    stand.play(enqueue)
    assert (stand.errors, stand.outcomes()) == ([], ["succeeded"])


@pytest.mark.parametrize("lends", [True, False], ids=["own connection", "reltask's"])
@pytest.mark.parametrize("stand", [ON_SQLITE[0], ON_POSTGRES[2]], ids=repr, indirect=True)
def test_a_schedule_enqueued_inside_has_its_first_slot(stand: Stand, lends: bool) -> None:
    """A schedule made in a block starts at its own next time, by the database's clock, and not at once."""

    @stand.app.task
    def plan(ctx: SyncContext) -> None:
        stand.lender.play(planning(ctx))

    async def planning(ctx: SyncContext) -> None:
        async with stand.lender.connect(stand.url) as connection:
            with ctx.transaction(connection=connection if lends else None):
                stand.task.using(key="tenant", cron="0 9 * * *").enqueue_sync(1)

    plan.enqueue_sync()
    stand.work()
    (job,) = stand.app.jobs_sync()
    assert (job.next_run_time.hour, job.next_run_time.minute, stand.done) == (9, 0, [])


# Each side has its connections


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
    """It would stop the worker's loop; the error says what to write instead."""
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
    """In a snapshot older than the last heartbeat the completion would fail: the block reads what is committed."""
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


# What the user does wrong, and what goes wrong


async def test_a_commit_inside_the_block_is_noticed(app: App, tmp_path: Path) -> None:
    """What is committed cannot be undone, but the slot does not count as done with it."""
    errors: list[Exception] = []

    @app.task(max_attempts=1)
    def body(ctx: SyncContext) -> None:
        with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
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
    """A forgotten `await` is noticed before the commit: neither rows nor completion stand, and the job comes again."""

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
    assert "nobody runs" in (run.error or "")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as file:
        assert file.execute("select name from sqlite_master where name = 'effects'").fetchall() == []


class AnswerLost(sqlite3.Connection):
    """Commits, and then breaks."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        cursor = super().execute(sql, *values)
        if sql == "commit":
            raise OSError("connection reset")
        return cursor


class RequestLost(sqlite3.Connection):
    """Breaks before it commits."""

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        if sql == "commit":
            raise OSError("connection reset")
        return super().execute(sql, *values)


@pytest.mark.parametrize("kind", [AnswerLost, RequestLost])
async def test_a_commit_in_doubt_is_looked_up(app: App, tmp_path: Path, kind: type[sqlite3.Connection]) -> None:
    """The ledger knows whether a commit without an answer happened: then the body goes on; else it is told."""
    after: list[object] = []

    @app.task(max_attempts=1)
    def body(ctx: SyncContext) -> None:
        with closing(sqlite3.connect(tmp_path / "shop.db", factory=kind)) as connection:
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
