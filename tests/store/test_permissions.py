"""The five roles of permissions.sql: each can do its work, and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import asyncpg
import pytest

from reltask import AccessRefused, App
from reltask.errors import PermanentError
from reltask.model.job import NewJob
from reltask.stores.migration import schema_scripts
from reltask.stores.postgres.schema import migrate_postgres, pending_postgres
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.postgres.values import WORTH_COPYING
from reltask.stores.statement import split
from tests.postgres_server import PostgresServer
from tests.store import role_work

ROLES = ("migrate", "run", "operate", "enqueue", "read")
LOGINS = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'user_{0}') then create role user_{0} login; end if;
    grant reltask_{0} to user_{0};
end $$
"""

LOOK = [
    "select * from reltask.jobs",
    "select * from reltask.runs",
    "select * from reltask.workers",
    "select * from reltask.leases",
    "select * from reltask.lease_waiters",
    "select * from reltask.metrics",
]
REWRITE_LEDGER = ["update reltask.runs set outcome = 'failed'", "truncate reltask.runs"]
CHANGE_THE_REST = [
    "delete from reltask.runs",
    "delete from reltask.workers",
    "update reltask.leases set term = 1",
    "delete from reltask.lease_waiters",
    "delete from reltask.metrics",
]
REMOVE_LEASES = ["delete from reltask.leases", "truncate reltask.leases"]
LOOSEN = [
    "alter table reltask.runs disable row level security",
    "create policy mine on reltask.runs for delete using (true)",
]
CHANGE_TABLES = [
    "alter table reltask.jobs add column mine text",
    "drop table reltask.runs",
    "drop index reltask.runs_slot_ends_once",
    "create table reltask.mine ()",
    "update reltask.meta set schema_version = 99",
    "drop schema reltask cascade",
]
CHANGE_JOBS = [
    "update reltask.jobs set paused_at = now()",
    "update reltask.jobs set priority = 0",
    "delete from reltask.jobs",
    "truncate reltask.jobs",
]
OTHERS_DATA = ["select * from elsewhere.secrets", "create role mine"]
ADD_CLAIMED = """
insert into reltask.jobs (id, task, next_run_time, locked_by, locked_at, heartbeat_at, lock_expires_at)
values (gen_random_uuid(), 't', now(), 'me', now(), now(), now())
"""
ADD_SCHEDULES = [
    f"insert into reltask.jobs (id, task, next_run_time, {column}) values (gen_random_uuid(), 't', now(), '{value}')"
    for column, value in (("schedule", '{"every":"1h"}'), ("declaration", "x"), ("app_version", "99.0"))
]
CLAIM = [
    f"update reltask.jobs set {column} = {column}"
    for column in ("id", "slot_no", "locked_by", "heartbeat_at", "lock_expires_at", "claim_token", "fence", "progress")
]
ADD_RUN = """
insert into reltask.runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, finished_at, outcome)
values (gen_random_uuid(), 1, 1, 't', 'default', 1, now(), now(), now(), 'succeeded')
"""

BACKDATE = [
    f"{ADD_RUN.replace('now(), ' + repr('succeeded'), time + ', ' + repr('discarded'))}"
    for time in ("now() - interval '2 minutes'", "now() - interval '2 years'", "now() + interval '2 minutes'")
] + [
    "insert into reltask.metrics values (now() - interval '2 hours', 't', 1, 0, 1, 1, 1, 1)",
    "insert into reltask.metrics values (now() + interval '2 hours', 't', 1, 0, 1, 1, 1, 1)",
]

