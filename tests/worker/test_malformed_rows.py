"""A row that the constraints of the tables would refuse stops nothing but itself.

Such rows exist only where the constraints are missing, so the tests insert them without.
"""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from reltask import App, events
from reltask.errors import TransientError
from reltask.model.job import Outcome, State
from reltask.model.views import JobView
from reltask.stores.postgres.store import PostgresStore
from reltask.worker import poller
from reltask.worker.run import Run
from reltask.worker.waking import Waking
from tests.store.store_harness import request
from tests.worker.worker_harness import LIVE_PATIENCE, WorkerHarness

HEALTHY = 20
PLANTED = UUID("00000000-0000-4000-8000-00000000bad0")
NO_LOCK_SO_LONG = 9 * 10**18
YEAR_20000 = 568_971_820_800_000_000
Values = dict[str, object]

ON_POSTGRES: dict[str, tuple[Values, State, str]] = {
    "before all time": ({"next_run_time": "-infinity"}, State.DEAD, "next_run_time"),
    "4000 BC": ({"next_run_time": "4000-01-01 BC"}, State.DEAD, "next_run_time"),
    "retried before all time": ({"not_before": "-infinity"}, State.DEAD, "not_before"),
    "started before all time": ({"slot_started_at": "-infinity"}, State.DEAD, "slot_started_at"),
    "an endless lock": ({"lock_timeout_ms": NO_LOCK_SO_LONG}, State.DEAD, "lock_timeout_ms"),
    "a lock of no length": ({"lock_timeout_ms": 0}, State.DEAD, "lock_timeout_ms"),
    "never": ({"next_run_time": "infinity"}, State.READY, ""),
    "the year 20000": ({"next_run_time": "20000-01-01"}, State.READY, ""),
    "a declared job in the year 20000": (
        {"task": "tick", "schedule": '{"every":"1h"}', "next_run_time": "20000-01-01"},
        State.READY,
        "",
    ),
    "enqueued before all time": ({"created_at": "-infinity", "paused_at": "2026-01-01"}, State.PAUSED, ""),
    "no schedule": ({"schedule": "often"}, State.READY, "JSON"),
    "a schedule that loops": ({"schedule": '{"every":"1us"}'}, State.READY, "too short"),
    "arguments over the limit": ({"args": json.dumps({"number": "x" * 1_000_000})}, State.DEAD, "limits.arguments"),
}
"""What is inserted, the state it ends in, and what the error of its only run names."""
ON_SQLITE: dict[str, tuple[Values, State, str]] = {
    "before all time": ({"next_run_time": -(2**63)}, State.DEAD, "next_run_time"),
    "retried before all time": ({"not_before": -9e999}, State.DEAD, "not_before"),
    "started on Monday": ({"slot_started_at": "Monday"}, State.DEAD, "slot_started_at"),
    "an endless lock": ({"lock_timeout_ms": NO_LOCK_SO_LONG}, State.DEAD, "lock_timeout_ms"),
    "a lock of no length": ({"lock_timeout_ms": 0}, State.DEAD, "lock_timeout_ms"),
    "a lock in words": ({"lock_timeout_ms": "two minutes"}, State.DEAD, "lock_timeout_ms"),
    "never": ({"next_run_time": 9e999}, State.READY, ""),
    "the year 20000": ({"next_run_time": YEAR_20000}, State.READY, ""),
    "a declared job in the year 20000": (
        {"task": "tick", "schedule": '{"every":"1h"}', "next_run_time": YEAR_20000},
        State.READY,
        "",
    ),
    "tomorrow": ({"next_run_time": "tomorrow"}, State.READY, ""),
    "enqueued on Monday": ({"created_at": "Monday", "paused_at": 1}, State.PAUSED, ""),
    "no schedule": ({"schedule": "often"}, State.READY, "JSON"),
    "a schedule that loops": ({"schedule": '{"every":"1us"}'}, State.READY, "too short"),
    "arguments over the limit": ({"args": json.dumps({"number": "x" * 1_000_000})}, State.DEAD, "limits.arguments"),
    "no arguments": ({"args": "{"}, State.READY, "arguments"),
}


