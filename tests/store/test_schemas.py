"""Two installs in one database: neither sees the other's jobs, claims, signals, leases or locks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
import pytest

from reltask.errors import SchemaError
from reltask.model.lease import LeaseRequest
from reltask.stores.migration import schema_scripts
from reltask.stores.postgres.schema import migrate_postgres, pending_postgres
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.statement import split
from reltask.stores.store import Store
from reltask.stores.waking import News
from tests.mssql_server import databases
from tests.postgres_server import PostgresServer, run_in_thread
from tests.store.store_harness import (
    Backend,
    MssqlBackend,
    Now,
    PostgresBackend,
    SqliteBackend,
    StoreHarness,
    new_job,
    recurring,
    worker_record,
)

OTHER = "elsewhere"
LEASE = {"ttl": timedelta(seconds=10)}


@pytest.fixture(scope="session")
def postgres_pair(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A database with the default install and another one; the latter's URL."""
    url = f"{postgres_server.create_database('pair', template=postgres_template)}?schema={OTHER}"
    run_in_thread(lambda: migrate_postgres(url))
    yield url
    postgres_server.drop_database("pair")


@pytest.fixture(params=databases())
async def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Backend, Backend]:
    """Two installs in one database: the default one and another."""
    both: tuple[Backend, Backend]
    if request.param == "sqlite":
        path = str(tmp_path / "reltask.db")
        both = SqliteBackend(path), SqliteBackend(path, OTHER)
    elif request.param == "mssql":
        from reltask.stores.mssql.schema import migrate_mssql  # noqa: PLC0415 - the driver is an extra

        url = request.getfixturevalue("mssql_database")
        other = f"{url}{'&' if '?' in url else '?'}schema={OTHER}"
        await migrate_mssql(other)
        both = MssqlBackend(url), MssqlBackend(other)
    else:
        url = request.getfixturevalue("postgres_pair")
        both = PostgresBackend(url.partition("?")[0]), PostgresBackend(url)
    for backend in both:
        await backend.clear()
    return both


@pytest.fixture
def now() -> Now:
    return Now()


@pytest.fixture
async def store(pair: tuple[Backend, Backend], now: Now) -> AsyncIterator[Store]:
    """A store of the default install."""
    store = pair[0].store(now)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def other(pair: tuple[Backend, Backend], now: Now) -> AsyncIterator[StoreHarness]:
    """The install in the other schema."""
    store = pair[1].store(now)
    await store.open()
    yield StoreHarness(store, now, pair[1])
    await store.close()


@pytest.fixture
def harness(store: Store, now: Now, pair: tuple[Backend, Backend]) -> StoreHarness:
    return StoreHarness(store, now, pair[0])


async def test_jobs_of_one_install_are_not_the_others(harness: StoreHarness, other: StoreHarness) -> None:
    """A job is claimed, read, operated on and recorded only where it was enqueued, even one with the same id."""
    job = new_job(key="only")
    await harness.add(job)
    assert (await other.claim()).claims == []
    assert await other.store.read_job(job.id) is None
    assert not await other.store.discard_job(job.id)
    await other.add(job)  # the same id and key: nothing of the first install is in its way
    here, there = await harness.claim_one(), await other.claim_one()
    assert await harness.complete(here)
    assert await other.store.read_holds("alice", [there.hold]) == {there.hold}
    assert len(await harness.runs(job.id)) == 1
    assert await other.runs(job.id) == []
    assert (await harness.store.read_status()).running == 0
    assert (await other.store.read_status()).running == 1


async def test_a_beat_and_a_reclaim_touch_one_install(harness: StoreHarness, other: StoreHarness) -> None:
    job = new_job()
    await harness.add(job)
    await other.add(job)
    here, there = await harness.claim_one(), await other.claim_one()
    harness.now.advance(seconds=60)
    beat = await harness.store.heartbeat_jobs("alice", [here.hold], alive_for=timedelta(minutes=1))
    assert beat.renewed == {here.hold}
    harness.now.advance(seconds=90)
    assert await harness.store.reclaim_jobs() == []
    assert [lost.fence for lost in await other.store.reclaim_jobs()] == [there.fence]


async def test_each_install_has_its_own_leases_workers_and_audit(harness: StoreHarness, other: StoreHarness) -> None:
    await harness.store.register_worker(worker_record())
    won = await harness.store.acquire_lease(LeaseRequest(name="x", holder="a", acquisition=uuid4(), **LEASE))
    also = await other.store.acquire_lease(LeaseRequest(name="x", holder="b", acquisition=uuid4(), **LEASE))
    assert (won.term, also.term) == (1, 1)
    assert [worker.id for worker in await harness.store.list_workers()] == ["alice"]
    assert await other.store.list_workers() == []
    await harness.add(recurring())
    assert [count.task for count in await harness.store.audit_tasks()] == ["greet"]
    assert await other.store.audit_tasks() == []
    assert await other.store.audit_slots(kept_for=timedelta(hours=1)) == []
    assert await other.store.audit_durable(kept_for=timedelta(hours=1)) == []
    assert await other.store.audit_waiting(lock_timeout=timedelta(minutes=2)) == []
    facts = await other.store.examine()
    assert facts.schema == OTHER
    assert "run" in facts.may


async def test_an_advisory_lock_belongs_to_one_install(harness: StoreHarness, other: StoreHarness) -> None:
    if isinstance(harness.backend, SqliteBackend):
        pytest.skip("SQLite has no advisory locks")
    async with harness.store.advisory_lock("x") as mine, other.store.advisory_lock("x") as theirs:
        assert mine is not None
        assert theirs is not None
        async with harness.store.advisory_lock("x") as second:
            assert second is None


