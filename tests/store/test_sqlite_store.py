"""What is specific to SQLite: the file, its one writer, its thread, and the host's clock."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reltask.errors import ConflictError, PermanentError, SchemaError, SettingsError, TransientError, UsageError
from reltask.stores.sqlite import reclaim
from reltask.stores.sqlite.connections import SqliteOptions
from reltask.stores.sqlite.errors import classify
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.sqlite.url import database_path
from reltask.stores.sqlite.values import micros, moment
from tests.store.store_harness import LOCK, Now, SqliteBackend, StoreHarness, new_job, request, worker_record

SHORT = SqliteOptions(command_timeout=timedelta(milliseconds=20))


class Ticks:
    """Monotonic time that the test moves."""

    value = 0.0

    def monotonic(self) -> float:
        return self.value

    async def sleep(self, seconds: float) -> None:
        self.value += seconds


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "reltask.db")


@pytest.fixture
async def file_store(path: str) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.open()
    yield store
    await store.close()


# The file


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sqlite:////var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:///jobs.db", os.path.join(os.getcwd(), "jobs.db")),  # noqa: PTH109, PTH118 - what the store must equal
        ("sqlite:///a%20b.db", os.path.join(os.getcwd(), "a b.db")),  # noqa: PTH109, PTH118
        ("/var/lib/jobs.db", "/var/lib/jobs.db"),
        ("sqlite:///:memory:", ":memory:"),
    ],
)
def test_urls_name_files(url: str, expected: str) -> None:
    """Three slashes are relative, four absolute; a later change of directory does not move the file."""
    assert database_path(url) == expected


@pytest.mark.parametrize("url", ["sqlite://jobs.db", "sqlite:jobs.db", "sqlite:///", "sqlite:///jobs.db?mode=ro"])
def test_malformed_urls_say_what_to_write(url: str) -> None:
    """Each is a clear error, not a file with a strange name."""
    with pytest.raises(SettingsError):
        database_path(url)


def test_memory_is_only_for_inline_stores() -> None:
    """A database in memory lives in one connection."""
    with pytest.raises(UsageError, match="inline"):
        SqliteStore("sqlite:///:memory:")


async def test_missing_directory_says_what_to_do(tmp_path: Path) -> None:
    """The error names the file and the remedy."""
    with pytest.raises(PermanentError, match=r"nowhere.*Check that the directory exists"):
        await SqliteStore(str(tmp_path / "nowhere" / "jobs.db")).open()


async def test_not_a_database(tmp_path: Path) -> None:
    """A file that is not a database is not changed."""
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada, " * 500)
    with pytest.raises(PermanentError, match="not an SQLite database"):
        await SqliteStore(str(file)).open()
    assert file.read_text().startswith("Dear Ada")


async def test_newer_schema_is_refused(path: str, file_store: SqliteStore) -> None:
    """A file that a newer reltask has migrated is left alone."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("update reltask_meta set schema_version = 99, oldest_version = 99")
    with pytest.raises(SchemaError, match="99"):
        await file_store.open()


async def test_opening_again_keeps_everything(path: str, file_store: SqliteStore) -> None:
    """Opening creates what is missing, and nothing else."""
    await file_store.enqueue_jobs([new_job()])
    before = await SqliteBackend(path).snapshot()
    other = SqliteStore(path)
    await other.open()
    await other.close()
    assert await SqliteBackend(path).snapshot() == before


@pytest.mark.slow
def test_twenty_processes_open_a_new_file_at_once(path: str) -> None:
    """Each creates the tables or finds them; none fails."""
    script = textwrap.dedent("""
        import asyncio, sys
        from reltask.stores.sqlite.store import SqliteStore
        async def main():
            store = SqliteStore(sys.argv[1])
            sys.stdin.readline()
            await store.open()
            await store.read_status()
            await store.close()
        asyncio.run(main())
    """)
    start = [sys.executable, "-c", script, path]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    children = [
        subprocess.Popen(start, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) for _ in range(20)
    ]
    errors = [child.communicate(b"\n")[1].decode() for child in children]
    assert [(child.returncode, error) for child, error in zip(children, errors, strict=True)] == [(0, "")] * 20


def test_seed_reclamation_and_drop_scripts_run(path: str) -> None:
    """The database accepts the documented scripts, more than once."""
    scripts = Path(__file__).parents[2] / "database" / "sqlite"
    with closing(sqlite3.connect(path)) as connection:
        tables = ["001-create-tables", "004-create-leases", "005-create-steps"]
        for name in [*tables, "002-seed-sample-job", "003-reclamation-query"] * 2:
            connection.executescript((scripts / f"{name}.sql").read_text())
        assert connection.execute("select count(*) from reltask_jobs").fetchone() == (1,)
        connection.executescript((scripts / "drop.sql").read_text())
        assert connection.execute("select count(*) from sqlite_master").fetchone() == (0,)