async def plant_postgres(url: str, values: Values) -> None:
    """Insert a due job of `echo` with these values; no constraint checks them."""
    connection = await asyncpg.connect(url)
    try:
        rules = "select conname from pg_constraint where contype = 'c' and conrelid = 'reltask.jobs'::regclass"
        for (rule,) in await connection.fetch(rules):
            await connection.execute(f'alter table reltask.jobs drop constraint "{rule}"')
        given = {"id": PLANTED, "task": "echo", "next_run_time": "2026-01-01", **values}
        texts = ", ".join(f"'{value}'" for value in given.values())
        await connection.execute(f"insert into reltask.jobs ({', '.join(given)}) values ({texts})")
    finally:
        await connection.close()


_RULES = re.compile(r",\s*(--[^\n]*\s*)*constraint jobs_\w+ check \((.*?)\n    \)", re.DOTALL)


def plant_sqlite(path: Path, values: Values) -> None:
    """The same. SQLite cannot drop a constraint, so the text of the table's definition is changed."""
    given = {"id": str(PLANTED), "task": "echo", "next_run_time": 0, **values}
    with closing(sqlite3.connect(path)) as connection, connection:
        (table,) = connection.execute("select sql from sqlite_master where name = 'reltask_jobs'").fetchone()
        (version,) = connection.execute("pragma schema_version").fetchone()
        connection.execute("pragma writable_schema = on")
        connection.execute("update sqlite_master set sql = ? where name = 'reltask_jobs'", [_RULES.sub("", table)])
        connection.execute(f"pragma schema_version = {version + 1}")
        connection.execute("pragma writable_schema = off")
        connection.commit()
    with closing(sqlite3.connect(path)) as connection, connection:
        marks = ", ".join("?" * len(given))
        connection.execute(f"insert into reltask_jobs ({', '.join(given)}) values ({marks})", list(given.values()))


