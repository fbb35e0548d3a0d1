"""Producing jobs from loops, threads, synchronous code and forks; and what is refused there."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sqlite3
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from reltask import App, Task
from reltask.errors import (
    AmbiguousError,
    ArgumentsError,
    ConfigurationError,
    DatabaseError,
    DeclarationError,
    PermanentError,
    ReltaskError,
    SchemaError,
    SettingsError,
    TransientError,
    UnknownJob,
    UnknownTask,
    UsageError,
)
from reltask.model.job import EARLIEST, LATEST, NewJob, State
from reltask.producer import portal
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.sqlite.connections import FileTransaction
from reltask.stores.sqlite.store import SqliteStore

Greet = Task[[str], [str], Any, Any]


_others: set[threading.Thread] = set()
"""Threads that were there before the test: apps of other tests may still be open."""


@pytest.fixture(autouse=True)
def _remember_others() -> None:
    _others.clear()
    _others.update(threading.enumerate())


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An app on a fresh file, closed afterwards."""
    app = App(f"sqlite:///{tmp_path / 'reltask.db'}")
    yield app
    app.close()


@pytest.fixture
def greet(app: App) -> Any:
    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    return greet


# From everywhere


def test_enqueue_from_two_event_loops_in_a_row(app: App, greet: Any) -> None:
    """A script that calls asyncio.run twice: no connection belongs to the closed loop."""

    async def once() -> None:
        await greet.enqueue("Ada")

    asyncio.run(once())
    asyncio.run(once())
    assert len(app.jobs_sync()) == 2


def test_enqueue_from_threads(app: App, greet: Any) -> None:
    """Threads share one connection of the process, and each gets its own job."""
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(greet.enqueue_sync, map(str, range(40))))
    assert len({job.id for job in jobs}) == 40
    assert app.status_sync().due == 40


