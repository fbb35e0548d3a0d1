"""The queries of monitoring.sql, as shipped, on every database. They use the database's own clock."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from reltask.model.durable import NewSignal
from reltask.model.job import Completion, Suspension
from reltask.model.lease import Grant, Term
from reltask.stores.migration import Dialect, schema_scripts
from reltask.stores.statement import split
from reltask.stores.store import Store
from tests.store.store_harness import (
    Backend,
    MssqlBackend,
    PostgresBackend,
    SqliteBackend,
    new_job,
    request,
    worker_record,
)
from tests.store.test_leases import asked

LEADERS, STUCK, ORPHANED, DEAD, TASKS, WAITING, UNFOLDED, UNCONSUMED = range(8)
"""The queries, in their order."""


@pytest.fixture
async def at(backend: Backend) -> AsyncIterator[Callable[[timedelta], Store]]:
    """A store whose time is the database's, or some time before it."""
    stores = []

    def store(ago: timedelta = timedelta(0)) -> Store:
        stores.append(backend.store(lambda: datetime.now(UTC) - ago))
        return stores[-1]

    await store(timedelta(0)).open()
    yield store
    for opened in stores:
        await opened.close()


At = Callable[[timedelta], Store]
NOW = timedelta(0)
MINUTES = timedelta(minutes=10)


async def ask(backend: Backend, question: int) -> list[dict[str, Any]]:
    """The rows of one query."""
    dialects: dict[type[Backend], Dialect] = {SqliteBackend: "sqlite", MssqlBackend: "mssql"}
    dialect = dialects.get(type(backend), "postgres")
    text = split(dict(schema_scripts(dialect))["monitoring.sql"])[question]
    if isinstance(backend, SqliteBackend):
        with closing(sqlite3.connect(backend.path)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(text)]
    if isinstance(backend, MssqlBackend):
        with closing(backend.connection.cursor()) as cursor:
            cursor.execute(text)
            return [
                dict(zip([column[0] for column in cursor.description], row, strict=True)) for row in cursor.fetchall()
            ]
    assert isinstance(backend, PostgresBackend)
    postgres = await asyncpg.connect(backend.url)
    try:
        return [dict(row) for row in await postgres.fetch(text)]
    finally:
        await postgres.close()


async def lead(at: At, name: str, *, since: timedelta, metadata: str = "{}") -> Grant:
    """A lease acquired some time ago, whose holder is alive."""
    wanted = asked(f"leader of {name}", name=name, ttl=timedelta(hours=1))
    answer = await at(since).acquire_lease(wanted)
    assert answer.term is not None
    grant = Grant(term=Term(name, answer.term), acquisition=wanted.acquisition)
    assert await at(NOW).heartbeat_lease(grant, metadata=metadata)
    return grant


def ended(ago: timedelta) -> str:
    return f'{{"last_run": "{(datetime.now(UTC) - ago).isoformat()}", "items": 3, "errors": 1}}'


async def test_who_leads_what(backend: Backend, at: At) -> None:
    """Each lease with its holder, if it has one, and its metadata."""
    await lead(at, "a", since=MINUTES, metadata=ended(NOW))
    await at(NOW).resign_lease(await lead(at, "b", since=MINUTES))
    await at(NOW).acquire_lease(asked("carl", name="a", waits=MINUTES))
    first, second = await ask(backend, LEADERS)
    assert (first["name"], first["leader"], first["term"], first["waiting"]) == ("a", "leader of a", 1, 1)
    assert (str(first["items"]), str(first["errors"])) == ("3", "1")
    assert (second["name"], second["leader"], second["waiting"]) == ("b", None, 0)


async def test_which_leader_is_stuck(backend: Backend, at: At) -> None:
    """It sends heartbeats and has finished nothing for long. New ones, and those without metadata, are not."""
    await lead(at, "works", since=MINUTES, metadata=ended(NOW))
    await lead(at, "new", since=NOW, metadata=ended(MINUTES))
    await lead(at, "quiet", since=MINUTES)
    assert await ask(backend, STUCK) == []
    await lead(at, "stuck", since=MINUTES, metadata=ended(MINUTES))
    await lead(at, "reltask:maintenance", since=MINUTES)
    assert [row["name"] for row in await ask(backend, STUCK)] == ["reltask:maintenance", "stuck"]