async def test_reclamation_by_hand_tells_the_parent_of_a_dead_child(path: str) -> None:
    """As a worker does: the child's end is kept and marked, and it has no parent any more."""
    now, backend = Now(), SqliteBackend(path)
    harness = StoreHarness(backend.store(now), now, backend)
    await harness.store.open()
    parent = await harness.parent(2, max_attempts=1)
    dead = await harness.claim_child()  # by the test's clock, long ago
    script = Path(__file__).parents[2] / "database" / "sqlite" / "003-reclamation-query.sql"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script.read_text())
    now.value = datetime.now(UTC) + timedelta(minutes=1)
    (end,) = (await harness.waits(parent)).ends
    assert (end.job_id, end.outcome, end.error) == (dead.job_id, "failed", "reclaimed by hand")
    assert (await harness.job(dead.job_id)).parent_id is None
    assert await harness.store.fold_marks() == 1
    assert (await harness.steps(parent.job_id))["labels"].pending == 1
    await harness.store.close()


# Time


def test_times_are_exact() -> None:
    """Every microsecond is stored exactly, before and after 1970."""
    for year in (1, 1969, 1970, 2038, 9999):
        time = datetime(year, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)
        assert moment(micros(time)) == time


async def test_naive_times_are_refused(file_store: SqliteStore) -> None:
    """A time without a zone is an error."""
    with pytest.raises(UsageError, match="time zone"):
        await file_store.enqueue_jobs([new_job(run_at=datetime(2025, 1, 1))])  # noqa: DTZ001 - what is refused


async def test_clock_is_the_hosts(file_store: SqliteStore) -> None:
    """Without the test's `now` the database's time is the machine's, in whole milliseconds."""
    before = datetime.now(UTC) - timedelta(milliseconds=2)
    shown = await file_store.read_now()
    assert before <= shown <= datetime.now(UTC) + timedelta(milliseconds=2)
    assert shown.microsecond % 1000 == 0


# One writer


async def test_empty_poll_needs_no_write_lock(path: str, file_store: SqliteStore) -> None:
    """While another process writes, a claim that finds nothing is answered; one that finds a job waits."""
    poller = SqliteStore(path, options=SHORT)
    await file_store.enqueue_jobs([new_job(task="foreign"), new_job(delay=LOCK)])
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        assert (await poller.claim_jobs(request())).claims == []
        with pytest.raises(TransientError, match="locked"):
            await poller.claim_jobs(request(tasks=["foreign"]))
        assert (await poller.read_status()).due == 1
        writer.execute("rollback")
    assert len((await poller.claim_jobs(request(tasks=["foreign"]))).claims) == 1
    await poller.close()


async def test_idle_polls_write_rarely(path: str) -> None:
    """A worker's row is refreshed when a quarter of the time has passed for which it counts as alive."""
    now = Now()
    store = SqliteStore(path, now=now)
    await store.open()
    await store.register_worker(worker_record(alive_for=timedelta(seconds=18)))
    seen = []
    for _ in range(12):
        now.advance(seconds=1)
        await store.claim_jobs(request(alive_for=timedelta(seconds=18)))
        seen.append((await store.list_workers())[0].heartbeat_at)
    await store.close()
    assert len(set(seen)) == 3


async def test_busy_is_transient_and_changes_nothing(path: str, file_store: SqliteStore) -> None:
    """A call that timed out may be sent again."""
    impatient = file_store.dedicated(timeout=timedelta(milliseconds=20))
    job = new_job()
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        with pytest.raises(TransientError, match="writing for too long"):
            await impatient.enqueue_jobs([job])
        writer.execute("rollback")
    assert await impatient.enqueue_jobs([job]) == {job.id}
    await impatient.close()


async def test_constraint_is_a_conflict(file_store: SqliteStore) -> None:
    """What the schema refuses is neither transient nor half applied."""
    with pytest.raises(ConflictError, match="priority"):
        await file_store.enqueue_jobs([new_job(), new_job(priority=10)])
    assert await file_store.list_jobs() == []


@pytest.mark.parametrize(
    ("name", "committing", "code"),
    [
        ("SQLITE_BUSY_SNAPSHOT", False, "database-transient"),
        ("SQLITE_FULL", True, "database-transient"),
        ("SQLITE_IOERR_WRITE", False, "database-transient"),
        ("SQLITE_IOERR_FSYNC", True, "database-ambiguous"),
        ("SQLITE_READONLY_DBMOVED", False, "database-permanent"),
        ("SQLITE_CORRUPT_INDEX", False, "database-permanent"),
        ("", False, "database-permanent"),
    ],
)
def test_errors_are_classified(name: str, committing: bool, code: str) -> None:
    """Only a disk that fails during COMMIT leaves doubt."""
    error = sqlite3.OperationalError("from the driver")
    error.sqlite_errorname = name
    assert classify(error, "jobs.db", committing=committing).code == code