def test_enqueue_from_loops_in_threads(app: App, greet: Any) -> None:
    """Several loops at once, each in its own thread."""

    async def some() -> None:
        await asyncio.gather(*(greet.enqueue(str(n)) for n in range(5)))

    threads = [threading.Thread(target=asyncio.run, args=(some(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert app.status_sync().due == 20


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a pre-forking server forks beside threads
def test_enqueue_from_a_forked_child(app: App, greet: Any) -> None:
    """A forked child opens its own connections, and leaves its parent's alone."""
    greet.enqueue_sync("parent")
    pid = os.fork()
    if pid == 0:
        try:
            greet.enqueue_sync("child")
            app.close()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - a child of a test must not run the rest of the tests
            os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    greet.enqueue_sync("parent again")
    assert app.status_sync().due == 3


def test_enqueue_inside_a_running_worker(app: App) -> None:
    """A body that enqueues uses its worker's connection, from the loop; a thread's body uses the client's."""

    @app.task
    async def outer() -> None:
        await inner.enqueue()

    @app.task
    def inner() -> None:
        leaf.enqueue_sync()

    @app.task
    async def leaf() -> None: ...

    async def scenario() -> None:
        async with app.worker() as worker:
            await outer.enqueue()
            await worker.drained()

    asyncio.run(scenario())
    assert {run.task for run in app.runs_sync()} == {"outer", "inner", "leaf"}


def test_enqueue_without_a_loop_names_enqueue_sync(app: App, greet: Any) -> None:
    """A coroutine that could not be awaited is refused at once."""
    with pytest.raises(UsageError, match=r"call enqueue_sync\(\)"):
        greet.enqueue("Ada")
    with pytest.raises(UsageError, match=r"call status_sync\(\)"):
        _ = app.status()


async def test_enqueue_sync_inside_a_loop_names_enqueue(app: App, greet: Any) -> None:
    """A call that would block the running loop is refused at once."""
    with pytest.raises(UsageError, match=r"await enqueue\(\)"):
        greet.enqueue_sync("Ada")
    with pytest.raises(UsageError, match=r"await enqueue_many\(\)"):
        app.enqueue_many_sync([greet.call("Ada")])


def test_nothing_connects_before_it_must(tmp_path: Path) -> None:
    """Importing a module with an app and its tasks opens, reads and creates nothing, not even the settings."""
    app = App(f"sqlite:///{tmp_path / 'no' / 'such' / 'directory' / 'x.db'}", settings={"no.such.setting": 1})

    @app.task(every="10m")
    async def tick() -> None: ...

    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigurationError):
        tick.enqueue_sync()


@pytest.mark.slow
def test_import_starts_no_thread_and_loads_no_driver() -> None:
    """`import reltask` is cheap: no threads, no database driver, few modules."""
    code = (
        "import sys, threading, reltask; reltask.App; "
        "loaded = {'asyncpg', 'sqlite3', 'click', 'rich', 'uvloop'} & set(sys.modules); "
        "sys.exit(f'{threading.active_count()} threads, {loaded}' if loaded or threading.active_count() > 1 else 0)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unreachable_database_is_an_error_that_can_be_tried_again(tmp_path: Path) -> None:
    """A failed attempt to connect does not break the client: once the directory exists, the next call works."""
    folder = tmp_path / "later"
    app = App(f"sqlite:///{folder / 'x.db'}")

    @app.task
    async def job() -> None: ...

    with pytest.raises(Exception, match=r"x\.db|directory"):
        job.enqueue_sync()
    folder.mkdir()
    assert job.enqueue_sync().created
    app.close()


def test_an_audit_delays_no_other_call(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a connection and a thread of its own, and a time limit for its statements."""
    began, ended, run = threading.Event(), threading.Event(), FileTransaction.verb

    def slow(transaction: FileTransaction, name: str, **values: object) -> list[list[sqlite3.Row]]:
        if name == "audit_tasks":
            began.set()
            ended.wait(30)
        return run(transaction, name, **values)

    monkeypatch.setattr(FileTransaction, "verb", slow)
    with ThreadPoolExecutor(2) as pool:
        auditing = pool.submit(app.audit_sync)
        began.wait()
        try:
            assert pool.submit(app.status_sync).result(10).due == 0
        finally:
            ended.set()
        assert auditing.result().violations == 0


def test_an_audit_has_its_own_time_limit() -> None:
    """The setting for one statement does not end it."""
    app = App("postgresql://localhost/nowhere", settings={"database.command_timeout": "5s"})
    store = app._client._make_long_store(timedelta(minutes=10))
    assert isinstance(store, PostgresStore)
    assert store._options.command_timeout == 600


def test_closed_client_opens_again(app: App, greet: Any) -> None:
    """close() ends connections and thread; the next call opens new ones."""
    greet.enqueue_sync("Ada")
    app.close()
    app.close()
    assert not _has_portal()
    greet.enqueue_sync("Ada")
    assert app.status_sync().due == 2


def test_an_app_that_is_dropped_keeps_its_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its private loop still runs: connections that are collected on another thread crash uvloop."""
    stores: list[weakref.ref[SqliteStore]] = []

    class Noted(SqliteStore):
        async def open(self) -> None:
            stores.append(weakref.ref(self))
            await super().open()

    monkeypatch.setattr("reltask.stores.sqlite.store.SqliteStore", Noted)
    App(f"sqlite:///{tmp_path / 'reltask.db'}").jobs_sync()
    gc.collect()
    (store,) = stores
    assert store() is not None


def test_close_waits_for_running_calls(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closing the client neither cuts off another thread's running call nor lets it hang."""
    gate = Gate(monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        calling = pool.submit(greet.enqueue_sync, "Ada")
        gate.reached.wait()
        closing = pool.submit(app.close)
        _wait_until(lambda: app._client._portal is None)
        assert not closing.done()
        gate.open()
        assert calling.result().created
        closing.result()
    assert app.status_sync().due == 1


def test_close_cuts_off_a_hanging_call(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hangs ends as ambiguous, instead of waiting for a loop that is gone."""
    monkeypatch.setattr(portal, "PATIENCE", 0.0)
    gate = Gate(monkeypatch)
    with ThreadPoolExecutor(1) as pool:
        calling = pool.submit(greet.enqueue_sync, "Ada")
        gate.reached.wait()
        app.close()
        gate.open()
        with pytest.raises(AmbiguousError, match="closed before the call ended"):
            calling.result()


async def test_close_does_not_cancel_its_callers(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task group ignores a cancelled member: a call that was cut off must not look cancelled."""
    monkeypatch.setattr(portal, "PATIENCE", 0.0)
    gate = Gate(monkeypatch)

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(greet.enqueue("Ada"))
            await asyncio.to_thread(gate.reached.wait)
            await asyncio.to_thread(app.close)

    with pytest.raises(ExceptionGroup) as raised:
        await serve()
    gate.open()
    assert raised.group_contains(AmbiguousError)


# On a loop of the program's own


async def test_producer_calls_from_its_own_loop(app: App, greet: Any) -> None:
    """Inside the block calls use no second thread; after it everything works as before."""
    async with app.producer():
        job = await greet.enqueue("Ada")
        assert (await job.view()).task == "greet"
        assert not _has_portal()
    await greet.enqueue("Grace")
    assert _has_portal()
    assert (await app.status()).due == 2


async def test_producer_beside_a_worker(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks on one loop may end in any order: calls use what is still open, never what was closed."""
    _refuse_after_close(monkeypatch)
    first, second = app.producer(), app.producer()
    await first.__aenter__()
    await second.__aenter__()
    async with app.worker() as worker:
        await first.__aexit__(None, None, None)
        await greet.enqueue("Ada")
        await worker.drained()
    await greet.enqueue("Grace")
    assert not _has_portal()
    await second.__aexit__(None, None, None)
    assert (await app.status()).due == 1
    assert [run.outcome for run in await app.runs()] == ["succeeded"]


async def test_producer_waits_for_running_calls(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connections are closed after the last call that uses them, so a late handler loses nothing."""
    _refuse_after_close(monkeypatch)
    gate = Gate(monkeypatch)
    async with app.producer():
        call = asyncio.create_task(greet.enqueue("Ada"))
        await asyncio.to_thread(gate.reached.wait)
        asyncio.get_running_loop().call_later(0.01, gate.open)
    assert call.done()
    assert (await call).created


async def test_producer_closed_before_a_call_began(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call made in the block that begins after it uses another connection: it does not reopen a closed one."""
    _refuse_after_close(monkeypatch)
    async with app.producer():
        call = asyncio.create_task(greet.enqueue("Ada"))
    assert (await call).created
    assert _has_portal()


async def test_producer_without_its_database(tmp_path: Path) -> None:
    """A program that cannot reach its database fails at its start, and can try again."""
    app = App(f"sqlite:///{tmp_path / 'later' / 'x.db'}")
    with pytest.raises(DatabaseError, match=r"x\.db|directory"):
        async with app.producer():
            pass
    (tmp_path / "later").mkdir()
    async with app.producer():
        assert (await app.status()).due == 0


class Gate:
    """Holds the next insert before it reaches the file."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self._opened, enqueue = threading.Event(), threading.Event(), SqliteStore.enqueue_jobs

        async def held(store: SqliteStore, jobs: Sequence[NewJob]) -> set[UUID]:
            self.reached.set()
            await asyncio.to_thread(self._opened.wait)
            return await enqueue(store, jobs)

        monkeypatch.setattr(SqliteStore, "enqueue_jobs", held)

    def open(self) -> None:
        self._opened.set()


def _refuse_after_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store may reopen. This one must not."""
    close, enqueue, closed = SqliteStore.close, SqliteStore.enqueue_jobs, set()

    async def closing(store: SqliteStore) -> None:
        closed.add(store)
        await close(store)

    async def refusing(store: SqliteStore, jobs: Sequence[NewJob]) -> set[UUID]:
        assert store not in closed
        return await enqueue(store, jobs)

    monkeypatch.setattr(SqliteStore, "close", closing)
    monkeypatch.setattr(SqliteStore, "enqueue_jobs", refusing)


def _has_portal() -> bool:
    """Whether an app of this test has a client's thread."""
    return any(thread.name == "reltask-client" for thread in set(threading.enumerate()) - _others)


def _wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(0.001)


# Options


def test_key_makes_a_job_unique_while_it_exists(app: App, greet: Any) -> None:
    """The second job of the same key is not created; another key, or another task, is another job."""
    first = greet.using(key="k").enqueue_sync("Ada")
    second = greet.using(key="k").enqueue_sync("Bob")
    other = greet.using(key="l").enqueue_sync("Ada")
    assert (first.created, second.created, other.created) == (True, False, True)
    assert app.status_sync().due == 2


def test_options_reach_the_row(greet: Any) -> None:
    """delay, queue, priority, key, attempts and lock timeout, each where it belongs; the task's own otherwise."""
    options = {"queue": "mail", "priority": 1, "key": "k", "max_attempts": 2, "lock_timeout": "5m", "delay": "1h"}
    view = greet.using(**options).enqueue_sync("Ada").view_sync()
    assert (view.queue, view.priority, view.key, view.max_attempts) == ("mail", 1, "k", 2)
    assert view.next_run_time - view.created_at == timedelta(hours=1)
    plain = greet.enqueue_sync("Ada").view_sync()
    assert (plain.queue, plain.priority, plain.key, plain.max_attempts) == ("default", 5, None, 5)
    assert plain.next_run_time == plain.created_at


def test_job_at_a_time(greet: Any) -> None:
    """`at` accepts any aware datetime, in any zone."""
    at = datetime(2030, 1, 1, 12, tzinfo=UTC)
    assert greet.using(at=at).enqueue_sync("Ada").view_sync().next_run_time == at
    for at in (EARLIEST, LATEST - timedelta(microseconds=1)):
        assert greet.using(at=at.astimezone(_zone(5))).enqueue_sync("Ada").view_sync().next_run_time == at


@pytest.mark.slow
def test_enqueue_many(app: App, greet: Any) -> None:
    """Thousands at once, in chunks, in order, from sync and async code, each with its own options."""
    jobs = app.enqueue_many_sync(greet.call(str(n)) for n in range(2_500))
    assert len({job.id for job in jobs}) == 2_500
    assert all(job.created for job in jobs)
    again = app.enqueue_many_sync([greet.using(key="k").call("a"), greet.using(key="k").call("b")])
    assert [job.created for job in again] == [True, False]
    assert again[0].id == again[1].id
    assert asyncio.run(_many(app, greet)) == 3
    assert app.enqueue_many_sync([]) == []
    assert app.status_sync().due == 2_504


@pytest.mark.parametrize(
    "later",
    [
        TransientError("away"),
        PermanentError("no permission any more"),
        SchemaError("no tables"),
        SettingsError("no file"),
    ],
)
def test_doubt_stays_doubt(greet: Any, monkeypatch: pytest.MonkeyPatch, later: Exception) -> None:
    """Once an answer was lost, no error may say "not applied": the caller would enqueue twice."""
    answers: list[Exception] = [AmbiguousError("lost"), later]

    async def failing(*_: object, **__: object) -> set[UUID]:
        raise answers.pop(0)

    monkeypatch.setattr(SqliteStore, "enqueue_jobs", failing)
    with pytest.raises(AmbiguousError, match="lost"):
        greet.enqueue_sync("Ada")
    assert answers == []


def _failing_batches(monkeypatch: pytest.MonkeyPatch, *answers: Exception | None) -> list[int]:
    """Batches of two jobs, each answered with the next of these (None: really sent); returns the sizes sent."""
    enqueue, sizes, coming = SqliteStore.enqueue_jobs, list[int](), iter(answers)

    async def failing(store: SqliteStore, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        if again:
            raise AmbiguousError("lost again")
        sizes.append(len(jobs))
        if (answer := next(coming)) is None:
            return await enqueue(store, jobs)
        if len(sizes) == 1:
            await asyncio.sleep(0)  # so that the second batch has begun before the first one fails
        raise answer

    monkeypatch.setattr(SqliteStore, "bulk", 2)
    monkeypatch.setattr(SqliteStore, "enqueue_jobs", failing)
    return sizes


@pytest.mark.parametrize("error", [TransientError("away"), PermanentError("refused"), SettingsError("no file")])
def test_failed_batch_is_the_last(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch, error: ReltaskError) -> None:
    """The other running batch is finished, and no further one begun.

    The error does not deny that some jobs exist.
    """
    sizes = _failing_batches(monkeypatch, None, error)
    with pytest.raises(AmbiguousError, match=rf"^2 of 9 jobs .*{error}.* all or nothing") as caught:
        app.enqueue_many_sync(greet.call(str(n)) for n in range(9))
    assert caught.value.__cause__ is error
    assert sizes == [2, 2]
    assert app.status_sync().due == 2


def test_bulk_of_which_nothing_was_inserted(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its error is raised as it is: the caller may enqueue all of them again."""
    _failing_batches(monkeypatch, TransientError("away"), PermanentError("refused"))
    with pytest.raises(TransientError, match="away"):
        app.enqueue_many_sync(greet.call(str(n)) for n in range(9))


def test_bulk_of_which_some_may_be_inserted(app: App, greet: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubt about one batch outweighs certainty about another, whichever comes first."""
    _failing_batches(monkeypatch, TransientError("away"), AmbiguousError("lost"))
    with pytest.raises(AmbiguousError, match=r"^0 of 9 jobs .*lost again") as caught:
        app.enqueue_many_sync(greet.call(str(n)) for n in range(9))
    assert isinstance(caught.value.__cause__, AmbiguousError)


@pytest.mark.parametrize("error", [TransientError("away"), SettingsError("no file")])
def test_ids_that_cannot_be_looked_up(
    app: App, greet: Any, monkeypatch: pytest.MonkeyPatch, error: ReltaskError
) -> None:
    """An insert is not reported as failed because the job with the same key cannot be named."""

    async def away(*_: object) -> object:
        raise error

    taken = greet.using(key="k")
    taken.enqueue_sync("Ada")
    monkeypatch.setattr(SqliteStore, "read_keys", away)
    jobs = app.enqueue_many_sync([greet.call("Grace"), taken.call("Alan")])
    assert [job.created for job in jobs] == [True, False]
    with pytest.raises(type(error)):
        taken.enqueue_sync("Alan")
    assert app.status_sync().due == 2


async def _many(app: App, greet: Any) -> int:
    return len(await app.enqueue_many(greet.call(str(n)) for n in range(3)))


def test_ids_are_time_ordered(app: App) -> None:
    """Ids are UUIDs of version 7: later ones sort later, so that new rows are adjacent in every index."""
    batches = [app._enqueuer.new_ids(count) for count in (1, 2, 2_500) * 30]
    ids = [new for batch in batches for new in batch]
    assert all(new.version == 7 and new.variant == "specified in RFC 4122" for new in ids)
    assert [new.int >> 80 for new in ids] == sorted(new.int >> 80 for new in ids)
    assert all(batch == sorted(batch) for batch in batches)
    assert len(set(ids)) == len(ids) == 30 * 2_503


class Still(random.Random):
    """Draws only zeros."""

    def randbytes(self, n: int) -> bytes:
        return bytes(n)


def test_no_two_ids_are_equal() -> None:
    """Even with equal random bits: of two jobs with one id the second would be taken for the first."""
    ids = App("sqlite:///unused.db", rng=Still())._enqueuer.new_ids(3)
    assert len(set(ids)) == 3


# Refused


def _zone(hours: int) -> timezone:
    return timezone(timedelta(hours=hours))


BAD_CALLS: list[tuple[str, Callable[[Any], object], type[Exception], str]] = [
    ("wrong type", lambda t: t.enqueue_sync(42), ArgumentsError, "Expected `str`, got `int`"),
    ("missing", lambda t: t.enqueue_sync(), ArgumentsError, "missing a required argument: 'name'"),
    ("too many", lambda t: t.enqueue_sync("a", "b"), ArgumentsError, "too many positional"),
    ("10 MB", lambda t: t.enqueue_sync("x" * 10_000_000), ArgumentsError, "limit of 1,000,000"),
    ("naive time", lambda t: t.using(at=datetime(2030, 1, 1)), UsageError, "has no time zone"),  # noqa: DTZ001
    ("last time", lambda t: t.using(at=datetime.max.replace(tzinfo=UTC)), UsageError, "outside the years 1970 to 8999"),
    ("first time", lambda t: t.using(at=datetime.min.replace(tzinfo=UTC)), UsageError, "outside the years.*at once"),
    ("beyond the last", lambda t: t.using(at=datetime.max.replace(tzinfo=_zone(-5))), UsageError, "outside the years"),
    ("before the first", lambda t: t.using(at=datetime.min.replace(tzinfo=_zone(1))), UsageError, "outside the years"),
    ("too late", lambda t: t.using(at=LATEST), UsageError, "outside the years"),
    ("too early", lambda t: t.using(at=EARLIEST - timedelta(microseconds=1)), UsageError, "outside the years"),
    ("longest delay", lambda t: t.using(delay=timedelta.max), UsageError, "write at most 36525d"),
    ("bare number", lambda t: t.using(delay=15), UsageError, "delay: 15 is not a duration"),
    ("bare lock", lambda t: t.using(lock_timeout=15), UsageError, "lock_timeout: 15 is not a duration"),
    ("short lock", lambda t: t.using(lock_timeout="1ms"), UsageError, "lock_timeout=1ms is too short.*least 500ms"),
    ("no attempts", lambda t: t.using(max_attempts=0), UsageError, "max_attempts=0 would never run it.*1 or more"),
    ("no lock", lambda t: t.using(lock_timeout="0s"), UsageError, "lock_timeout=0s is too short"),
    ("no queue", lambda t: t.using(queue=""), UsageError, "queue= needs a name.*Leave it out"),
    ("endless", lambda t: t.using(delay="9" * 30 + "d"), UsageError, "write at most 36525d"),
    ("at and delay", lambda t: t.using(at=datetime.now(UTC), delay="1s"), UsageError, "Both at= and delay="),
    ("priority", lambda t: t.using(priority=10), UsageError, "outside 0"),
    ("no key", lambda t: t.using(every="10m"), DeclarationError, "needs a key"),
    ("empty key", lambda t: t.using(key=""), ArgumentsError, "1 to 400 characters"),
    ("long key", lambda t: t.using(key="x" * 401), ArgumentsError, "1 to 400 characters"),
    ("key no text", lambda t: t.using(key=5), UsageError, "key=5 is not a string. Write it in quotes"),
    ("surrogate", lambda t: t.using(key="a\udcff"), UsageError, r"key='a\\udcff' contains a lone surrogate"),
    ("escape in a key", lambda t: t.using(key="a\x1b[2J"), UsageError, r"key='a\\x1b\[2J' contains .* U\+001B"),
    ("line in a queue", lambda t: t.using(queue="a\nb"), UsageError, r"queue='a\\nb' contains .* U\+000A"),
    ("C1 in a key", lambda t: t.using(key="a\x9b"), UsageError, r"U\+009B"),
    ("bidi in a key", lambda t: t.using(key="a\u202eb"), UsageError, r"key='a\\u202eb' contains .* U\+202E"),
    ("every instant", lambda t: t.using(key="k", every="9ms"), DeclarationError, "every: 9ms is too short.*least 10ms"),
    ("queue no text", lambda t: t.using(queue=5), UsageError, "queue=5 is not a string"),
    ("time as text", lambda t: t.using(at="2030-01-01"), UsageError, "at='2030-01-01' is no datetime. Write datetime"),
    ("date", lambda t: t.using(at=date(2030, 1, 1)), UsageError, "is no datetime. Write datetime"),
    ("attempts as text", lambda t: t.using(max_attempts="3"), UsageError, "max_attempts='3' is not a whole number"),
    ("too many attempts", lambda t: t.using(max_attempts=2**31), UsageError, "is too large. Write at most 2147483647"),
    ("half a priority", lambda t: t.using(priority=1.0), UsageError, "priority=1.0 is not a whole number"),
    ("bad cron", lambda t: t.using(key="k", cron="every day"), DeclarationError, "cron"),
    ("bare every", lambda t: t.using(key="k", every=5), DeclarationError, "every: 5 is not a duration"),
]


@pytest.mark.parametrize(
    ("call", "error", "why"), [case[1:] for case in BAD_CALLS], ids=[case[0] for case in BAD_CALLS]
)
def test_bad_calls_store_nothing(app: App, greet: Any, call: Callable[[Any], object], error: type, why: str) -> None:
    """Each mistake raises one error of reltask's tree that says what is wrong, and the table stays empty."""
    with pytest.raises(error, match=why):
        call(greet)
    assert app.jobs_sync() == []


def test_many_takes_calls(app: App, greet: Any) -> None:
    """Another object among them is named by its type, and none of the others is enqueued."""
    wrong = [greet.call("Ada"), greet]
    with pytest.raises(UsageError, match=r"takes calls, not Task. Write .*task.call\(…\)"):
        app.enqueue_many_sync(wrong)
    with pytest.raises(UsageError, match="takes calls, not Task"):
        asyncio.run(app.enqueue_many(wrong))
    assert app.jobs_sync() == []


def test_unknown_names_are_refused(app: App, greet: Any) -> None:
    """An unknown task or job is named as such."""
    del greet
    with pytest.raises(UnknownTask, match="Did you mean 'greet'"):
        app.get_task("gret")
    assert app.job(uuid4()).view_sync() is None
    with pytest.raises(UnknownJob, match="nothing was changed"):
        app.job(uuid4()).pause_sync()


def test_app_without_a_database_says_what_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a URL the error names the three places for one. An unknown scheme is named too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RELTASK_DATABASE_URL", raising=False)
    for app, why in ((App(), "No database is configured"), (App("oracle://host/db"), "oracle")):
        with pytest.raises(ConfigurationError, match=why):
            app.status_sync()
        app.close()


# Pause, resume, run now


def test_pause_resume_run_now(app: App, greet: Any) -> None:
    """A paused job is not claimed; resumed it is; run-now makes a later one due without moving its nominal time."""
    job = greet.using(delay="1h").enqueue_sync("Ada")
    job.pause_sync()
    assert job.view_sync().state is State.PAUSED
    job.resume_sync()
    before = job.view_sync()
    app.job(job.id).run_now_sync()
    after = job.view_sync()
    assert after.next_run_time == before.next_run_time
    assert after.due_at < before.due_at
    assert [run.outcome for run in job.runs_sync()] == []