async def test_signals_wake_one_install(postgres_pair: str) -> None:
    """A signal of one install is not heard by the other, not even one about a lease."""
    default, other = PostgresStore(postgres_pair.partition("?")[0]), PostgresStore(postgres_pair)
    heard: list[tuple[str, object]] = []
    arrived = asyncio.Event()

    def hears(name: str) -> Callable[[News | str], None]:
        def hear(what: News | str) -> None:
            heard.append((name, what))
            if what == "x":
                arrived.set()

        return hear

    async with default.listen(hears("default"), hears("default")), other.listen(hears("other"), hears("other")):
        heard.clear()
        arrived.clear()
        sender = PostgresStore(postgres_pair)
        await sender.signal()
        await sender.signal_lease("x")
        await asyncio.wait_for(arrived.wait(), 10)
        assert heard == [("other", None), ("other", "x")]
        await sender.close()
    await default.close()
    await other.close()


async def test_a_bulk_enqueue_goes_to_its_install(postgres_pair: str) -> None:
    """COPY, whose SQL the driver writes, names the schema, too."""
    url, _, _ = postgres_pair.partition("?")
    for backend in (PostgresBackend(url), PostgresBackend(postgres_pair)):
        await backend.clear()
    other, default = PostgresStore(postgres_pair), PostgresStore(url)
    await other.enqueue_jobs([new_job() for _ in range(500)])
    assert (await other.read_status()).due == 500
    assert (await default.read_status()).due == 0
    await other.close()
    await default.close()


async def test_a_users_connection_writes_to_the_install_of_the_app(postgres_pair: str, tmp_path: Path) -> None:
    """On a borrowed connection the search path does not matter."""
    store = PostgresStore(postgres_pair)
    await PostgresBackend(postgres_pair).clear()
    connection = await asyncpg.connect(postgres_pair.partition("?")[0])
    try:
        async with connection.transaction():
            joined = await store.borrow(connection).join()
            await joined.enqueue_jobs([new_job()])
        assert (await store.read_status()).due == 1
    finally:
        await connection.close()
        await store.close()
    backend = SqliteBackend(str(tmp_path / "reltask.db"), OTHER)
    there = backend.store(None)
    await there.open()
    with closing(sqlite3.connect(backend.path)) as file:
        file.execute("begin")
        await (await there.borrow(file).join()).enqueue_jobs([new_job()])
        file.commit()
    assert (await there.read_status()).due == 1
    await there.close()


async def test_missing_tables_of_a_schema_are_named(empty_postgres_url: str) -> None:
    """A connection to a database without this schema is refused, and the error names the schema."""
    store = PostgresStore(f"{empty_postgres_url}?schema=nowhere")
    with pytest.raises(SchemaError):
        await store.open()
    connection = await asyncpg.connect(empty_postgres_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        joined = await store.borrow(connection).join()
        with pytest.raises(SchemaError, match="nowhere"):
            await joined.enqueue_jobs([new_job()])
    finally:
        await transaction.rollback()
        await connection.close()
        await store.close()


async def test_each_schema_is_migrated_for_itself(empty_postgres_url: str) -> None:
    """`migrate` creates one install; the other one still needs its own."""
    first, second = (f"{empty_postgres_url}?schema={name}" for name in ("first", "second"))
    done = await migrate_postgres(first)
    assert await pending_postgres(first) == []
    assert await pending_postgres(second) == done
    assert await migrate_postgres(second) == done


async def test_roles_and_drop_belong_to_one_schema(empty_postgres_url: str, postgres_server: PostgresServer) -> None:
    """The roles bear the schema's name and may do nothing in another; `drop` leaves the other install alone."""
    first, second = (f"{empty_postgres_url}?schema={name}" for name in ("first", "second"))
    default_roles = (
        "select count(*) from pg_roles where rolname like 'reltask%'"  # of other tests: roles are the server's
    )
    before = await _ask(empty_postgres_url, default_roles)
    for url, name in ((first, "first"), (second, "second")):
        await migrate_postgres(url)
        postgres_server.execute(dict(schema_scripts("postgres", name))["permissions.sql"], database=_name(url))
    connection = await asyncpg.connect(empty_postgres_url)
    try:
        allowed = "select has_table_privilege('first_run', '{}.jobs', 'update')"
        assert await connection.fetchval(allowed.format("first"))
        assert not await connection.fetchval(allowed.format("second"))
        assert await connection.fetchval(default_roles) == before
        await connection.execute(dict(schema_scripts("postgres", "first"))["drop.sql"])
        assert await pending_postgres(second) == []
        assert await pending_postgres(first) != []
        await connection.execute(dict(schema_scripts("postgres", "second"))["drop.sql"])
        for role in ("migrate", "run", "operate", "enqueue", "read"):
            for name in ("first", "second"):
                await connection.execute(f"drop owned by {name}_{role}; drop role {name}_{role}")
    finally:
        await connection.close()


async def _ask(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


async def test_monitoring_reads_the_schema(postgres_pair: str) -> None:
    """Every query of monitoring.sql runs in another schema."""
    connection = await asyncpg.connect(postgres_pair.partition("?")[0])
    try:
        for query in split(dict(schema_scripts("postgres", OTHER))["monitoring.sql"]):
            assert f"{OTHER}." in query
            await connection.fetch(query)
    finally:
        await connection.close()


def _name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]