FORBIDDEN = {
    "migrate": OTHERS_DATA,
    "run": [
        *REWRITE_LEDGER,
        *CHANGE_TABLES,
        *REMOVE_LEASES,
        *LOOSEN,
        *OTHERS_DATA,
        *BACKDATE,
        "truncate reltask.jobs",
    ],
    "operate": [
        *REWRITE_LEDGER,
        *CHANGE_TABLES,
        *CHANGE_THE_REST,
        *REMOVE_LEASES,
        *LOOSEN,
        *OTHERS_DATA,
        *CLAIM,
        *BACKDATE,
        ADD_CLAIMED,
        ADD_RUN,
        "truncate reltask.jobs",
    ],
    "enqueue": [
        *LOOK,
        *REWRITE_LEDGER,
        *CHANGE_TABLES,
        *CHANGE_JOBS,
        *CHANGE_THE_REST,
        *REMOVE_LEASES,
        *LOOSEN,
        *OTHERS_DATA,
        "select args from reltask.jobs",
        "select id from reltask.jobs for update",
        *ADD_SCHEDULES,
        ADD_CLAIMED,
        ADD_RUN,
    ],
    "read": [
        *REWRITE_LEDGER,
        *CHANGE_TABLES,
        *CHANGE_JOBS,
        *CHANGE_THE_REST,
        *REMOVE_LEASES,
        *LOOSEN,
        *OTHERS_DATA,
        "select id from reltask.jobs for update",
        "insert into reltask.jobs (id, task, next_run_time) values (gen_random_uuid(), 't', now())",
        ADD_RUN,
    ],
}

PERMISSIONS = dict(schema_scripts("postgres"))["permissions.sql"]
GRANTED = """
select relation.relname, relation.relowner, relation.relacl, relation.relrowsecurity, namespace.nspacl,
       array(select attname || attacl::text from pg_attribute
             where attrelid = relation.oid and attacl is not null order by attname),
       array(select polname || polcmd::text from pg_policy where polrelid = relation.oid order by polname)
from pg_class as relation
join pg_namespace as namespace on namespace.oid = relation.relnamespace
where namespace.nspname = 'reltask' and relation.relkind = 'r'
order by relation.relname
"""

Url = Callable[[str], str]


@pytest.fixture
async def url(postgres_server: PostgresServer, postgres_url: str) -> Url:
    """The database with its roles, the script run twice.

    Call it with a role to get that user's URL.
    """
    name = postgres_url.rpartition("/")[2]
    secrets = "create schema elsewhere; create table elsewhere.secrets ()"
    logins = [LOGINS.format(role) for role in ROLES]
    postgres_server.execute(PERMISSIONS, PERMISSIONS, secrets, *logins, database=name)
    return lambda role: postgres_server.url(name, user=f"user_{role}")


@pytest.mark.parametrize("role", ROLES)
async def test_role_cannot_do_more_than_its_work(url: Url, role: str) -> None:
    """Each forbidden statement is refused for lack of privilege, not for another reason."""
    connection = await asyncpg.connect(url(role))
    try:
        for statement in FORBIDDEN[role]:
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
    finally:
        await connection.close()


async def test_worker_role_does_everything_a_worker_does(url: Url) -> None:
    """All verbs of the protocol work under reltask_run."""
    async with role_work.opened(PostgresStore(url("run"))) as store:
        await role_work.work(store)


async def test_worker_role_runs_durable_functions_and_an_operator_forgets_their_steps(
    url: Url, postgres_url: str
) -> None:
    """All verbs of durable functions work under their roles, and an operator removes no mark but those of the steps."""
    async with role_work.opened(PostgresStore(url("run"))) as store:
        job = await role_work.work_durably(store)
    async with role_work.opened(PostgresStore(url("operate"))) as store:
        await role_work.forget(store, job)
    owner, operator = await asyncpg.connect(postgres_url), await asyncpg.connect(url("operate"))
    try:
        assert await operator.execute("delete from reltask.marks") == "DELETE 0"
        assert [row[0] for row in await owner.fetch("select kind from reltask.marks")] == ["signal"]
    finally:
        await owner.close()
        await operator.close()


async def test_worker_role_leads(url: Url) -> None:
    """All verbs of leases and maintenance work under reltask_run."""
    async with role_work.opened(PostgresStore(url("run"))) as store:
        await role_work.lead(store)


