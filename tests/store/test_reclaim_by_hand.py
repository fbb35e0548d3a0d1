"""Reclaiming by hand: the script for DBAs does what a worker does. It uses the database's own clock."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from reltask.model.durable import StepKind, StepState
from reltask.model.job import Outcome, State
from reltask.stores.migration import schema_scripts
from tests import mssql_server
from tests.store.store_harness import (
    LOCK,
    Backend,
    MssqlBackend,
    Now,
    PostgresBackend,
    SqliteBackend,
    StoreHarness,
    child,
    new_job,
    step,
)


@pytest.fixture
async def past(backend: Backend) -> AsyncIterator[StoreHarness]:
    """A store whose claims have expired by the database's clock."""
    now = Now(datetime.now(UTC) - 2 * LOCK)
    store = backend.store(now)
    await store.open()
    yield StoreHarness(store, now, backend)
    await store.close()


async def run_script(backend: Backend) -> None:
    if isinstance(backend, SqliteBackend):
        with closing(sqlite3.connect(backend.path)) as connection:
            connection.executescript(dict(schema_scripts("sqlite"))["003-reclamation-query.sql"])
    elif isinstance(backend, MssqlBackend):
        mssql_server.run(backend.connection, dict(schema_scripts("mssql"))["003-ReclamationQuery.sql"])
    else:
        assert isinstance(backend, PostgresBackend)
        postgres = await asyncpg.connect(backend.url)
        await postgres.execute(dict(schema_scripts("postgres"))["003-reclamation-query.sql"])
        await postgres.close()


async def test_an_expired_claim_is_freed(past: StoreHarness) -> None:
    """With a ledger row; its progress stays for the next run, and a claim that is valid is left alone."""
    lost = await past.claimed()
    assert await past.store.record_progress("alice", lost.hold, "3")
    valid = await past.claimed(new_job(lock_timeout=timedelta(days=1)))
    await run_script(past.backend)
    assert [run.outcome for run in await past.runs(lost.job_id)] == [Outcome.LOST]
    assert ((await past.job(lost.job_id)).state, (await past.job(valid.job_id)).state) == (State.READY, State.CLAIMED)
    assert (await past.claim_one()).progress == "3"


async def test_a_child_that_dies_reports_its_end(past: StoreHarness) -> None:
    """Once: its parent becomes due when the mark is folded. A child with attempts left goes on as a child."""
    parent = await past.claimed()
    await past.add(child(parent, 0, max_attempts=1), child(parent, 1))
    assert await past.record(parent, step("labels", kind=StepKind.RUN, state=StepState.WAITING, pending=2))
    assert await past.suspend(parent)
    claims = [await past.claim_child(), await past.claim_child()]
    for _ in range(2):
        await run_script(past.backend)
    (end,) = (await past.waits(parent)).ends
    assert (end.nth, end.outcome, end.error) == (0, Outcome.FAILED, "reclaimed by hand")
    dead, alive = sorted([await past.job(claim.job_id) for claim in claims], key=lambda job: job.state)
    assert (dead.state, dead.parent_id, alive.state, alive.parent_id) == (
        State.DEAD,
        None,
        State.READY,
        parent.job_id,
    )
    past.now.value = datetime.now(UTC) + timedelta(seconds=1)
    assert await past.store.fold_marks() == 1
    assert (await past.steps(parent.job_id))["labels"].pending == 1
    assert await past.store.audit_durable(kept_for=timedelta(hours=1)) == []
