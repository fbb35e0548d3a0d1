"""The ledger of PostgreSQL in partitions: divided under use, dropped whole, unique as before."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import asyncpg
import pytest

from reltask import App
from reltask.stores.migration import schema_scripts
from reltask.stores.postgres.schema import migrate_postgres
from reltask.stores.postgres.store import PostgresStore

pytestmark = pytest.mark.slow
DAY = timedelta(days=1)


def id_of(at: datetime) -> UUID:
    """An id that was made at this time."""
    return UUID(int=int(at.timestamp() * 1000) << 80 | uuid4().int & (1 << 80) - 1)


@pytest.fixture
async def ledger(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """The owner's connection."""
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def add_run(ledger: asyncpg.Connection, job_id: UUID, finished_at: datetime, *, slot_no: int = 1) -> None:
    await ledger.execute(
        "insert into reltask.runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, finished_at,"
        " outcome) values ($1, $2, $3, 'report', 'default', 1, $4, $4, $4, 'succeeded')",
        job_id,
        slot_no,
        slot_no,
        finished_at,
    )


async def partitions(ledger: asyncpg.Connection) -> set[str]:
    rows = await ledger.fetch(
        "select relname from pg_inherits join pg_class on oid = inhrelid where inhparent = 'reltask.runs'::regclass"
    )
    return {name for (name,) in rows}


async def runs(ledger: asyncpg.Connection) -> dict[UUID, str]:
    """The rows, and the partition that each is in."""
    return dict(await ledger.fetch("select job_id, tableoid::regclass::text from reltask.runs"))


async def now(ledger: asyncpg.Connection) -> datetime:
    found: datetime = await ledger.fetchval("select now()")
    return found.astimezone(UTC)


async def add_partition(ledger: asyncpg.Connection, name: str, start: datetime, end: datetime) -> None:
    """One that was made long ago."""
    await ledger.execute(
        f"create table reltask.{name} partition of reltask.runs for values from ('{id_of(start)}') to ('{id_of(end)}')"
    )


async def test_a_ledger_is_divided_and_nothing_is_lost(postgres_url: str, ledger: asyncpg.Connection) -> None:
    """Rows stay; ids of later days get partitions of their own; a second division changes nothing."""
    today = await now(ledger)
    old, random, coming = id_of(today - 9 * DAY), uuid4(), id_of(today + 9 * DAY)
    for job_id in (old, random):
        await add_run(ledger, job_id, today)
    await migrate_postgres(postgres_url, partition_days=7)
    await migrate_postgres(postgres_url, partition_days=7)
    await ledger.fetchval("select reltask.renew_partitions(now() - interval '30 days')")
    await add_run(ledger, coming, today)
    found = await runs(ledger)
    assert found[old] == "reltask.runs_before"
    assert found[coming] in {f"reltask.{name}" for name in await partitions(ledger) - {"runs_before", "runs_default"}}
    assert set(found) == {old, random, coming}


@pytest.mark.parametrize("made", [timedelta(days=-9), timedelta(days=9), timedelta(days=9000)])
async def test_a_slot_still_ends_once(postgres_url: str, ledger: asyncpg.Connection, made: timedelta) -> None:
    """By constraint, in every partition: also for an id of a clock that is years ahead."""
    await migrate_postgres(postgres_url, partition_days=1)
    await ledger.fetchval("select reltask.renew_partitions(now() - interval '30 days')")
    job_id = id_of(await now(ledger) + made)
    await add_run(ledger, job_id, await now(ledger))
    with pytest.raises(asyncpg.UniqueViolationError):
        await add_run(ledger, job_id, await now(ledger))
    with pytest.raises(asyncpg.UniqueViolationError):
        await ledger.execute("insert into reltask.runs select * from reltask.runs")


async def test_old_partitions_are_dropped_with_what_belongs_to_them(
    postgres_url: str, ledger: asyncpg.Connection
) -> None:
    """A run that ended later than the cutoff stays: a schedule that is still alive has an old id."""
    today = await now(ledger)
    await migrate_postgres(postgres_url, partition_days=7)
    await ledger.execute("alter table reltask.runs detach partition reltask.runs_before")
    await ledger.execute("drop table reltask.runs_before")
    await add_partition(ledger, "runs_old", today - 40 * DAY, today - 33 * DAY)
    await add_partition(ledger, "runs_young", today - 8 * DAY, today - DAY)
    gone, alive, young = id_of(today - 39 * DAY), id_of(today - 38 * DAY), id_of(today - 5 * DAY)
    await add_run(ledger, gone, today - 35 * DAY)
    await add_run(ledger, alive, today - 34 * DAY)
    await add_run(ledger, alive, today - timedelta(hours=2), slot_no=2)
    await add_run(ledger, young, today - 5 * DAY)
    await ledger.execute("update reltask.runs set steps = 1 where job_id = $1", gone)
    await ledger.execute(
        "insert into reltask.steps (job_id, slot_no, name, kind, state, fingerprint, attempt, fence, started_at,"
        " recorded_at, pending) select job_id, slot_no, 'charge', 'step', 'done', '', 1, fence, finished_at,"
        " finished_at, 0 from reltask.runs where slot_no = 1"
    )
    store = PostgresStore(postgres_url)
    try:
        await store.prune_runs(older_than=30 * DAY, most=1_000_000, leader=None)
    finally:
        await store.close()
    assert "runs_old" not in await partitions(ledger)
    assert await runs(ledger) == {alive: "reltask.runs_default", young: "reltask.runs_young"}
    assert {row[0] for row in await ledger.fetch("select job_id from reltask.steps")} == {alive, young}