async def test_worker_role_deletes_no_recent_ledger_rows(url: Url, postgres_url: str) -> None:
    """Whatever a worker's user sends: a row younger than an hour stays.

    Older ones can be pruned, by reltask's verb.
    """
    owner, worker = await asyncpg.connect(postgres_url), await asyncpg.connect(url("run"))
    try:
        await owner.execute(ADD_RUN)
        await owner.execute(ADD_RUN)
        await owner.execute("update reltask.runs set finished_at = now() - interval '61 minutes' where ctid = '(0,1)'")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await worker.execute("update reltask.runs set job_id = job_id")
        async with role_work.opened(PostgresStore(url("run"))) as store:
            assert await store.prune_runs(older_than=timedelta(0), most=1, leader=None) == 1
        assert await worker.execute("delete from reltask.runs") == "DELETE 0"
        assert await owner.fetchval("select count(*) from reltask.runs") == 1
    finally:
        await owner.close()
        await worker.close()


async def test_worker_role_rewrites_no_metrics_of_the_past(url: Url, postgres_url: str) -> None:
    """What was counted more than an hour ago can be pruned, but not changed; the last hour cannot be deleted."""
    owner, worker = await asyncpg.connect(postgres_url), await asyncpg.connect(url("run"))
    try:
        for age in ("2 hours", "30 minutes"):
            await owner.execute(f"insert into reltask.metrics values (now() - interval '{age}', 't', 1, 0, 1, 1, 1, 1)")
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await worker.execute("update reltask.metrics set succeeded = 2 where minute < now() - interval '1 hour'")
        assert await worker.execute("update reltask.metrics set succeeded = 2 where minute > now() - interval '1 hour'")
        assert await worker.execute("delete from reltask.metrics") == "DELETE 1"
        assert [row[0] for row in await owner.fetch("select succeeded from reltask.metrics")] == [2]
    finally:
        await owner.close()
        await worker.close()


async def test_ended_job_is_not_inserted_again(url: Url, postgres_url: str) -> None:
    """Not by any role, and not by the owner: by INSERT, as one of several, by COPY or `on conflict`."""
    owner = await asyncpg.connect(postgres_url)
    job = "insert into reltask.jobs (id, task, next_run_time) select job_id, 't', now() from reltask.runs"
    others = f"{job} union all select gen_random_uuid(), 't', now()"
    try:
        await owner.execute(ADD_RUN)
        ended = await owner.fetchval("select job_id from reltask.runs")
        for role in ("run", "operate", "enqueue", "migrate"):
            connection = await asyncpg.connect(url(role))
            try:
                for statement in (job, others, f"{job} on conflict do nothing"):
                    with pytest.raises(asyncpg.UniqueViolationError, match="has ended"):
                        await connection.execute(statement)
                with pytest.raises(asyncpg.UniqueViolationError, match="has ended"):
                    await connection.copy_records_to_table(
                        "jobs",
                        schema_name="reltask",
                        columns=["id", "task", "next_run_time"],
                        records=[(ended, "t", datetime.now(UTC))],
                    )
            finally:
                await connection.close()
        assert await owner.fetchval("select count(*) from reltask.jobs") == 0
    finally:
        await owner.close()


async def test_operators_role_operates(url: Url) -> None:
    """All verbs of operators work under reltask_operate; claiming does not."""
    async with role_work.opened(PostgresStore(url("run"))) as store:
        job = await role_work.dead_job(store)
        assert (await store.acquire_lease(role_work.LEASE)).term == 1
    async with role_work.opened(PostgresStore(url("operate"))) as store:
        await role_work.operate(store, job)
        with pytest.raises(PermanentError, match=r"permissions\.sql"):
            await store.claim_jobs(role_work.request())


async def test_enqueue_role_adds_jobs_and_recognises_a_repeated_one(url: Url) -> None:
    """Enqueueing works under reltask_enqueue, alone and in bulk; nothing else does."""
    assert role_work.MANY >= WORTH_COPYING
    async with role_work.opened(PostgresStore(url("enqueue"))) as store:
        await role_work.enqueue(store)
        with pytest.raises(PermanentError, match=r"permissions\.sql"):
            await store.enqueue_jobs([NewJob(id=uuid4(), task="t", key="nightly", schedule='{"every":"1h"}')])


