"""An attacker who has the password of one role, against running workers.

`reltask_enqueue` and `reltask_read` must not stop, delay, change or misreport any job but their own; `reltask_run` must
not change the ledger's past.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from reltask import App, Limit
from reltask.model.views import JobView
from reltask.stores.migration import schema_scripts
from reltask.stores.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer
from tests.security import attacker
from tests.security.attacker import Attack

LEAST = 2_000
"""The least number of statements of each attack."""
PATIENCE = 60.0
EVERY = 50
"""Statements between two healthy jobs."""
PERMISSIONS = dict(schema_scripts("postgres"))["permissions.sql"]
LOGIN = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'attack_{0}') then create role attack_{0} login; end if;
    grant reltask_{0} to attack_{0};
end $$
"""
SEED = """
insert into reltask.jobs (id, task, key, next_run_time, paused_at)
values (gen_random_uuid(), 'work', 'next year', now() + interval '1 year', null),
       (gen_random_uuid(), 'work', 'paused', now(), now());
insert into reltask.runs
    (job_id, fence, slot_no, task, queue, worker, attempt, nominal_time, due_at, finished_at, outcome)
select gen_random_uuid(), 1, 1, 'work', 'default', 'w', 1, now(), now(), now() - age * interval '30 minutes', 'failed'
from generate_series(1, 6) as age;
insert into reltask.metrics
select date_trunc('minute', now() - age * interval '30 minutes'), 'work', 7, 0, 1, 1, 1, 1
from generate_series(1, 6) as age;
"""
GUARDED = "select * from reltask.jobs where key in ('next year', 'paused') order by key"
RUNS = "select * from reltask.runs where finished_at < $1::timestamptz order by finished_at, job_id"
METRICS = "select * from reltask.metrics where minute < $1::timestamptz order by minute, task"


class Site:
    """A database with its roles, a running worker, and its owner's view of it."""

    def __init__(self, server: PostgresServer, url: str, owner: asyncpg.Connection) -> None:
        self._server, self._name = server, url.rpartition("/")[2]
        self.owner = owner
        self.app = App(self.url("run"))
        self.ran: dict[str, int] = {}
        self.ticks = asyncio.Event()
        self._done: dict[str, asyncio.Event] = {}

        @self.app.task
        async def work(token: str) -> None:
            self.ran[token] = self.ran.get(token, 0) + 1
            if token in self._done:
                self._done[token].set()

        @self.app.task(limit=Limit("healthy", running=1))
        async def send(token: str) -> None:
            await work(token)

        @self.app.task(limit=Limit("smtp", running=1))
        async def attacked() -> None: ...

        @self.app.task(every="1s")
        async def tick() -> None:
            self.ticks.set()

        self.work, self.send = work, send

    def url(self, role: str) -> str:
        return self._server.url(self._name, user=f"attack_{role}")

    async def run_healthy(self) -> UUID:
        """Enqueue a job, with a limit or without one by turns, and wait until it has run."""
        token = uuid4().hex
        self._done[token] = asyncio.Event()
        job = await (self.work, self.send)[len(self._done) % 2].enqueue(token)
        async with asyncio.timeout(PATIENCE):
            await self._done[token].wait()
        return job.id

    async def attack(self, role: str, *, with_healthy_jobs: bool) -> tuple[Attack, list[UUID]]:
        """Send the statements as this role, with healthy jobs in between."""
        known = list(attacker.statements(await attacker.columns(self.owner)))
        random.Random(25).shuffle(known)
        connection = await asyncpg.connect(
            self.url(role), server_settings={"lock_timeout": "100", "statement_timeout": "2000"}
        )
        attack, healthy = Attack(connection), []
        try:
            for nth, statement in enumerate(known):
                await attack.send(statement)
                if with_healthy_jobs and nth % EVERY == 0:
                    healthy.append(await self.run_healthy())
            if with_healthy_jobs:
                healthy += await self._hold_everything(connection)
        finally:
            connection.terminate()
        return attack, healthy

    async def _hold_everything(self, connection: asyncpg.Connection) -> list[UUID]:
        """A transaction that stays open and holds every lock it can get, while healthy jobs run."""
        held = Attack(connection)
        await held.send("discard all")
        await held.send("begin")
        for table in attacker.ROWS:
            for statement in (
                *(f"lock table reltask.{table} in {mode} mode nowait" for mode in attacker.LOCKS),
                f"select * from reltask.{table} for update",
                f"select count(*) from reltask.{table}",
            ):
                await held.send("savepoint before")
                try:
                    await connection.execute(statement)
                except asyncpg.PostgresError:
                    await connection.execute("rollback to savepoint before")
        return [await self.run_healthy() for _ in range(3)]


