"""An enqueue that is sent again on PostgreSQL, at the worst moment."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from reltask.errors import AmbiguousError
from reltask.model.clock import SystemClock
from reltask.model.job import Completion
from reltask.producer.enqueue import insert_surely
from reltask.resilience import Policy
from reltask.stores.postgres.connections import PostgresOptions
from reltask.stores.postgres.store import PostgresStore
from tests.store.store_harness import new_job, request

GATE = 42
SET_UP = """
create function reltask.gate() returns trigger language plpgsql as $$
begin
    perform pg_advisory_xact_lock_shared(42);
    return new;
end $$;
create trigger gate before insert on reltask.jobs for each row
when (current_setting('application_name') = 'resender') execute function reltask.gate();
"""
WAITS = "select count(*) from pg_locks where locktype = 'advisory' and not granted"


class LossyStore(PostgresStore):
    """Loses its first request, which may arrive later."""

    lost = False

    async def _send(self, verb: str, columns: dict[str, object], *, writes: bool) -> list[Any]:
        if verb == "enqueue_job" and not self.lost:
            self.lost = True
            raise AmbiguousError("lost")
        return await super()._send(verb, columns, writes=writes)


@pytest.fixture
async def operator(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Holds the lock that the resend waits for between its snapshot and its insert."""
    connection = await asyncpg.connect(postgres_url)
    await connection.execute(SET_UP)
    await connection.execute("select pg_advisory_lock($1)", GATE)
    yield connection
    await connection.close()


async def test_a_resend_brings_no_ended_job_back(postgres_url: str, operator: asyncpg.Connection) -> None:
    """The first request arrives, its job is claimed and done, all between the resend's snapshot and its insert."""
    policy = Policy(clock=SystemClock(), rng=random.Random(1))
    resender = LossyStore(postgres_url, options=PostgresOptions(application_name="resender"), policy=policy)
    late = PostgresStore(postgres_url)
    job = new_job()
    sending = asyncio.create_task(insert_surely([job], resender))
    while not await operator.fetchval(WAITS):
        pass
    assert await late.enqueue_jobs([job]) == {job.id}
    (claim,) = (await late.claim_jobs(request())).claims
    assert await late.complete_jobs("alice", [Completion(hold=claim.hold)])
    await operator.execute("select pg_advisory_unlock($1)", GATE)
    assert await sending == {job.id}
    assert await late.list_jobs() == []
    assert [run.fence for run in await late.list_runs()] == [1]
    await resender.close()
    await late.close()