async def test_enqueue_role_sends_signals_and_may_not_read_results(url: Url) -> None:
    """A web application's login may signal its jobs; for a result the error names the role that it lacks."""
    app = App(url("enqueue"))

    @app.task
    async def answer() -> int:
        return 42

    async with app.producer():
        job = await answer.using(key="only").enqueue()
        await job.signal("decision", {"ok": True}, id="click-1")
        await answer.job(key="only").signal("decision", {"ok": True}, id="click-1")
        with pytest.raises(AccessRefused, match=r"This login may not read results.*reltask_read"):
            await job.result(timeout="20s")
    await asyncio.to_thread(app.close)
    async with role_work.opened(PostgresStore(url("read"))) as store:
        assert [signal.id for signal in await store.list_signals(job.id)] == ["click-1"]


async def test_enqueue_role_cannot_answer_for_a_child(url: Url, postgres_url: str) -> None:
    """It can neither insert a job that a step waits for, nor report an end, nor leave a child's mark."""
    owner = await asyncpg.connect(postgres_url)
    connection = await asyncpg.connect(url("enqueue"))
    child = """
        insert into reltask.jobs (id, task, next_run_time, parent_id, parent_slot, parent_step, parent_nth)
        values (gen_random_uuid(), 't', now(), gen_random_uuid(), 1, 'labels', 0)
    """
    end = """
        insert into reltask.child_ends (parent_id, slot_no, step, nth, job_id, outcome, ended_at)
        values (gen_random_uuid(), 1, 'labels', 0, gen_random_uuid(), 'succeeded', now())
    """
    mark = "insert into reltask.marks (at, kind, job_id, slot_no, name) values (now(), '{}', gen_random_uuid(), 1, 'x')"
    try:
        for statement in (child, end, mark.format("child")):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.execute(statement)
        await connection.execute(mark.format("signal"))
        assert await owner.fetchval("select count(*) from reltask.marks") == 1
    finally:
        await connection.close()
        await owner.close()


async def test_read_role_sees_everything(url: Url) -> None:
    """All reading verbs work under reltask_read; enqueueing does not."""
    job = NewJob(id=uuid4(), task="t")
    async with role_work.opened(PostgresStore(url("run"))) as store:
        await store.enqueue_jobs([job])
    async with role_work.opened(PostgresStore(url("read"))) as store:
        await role_work.read(store, job)


async def test_migrate_role_can_migrate(url: Url) -> None:
    """Under reltask_migrate an outdated schema is migrated, and a table can be altered."""
    connection = await asyncpg.connect(url("migrate"))
    try:
        await connection.execute("update reltask.meta set schema_version = 0")
        await connection.execute("alter table reltask.jobs add column later text")
    finally:
        await connection.close()
    assert await migrate_postgres(url("migrate"))
    assert await pending_postgres(url("migrate")) == []


async def test_running_the_script_again_removes_nothing(url: Url, postgres_url: str) -> None:
    """Between any two statements of the script other sessions see the same grants and policies: workers can run."""
    assert url("run")
    administrator, observer = await asyncpg.connect(postgres_url), await asyncpg.connect(postgres_url)
    try:
        granted = await observer.fetch(GRANTED)
        for statement in split(PERMISSIONS):  # as psql sends them
            await administrator.execute(statement)
            assert await observer.fetch(GRANTED) == granted, statement
        assert not administrator.is_in_transaction()
    finally:
        await administrator.close()
        await observer.close()


@pytest.mark.slow
async def test_an_administrator_need_not_be_a_superuser() -> None:
    """The owner of the database who may create roles can run it, repeatedly, and migrates as before."""
    with PostgresServer() as server:  # roles belong to a whole server, and do not exist here yet
        server.execute("create role administrator login createrole", "create database mine owner administrator")
        url = server.url("mine", user="administrator")
        assert await migrate_postgres(url)
        connection = await asyncpg.connect(url)
        try:
            for _ in range(2):
                await connection.execute(PERMISSIONS)
            await connection.execute("update reltask.meta set schema_version = 0")
            owner = await connection.fetchval("select tableowner from pg_tables where tablename = 'jobs'")
        finally:
            await connection.close()
        assert owner == "reltask_migrate"
        assert await migrate_postgres(url)