async def test_a_ledger_in_use_is_not_waited_for(postgres_url: str, ledger: asyncpg.Connection) -> None:
    """All sessions would wait behind it. It is renewed the next time."""
    await migrate_postgres(postgres_url, partition_days=7)
    reader = await asyncpg.connect(postgres_url)
    try:
        async with reader.transaction():
            await reader.fetch("select from reltask.runs")
            assert await ledger.fetchval("select reltask.renew_partitions(now())") is None
            assert await partitions(ledger) == {"runs_before", "runs_default"}
        assert await ledger.fetchval("select reltask.renew_partitions(now())") == 0
        assert len(await partitions(ledger)) == 5
    finally:
        await reader.close()


async def test_young_rows_are_never_dropped(postgres_url: str, ledger: asyncpg.Connection) -> None:
    """Whatever time a worker gives, an hour is kept: with its rights it could not delete them either."""
    today = await now(ledger)
    await migrate_postgres(postgres_url, partition_days=7)
    await ledger.fetchval("select reltask.renew_partitions(now())")
    coming = id_of(today + 8 * DAY)
    await add_run(ledger, coming, today)
    await ledger.fetchval("select reltask.renew_partitions('infinity')")
    assert coming in await runs(ledger)


async def rights(ledger: asyncpg.Connection) -> list[tuple[object, ...]]:
    """Grants, column grants and policies of the ledger."""
    grants = await ledger.fetch(
        "select grantee, privilege_type, column_name from information_schema.column_privileges"
        " where table_schema = 'reltask' and table_name = 'runs'"
        " union all select grantee, privilege_type, null from information_schema.table_privileges"
        " where table_schema = 'reltask' and table_name = 'runs' order by 1, 2, 3"
    )
    policies = await ledger.fetch(
        "select policyname, roles::text, cmd, qual, with_check from pg_policies"
        " where schemaname = 'reltask' and tablename = 'runs' order by 1"
    )
    owner = await ledger.fetch(
        "select relowner::regrole::text, relrowsecurity from pg_class where oid = 'reltask.runs'::regclass"
    )
    return [tuple(row) for row in (*grants, *policies, *owner)]


async def test_roles_keep_their_rights(postgres_url: str, ledger: asyncpg.Connection) -> None:
    """Grants and policies move to the divided ledger. A worker can renew partitions; only the owner can divide."""
    permissions = dict(schema_scripts("postgres"))["permissions.sql"]
    await ledger.execute(permissions)
    before = await rights(ledger)
    await migrate_postgres(postgres_url, partition_days=7)
    assert await rights(ledger) == before
    await ledger.execute(permissions)  # it can be run again
    assert await rights(ledger) == before
    await ledger.execute("set role reltask_run")
    assert await ledger.fetchval("select reltask.renew_partitions(now())") == 0
    for forbidden in (
        "select reltask.partition_ledger(1)",
        "select reltask.drop_partitions('infinity')",
        "select * from reltask.runs_before",
        "drop table reltask.runs_default",
    ):
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await ledger.execute(forbidden)
    await ledger.execute("set role reltask_enqueue")
    with pytest.raises(asyncpg.InsufficientPrivilegeError):
        await ledger.execute("select reltask.renew_partitions(now())")


async def test_workers_run_through_a_division(postgres_url: str) -> None:
    """Jobs before, during and after it: each slot once, by the audit; an ended id is refused as before."""
    app = App(postgres_url, settings={"maintenance.coordination": "off"})

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with app.worker():
        first = await double.enqueue(1)
        assert await first.result(timeout="60s") == 2
        many = await app.enqueue_many(double.call(number) for number in range(200))
        await migrate_postgres(postgres_url, partition_days=1)
        last = await double.enqueue(3)
        for job in (*many, last):
            await job.result(timeout="60s")
        assert len(await last.runs()) == 1
    assert (await app.audit()).breaks == []