async def worked(app: App, plant: Callable[[], Awaitable[None]]) -> JobView:
    """Let a worker run healthy jobs beside the planted one. Returns that one as it is then."""
    ran: list[int] = []
    all_ran = asyncio.Event()

    @app.task
    async def echo(number: int) -> None:
        ran.append(number)
        if len(ran) == HEALTHY:
            all_ran.set()

    @app.task(every="1h")
    async def tick() -> None: ...

    async with asyncio.timeout(LIVE_PATIENCE):
        for number in range(HEALTHY // 2):
            await echo.enqueue(number)
        await plant()
        for number in range(HEALTHY // 2, HEALTHY):
            await echo.enqueue(number)
        async with app.worker() as worker:
            await all_ran.wait()
            await worker.drained()
        assert sorted(ran) == list(range(HEALTHY))
        (job,) = [job for job in await app.jobs() if job.id == PLANTED]
        await app.status()
        assert (await app.job(PLANTED).view()) == job
    return job


async def check(app: App, job: JobView, state: State, names: str) -> None:
    """Only the planted job suffers, once, and its ledger row says what is wrong with it."""
    healthy = [run.outcome for run in await app.runs(task="echo") if run.job_id != PLANTED]
    planted = [run for run in await app.runs() if run.job_id == PLANTED]
    assert healthy == [Outcome.SUCCEEDED] * HEALTHY
    assert job.state is state
    assert [run.outcome for run in planted] == ([Outcome.FAILED] if names else [])
    assert all(names in (run.error or "") for run in planted)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ON_POSTGRES)
async def test_malformed_row_on_postgres(postgres_url: str, kind: str) -> None:
    """The other jobs of its claim run at once; the row is dead alone, or waits alone."""
    values, state, names = ON_POSTGRES[kind]
    app = App(postgres_url)
    try:
        job = await worked(app, lambda: plant_postgres(postgres_url, values))
        await check(app, job, state, names)
        store = PostgresStore(postgres_url)
        await store.roll_up_runs(leader=None)
        await store.audit_tasks()
        await store.close()
    finally:
        await asyncio.to_thread(app.close)


@pytest.mark.parametrize("kind", ON_SQLITE)
def test_malformed_row_on_sqlite(harness: WorkerHarness, kind: str) -> None:
    """The other jobs of its claim run at once; the row is dead alone, or waits alone."""
    values, state, names = ON_SQLITE[kind]
    app = harness.app()

    async def plant() -> None:
        plant_sqlite(harness.path, values)

    async def scenario() -> None:
        job = await worked(app, plant)
        await check(app, job, state, names)

    harness.run(scenario())


def test_declaration_replaces_a_schedule_that_cannot_be_read(harness: WorkerHarness) -> None:
    """Else one such row would keep every worker of the app from starting."""
    app = harness.app()
    row = {"task": "tick", "schedule": "often", "declaration": "x", "next_run_time": 1_893_456_000_000_000}

    async def plant() -> None:
        plant_sqlite(harness.path, row)

    async def scenario() -> tuple[str | None, list[Outcome]]:
        job = await worked(app, plant)
        return job.schedule, [run.outcome for run in await app.runs(task="tick")]

    assert harness.run(scenario()) == ('{"every":"1h"}', [Outcome.SUCCEEDED])


def test_a_lock_without_an_end_is_not_renewed(harness: WorkerHarness) -> None:
    """The worker that failed such a row cannot write that, and beats on: when its lock ends, another one does."""
    cut_off, rival = harness.app(), harness.app()
    for app in (cut_off, rival):

        @app.task
        async def echo(number: int) -> None: ...

    async def scenario() -> tuple[list[str], JobView | None]:
        await rival.status()  # creates the tables
        plant_sqlite(harness.path, {"lock_timeout_ms": NO_LOCK_SO_LONG})
        cut_off.faults.error, cut_off.faults.verbs = lambda: TransientError("away"), {"fail_jobs"}
        async with cut_off.worker():
            await asyncio.sleep(60)
            async with rival.worker():
                await rival.log.wait(events.RunFailed)
            cut_off.faults.error = None
        return await rival.outcomes(), await rival.job(PLANTED).view()

    outcomes, job = harness.run(scenario())
    assert outcomes == ["lost", "failed"]
    assert job is not None
    assert job.state is State.DEAD


async def test_a_lock_without_an_end_is_not_renewed_on_postgres(postgres_url: str) -> None:
    """The same, as the statement has it: the lock ends when the claim said that it would."""
    store = PostgresStore(postgres_url)
    await plant_postgres(postgres_url, {"lock_timeout_ms": NO_LOCK_SO_LONG})
    (claim,) = (await store.claim_jobs(request(tasks=["echo"], lock_timeout=timedelta(minutes=2)))).claims
    assert (await store.heartbeat_jobs("alice", [claim.hold], alive_for=timedelta(minutes=1))).renewed
    await store.close()
    connection = await asyncpg.connect(postgres_url)
    (length,) = await connection.fetchrow("select lock_expires_at - locked_at from reltask.jobs")
    await connection.close()
    assert length == timedelta(minutes=2)


# What raises between a claim's answer and the begin of its runs


def test_claimed_jobs_begin_although_the_next_look_cannot_be_planned(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that is renewed but never begun would wait for ever."""
    plan, times = Waking.answered, iter([TypeError("an unforeseen time")])

    def fails_once(*args: Any, **named: Any) -> None:
        for error in times:
            raise error
        plan(*args, **named)

    monkeypatch.setattr(Waking, "answered", fails_once)
    assert _outcomes_of_one_job(harness) == (["succeeded"], 0.0)


def test_claimed_jobs_are_released_if_no_run_can_be_made(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim has no run that could end it: its rows are released with their attempts, and claimed again."""
    times = iter([OverflowError("an unforeseen lock timeout")])

    def fails_once(*args: Any) -> Run:
        for error in times:
            raise error
        return Run(*args)

    monkeypatch.setattr(poller, "Run", fails_once)
    outcomes, seconds = _outcomes_of_one_job(harness)
    assert outcomes == ["released", "succeeded"]
    assert seconds < 60


def _outcomes_of_one_job(harness: WorkerHarness) -> tuple[list[str], float]:
    app = harness.app()

    @app.task
    async def work() -> None: ...

    async def scenario() -> tuple[list[str], float]:
        await work.enqueue()
        begin = harness.seconds()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        return await app.outcomes(), harness.seconds() - begin

    return harness.run(scenario())
