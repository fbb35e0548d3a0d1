"""Delays on a server where daylight saving time begins that night."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from reltask.model.job import Failure, NewJob, Outcome, Release
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.postgres.values import WORTH_COPYING
from tests.store.store_harness import new_job, recurring, request, seen

EVENING = datetime(2025, 3, 29, 20, tzinfo=UTC)
DAY = timedelta(days=1)
MOVE = "do $$ begin execute format('alter database %I set timezone to %L', current_database(), '{}'); end $$"


@pytest.fixture
async def store(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A database in Berlin, on the evening before summer time."""
    operator = await asyncpg.connect(postgres_url)
    await operator.execute(MOVE.format("Europe/Berlin"))
    store = PostgresStore(postgres_url, now=lambda: EVENING)
    yield store
    await store.close()
    await operator.execute(MOVE.format("UTC"))
    await operator.close()


async def due(store: PostgresStore, job: NewJob) -> datetime:
    view = await store.read_job(job.id)
    assert view is not None
    return view.due_at


@pytest.mark.parametrize("count", [1, 2, WORTH_COPYING])
async def test_delayed_by_a_day(store: PostgresStore, count: int) -> None:
    """A day is 24 hours, however many jobs are enqueued at once, and whatever the local time."""
    jobs = [new_job(delay=DAY) for _ in range(count)]
    await store.enqueue_jobs(jobs)
    assert await due(store, jobs[-1]) == EVENING + DAY


async def test_declared_again(store: PostgresStore) -> None:
    """The same for a changed schedule."""
    job = recurring(declaration="old")
    await store.enqueue_jobs([job])
    changed = recurring(declaration="new", delay=DAY)
    assert await store.declare_job(changed, seen=seen("old", at=await due(store, job)))
    assert await due(store, job) == EVENING + DAY


async def test_tried_again_and_snoozed_after_a_day(store: PostgresStore) -> None:
    """The same for a failed run's next attempt, and for a snooze."""
    failed, snoozed = new_job(), new_job()
    for job in (failed, snoozed):
        await store.enqueue_jobs([job])
        (claim,) = (await store.claim_jobs(request())).claims
        if job is failed:
            await store.fail_jobs("alice", [Failure(hold=claim.hold, error="", delay=DAY)])
        else:
            release = Release(hold=claim.hold, outcome=Outcome.SNOOZED, error=None, delay=DAY)
            await store.release_jobs("alice", [release])
    assert (await due(store, failed), await due(store, snoozed)) == (EVENING + DAY, EVENING + DAY)