@asynccontextmanager
async def site(server: PostgresServer, url: str) -> AsyncIterator[Site]:
    logins = [LOGIN.format(role) for role in ("run", "enqueue", "read")]
    server.execute(PERMISSIONS, *logins, SEED, database=url.rpartition("/")[2])
    owner = await asyncpg.connect(url)
    made = Site(server, url, owner)
    try:
        async with made.app.worker():
            await made.run_healthy()
            yield made
    finally:
        await owner.close()
        await asyncio.to_thread(made.app.close)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["enqueue", "read"])
async def test_low_role_harms_no_other_job(postgres_server: PostgresServer, postgres_url: str, role: str) -> None:
    """Healthy jobs run once each while it attacks; rows that are not its own stay as they are; all reads work."""
    async with site(postgres_server, postgres_url) as made:
        began = await made.owner.fetchval("select now()")
        before = await seen_by_owner(made, began)
        jobs = await made.owner.fetchval("select count(*) from reltask.jobs")
        attack, healthy = await made.attack(role, with_healthy_jobs=True)
        made.ticks.clear()
        async with asyncio.timeout(PATIENCE):
            await made.ticks.wait()
        assert await seen_by_owner(made, began) == before
        await assert_ran_once(made, healthy)
        await assert_all_reads_work(made)
        (tick,) = [job for job in await made.app.jobs(task="tick", limit=100_000) if job.schedule]
        assert tick.schedule == '{"every":"1s"}'
        if role == "read":
            assert await made.owner.fetchval("select count(*) from reltask.jobs") == jobs
            assert await made.owner.fetchval("select count(*) from reltask.workers") == 1
        assert attack.sent >= LEAST
        assert attack.accepted


async def seen_by_owner(made: Site, began: datetime) -> list[list[Any]]:
    """What an attack must not change: jobs that wait, and the ledger and the metrics until it began."""
    hour_ago = began - timedelta(hours=1)  # maintenance counts the last one again
    return [
        await made.owner.fetch(GUARDED),
        await made.owner.fetch(RUNS, began),
        await made.owner.fetch(METRICS, hour_ago),
    ]


async def assert_ran_once(made: Site, healthy: list[UUID]) -> None:
    """One body and one ledger row each, at the first attempt."""
    assert set(made.ran.values()) == {1}
    runs = await made.owner.fetch(
        "select job_id, fence, attempt, outcome from reltask.runs where job_id = any ($1)", healthy
    )
    assert sorted(runs) == sorted((job, 1, 1, "succeeded") for job in healthy)


async def assert_all_reads_work(made: Site) -> None:
    """What people and dashboards see, whatever is in the tables."""
    everything = 100_000
    jobs: list[JobView] = await made.app.jobs(limit=everything)
    assert len(jobs) == await made.owner.fetchval("select count(*) from reltask.jobs")
    assert await made.app.runs(limit=everything)
    assert (await made.app.status()).workers_alive == 1
    store = PostgresStore(made.url("read"))
    try:
        assert await store.list_workers()
        await store.list_leases()
        await store.list_metrics(since=timedelta(days=1))
        await store.audit_tasks()
        await store.audit_slots(kept_for=timedelta(hours=1))
        await store.audit_waiting(lock_timeout=timedelta(minutes=2))
        await store.audit_losses()
    finally:
        await store.close()


@pytest.mark.slow
async def test_workers_role_changes_no_past(postgres_server: PostgresServer, postgres_url: str) -> None:
    """It may add entries that end now, and prune what is older than an hour. It changes and back-dates nothing."""
    async with site(postgres_server, postgres_url) as made:
        began = await made.owner.fetchval("select now()")
        past, hour = began - timedelta(minutes=2), began - timedelta(minutes=61)
        runs, metrics = await made.owner.fetch(RUNS, past), await made.owner.fetch(METRICS, hour)
        recent = [run for run in runs if run["finished_at"] > began - timedelta(minutes=59)]
        assert (len(runs), len(recent), len(metrics)) == (6, 1, 4)
        attack, _ = await made.attack("run", with_healthy_jobs=False)
        kept = await made.owner.fetch(RUNS, past)
        assert [run for run in kept if run not in runs] == []
        assert [run for run in kept if run in recent] == recent
        assert [row for row in await made.owner.fetch(METRICS, hour) if row not in metrics] == []
        assert attack.sent >= LEAST