async def test_which_lease_is_not_acquired(backend: Backend, at: At) -> None:
    """Ended for a while, though a candidate waits for it."""
    await at(MINUTES).acquire_lease(asked("alice"))
    assert await ask(backend, ORPHANED) == []
    await at(MINUTES).acquire_lease(asked("bob", waits=2 * MINUTES))
    assert [row["name"] for row in await ask(backend, ORPHANED)] == ["reports"]


async def test_which_workers_died(backend: Backend, at: At) -> None:
    """Without a heartbeat past its alive time, marked or not; not stopped or living ones."""
    for name in ("dead", "stopped"):
        await at(MINUTES).register_worker(worker_record(name))
    await at(MINUTES).stop_worker("stopped")
    await at(NOW).register_worker(worker_record("alive"))
    assert [row["id"] for row in await ask(backend, DEAD)] == ["dead"]
    assert await at(NOW).mark_dead_workers(leader=None) == ["dead"]
    (row,) = await ask(backend, DEAD)
    assert row["dead_at"] is not None


async def test_how_tasks_do(backend: Backend, at: At) -> None:
    """Runs and failures of the last hour."""
    store = at(NOW)
    await store.enqueue_jobs([new_job()])
    (claim,) = (await store.claim_jobs(request())).claims
    await store.complete_jobs("alice", [Completion(hold=claim.hold)])
    await store.roll_up_runs(leader=None)
    (row,) = await ask(backend, TASKS)
    assert (row["task"], row["runs"], row["failed_percent"]) == ("greet", 1, 0)


async def suspended(store: Store) -> UUID:
    """A durable function that only a signal wakes."""
    await store.enqueue_jobs([new_job()])
    (claim,) = (await store.claim_jobs(request())).claims
    await store.suspend_jobs("alice", [Suspension(hold=claim.hold, seen=0, wake_at=None)])
    return claim.job_id


async def test_which_functions_wait(backend: Backend, at: At) -> None:
    """Counted by task; jobs that run, or wait for their first run, are not."""
    store = at(NOW)
    assert await ask(backend, WAITING) == []
    await suspended(store)
    await suspended(store)
    await store.enqueue_jobs([new_job(), new_job(delay=MINUTES)])
    assert (await store.claim_jobs(request())).claims
    (row,) = await ask(backend, WAITING)
    assert (row["task"], row["suspended"]) == ("greet", 2)
    assert str(row["next_wake"]).startswith("8999-12-31")


async def test_which_marks_no_worker_folds(backend: Backend, at: At) -> None:
    """Those of the last minute may still be folded."""
    jobs = [await suspended(at(NOW)) for _ in range(2)]
    for job_id, ago in zip(jobs, (MINUTES, NOW), strict=True):
        await at(ago).send_signals([NewSignal(id=str(job_id), name="go", value="1", job_id=job_id)])
    (row,) = await ask(backend, UNFOLDED)
    assert (str(row["job_id"]).lower(), row["marks"]) == (str(jobs[0]), 1)
    assert await at(NOW).fold_marks() == 2
    assert await ask(backend, UNFOLDED) == []


async def test_signals_that_are_not_consumed_are_listed(backend: Backend, at: At) -> None:
    """Those older than a day whose slot goes on, by job and name; not those of a job that is gone."""
    old = timedelta(days=1, minutes=1)
    jobs = [await suspended(at(old)) for _ in range(3)]
    for nth, (job_id, ago) in enumerate([(jobs[0], old), (jobs[0], old), (jobs[1], NOW), (jobs[2], old)]):
        await at(ago).send_signals([NewSignal(id=str(nth), name="typo", value="1", job_id=job_id)])
    assert await at(NOW).discard_job(jobs[2])
    (row,) = await ask(backend, UNCONSUMED)
    assert (str(row["job_id"]).lower(), row["name"], row["signals"]) == (str(jobs[0]), "typo", 2)