@pytest.mark.slow
def test_commit_survives_a_kill(path: str) -> None:
    """A process killed right after the answer: what was acknowledged is in the file."""
    script = textwrap.dedent("""
        import asyncio, os, signal, sys
        from reltask.model.job import NewJob
        from reltask.stores.sqlite.store import SqliteStore
        from uuid import UUID
        async def main():
            store = SqliteStore(sys.argv[1])
            await store.open()
            await store.enqueue_jobs([NewJob(id=UUID(int=7), task="greet")])
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
    """)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    child = subprocess.run([sys.executable, "-c", script, path], env=environment, check=False)
    assert child.returncode < 0
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select count(*) from reltask_jobs").fetchone() == (1,)


# Threads and processes


async def test_event_loop_goes_on_while_the_file_is_busy(path: str, file_store: SqliteStore) -> None:
    """A waiting transaction waits in the store's own thread."""
    with closing(sqlite3.connect(path, isolation_level=None)) as writer:
        writer.execute("begin immediate")
        waiting = asyncio.create_task(file_store.enqueue_jobs([new_job()]))
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
        writer.execute("rollback")
        assert len(await waiting) == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Python warns of forking with threads: that is the test
async def test_forked_child_opens_its_own_connection(path: str, file_store: SqliteStore) -> None:
    """A store inherited by fork works in the child, and the parent's continues."""
    await file_store.enqueue_jobs([new_job()])

    def in_child() -> None:
        loop = asyncio.new_event_loop()
        loop.run_until_complete(file_store.enqueue_jobs([new_job()]))
        os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=in_child)
    child.start()
    await asyncio.to_thread(child.join, 20)
    assert child.exitcode == 0
    await file_store.enqueue_jobs([new_job()])
    assert len(await SqliteStore(path, inline=True).list_jobs()) == 3


async def test_close_twice_and_use_again(file_store: SqliteStore) -> None:
    """Closing is safe at any time; a later call opens again."""
    await file_store.close()
    await file_store.close()
    assert await file_store.list_jobs() == []


async def test_memory_store_shares_its_database_with_its_dedicated_one() -> None:
    """The simulation's heartbeat store sees the simulation's jobs."""
    store = SqliteStore("sqlite:///:memory:", inline=True)
    await store.open()
    await store.enqueue_jobs([new_job()])
    assert len(await store.dedicated(timeout=LOCK).list_jobs()) == 1
    await store.close()


# Seen stale twice


async def test_expired_claim_is_taken_when_seen_twice(path: str) -> None:
    """The host may have slept: the first look only remembers, and a heartbeat in between keeps the claim."""
    now, ticks = Now(), Ticks()
    store = SqliteStore(path, now=now, clock=ticks, inline=True)
    await store.open()
    claim = await StoreHarness(store, now, SqliteBackend(path)).claimed()
    assert await store.reclaim_jobs() == []  # a look at a valid claim is not the first of the two
    ticks.value += 1
    now.advance(hours=8)
    assert await store.reclaim_jobs() == []
    ticks.value += 0.2
    assert await store.reclaim_jobs() == []
    await store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    now.advance(hours=8)
    ticks.value += 0.2
    assert await store.reclaim_jobs() == []
    ticks.value += 0.25
    assert [lost.job_id for lost in await store.reclaim_jobs()] == [claim.job_id]
    await store.close()


@pytest.mark.parametrize("meanwhile", ["released and claimed again", "renewed", "clock set back"])
async def test_what_changed_since_the_look_is_not_taken(path: str, meanwhile: str) -> None:
    """Between look and write another process may write: fence, heartbeat and expiry must be unchanged."""
    now = Now()
    store = SqliteStore(path, now=now, inline=True)
    await store.open()
    harness = StoreHarness(store, now, SqliteBackend(path))
    claim = await harness.claimed()
    seen = reclaim._Stale(str(claim.job_id), claim.fence, micros(claim.locked_at))
    match meanwhile:
        case "released and claimed again":
            await harness.release(claim)
            await harness.claim_one()
            now.advance(hours=1)
        case "renewed":
            now.advance(seconds=1)
            await store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
            now.advance(hours=1)
        case _:
            now.advance(seconds=-1)
    before = await harness.snapshot()
    assert store._session.write(lambda transaction: reclaim._take(transaction, [seen])) == []
    assert await harness.snapshot() == before
    await store.close()
