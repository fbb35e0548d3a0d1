"""The cost of leases, maintenance and one job's history, from their plans: a large ledger is never read whole.

The statements are explained through connections and texts like those of the store, on a ledger of
many rows, most of them too young to be pruned and too old to be counted again.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from reltask.model.lease import LeaseRequest, Term
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.statement import load
from tests.plans.test_claim_plan import nodes, rows_read

RUNS = 60_000
FILL = f"""
insert into reltask.runs (
    job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, claimed_at, finished_at, outcome)
select gen_random_uuid(), 1, 1, 'task ' || i % 20, 'default', 1, ended, ended, ended, ended, 'succeeded'
from generate_series(1, {RUNS}) as i
cross join lateral (select now() - i * interval '10 seconds' as ended) as run;
insert into reltask.leases (name, holder, acquisition, term, acquired_at, heartbeat_at, ttl_ms, expires_at)
select 'lease ' || i, 'alice', gen_random_uuid(), 1, now(), now(), 10000, now() + interval '10 seconds'
from generate_series(1, 1000) as i;
insert into reltask.lease_waiters (name, holder, waiting_until)
select 'lease ' || i % 100, 'holder ' || i, now() + interval '1 minute' from generate_series(1, 10000) as i;
"""
LEADER = values.leader(Term("lease 7", 1))
REQUEST = LeaseRequest(
    name="lease 7", holder="bob", acquisition=uuid4(), ttl=timedelta(seconds=10), waits=timedelta(minutes=1)
)


@pytest.fixture
async def full_ledger(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(postgres_url, PostgresOptions())
    await connection.execute(FILL)
    yield connection
    await connection.close()


async def explain(connection: asyncpg.Connection, verb: str, columns: dict[str, object]) -> dict[str, Any]:
    (statement,) = load("postgres", verb, "numbered")
    arguments = statement.arguments({**columns, "now": None})
    text = await connection.fetchval(f"explain (analyze, format json) {statement.text}", *arguments)
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


def reads(plan: dict[str, Any]) -> list[dict[str, Any]]:
    tables = {"runs", "leases", "lease_waiters", "metrics"}
    return [node for node in nodes(plan) if node.get("Relation Name") in tables and "Scan" in node["Node Type"]]


def check(plan: dict[str, Any], *, at_most: int) -> None:
    """Every read uses an index, and together they read at most this many rows."""
    assert {node["Node Type"] for node in reads(plan)} <= {"Index Scan", "Index Only Scan"}
    assert sum(rows_read(node) for node in reads(plan)) <= at_most


def pruning(older_than: timedelta) -> dict[str, object]:
    return {**LEADER, "older_than": older_than, "surplus_before": None, "limit": 100}


@pytest.mark.slow
async def test_pruning_reads_what_it_removes(full_ledger: asyncpg.Connection) -> None:
    """A batch is found at the old end of the index; if nothing is old enough, one seek finds that."""
    check(await explain(full_ledger, "prune_runs", pruning(timedelta(days=30))), at_most=5)
    check(await explain(full_ledger, "prune_runs", pruning(timedelta(days=1))), at_most=2 * 100 + 5)


@pytest.mark.slow
async def test_counting_reads_the_minutes_that_it_counts(full_ledger: asyncpg.Connection) -> None:
    """Six runs a minute: first ten minutes of the last hour, afterwards new runs and a few before."""
    for _ in range(7):
        check(await explain(full_ledger, "roll_up_runs", LEADER), at_most=13 * 6 + 10)
    check(await explain(full_ledger, "roll_up_runs", LEADER), at_most=3 * 6 + 10)


@pytest.mark.slow
async def test_a_try_reads_its_own_lease_and_its_waiters(full_ledger: asyncpg.Connection) -> None:
    """However many other leases there are."""
    check(await explain(full_ledger, "acquire_lease", values.lease_request(REQUEST)), at_most=110)


BUSY = uuid4()
RUN_OFTEN = """
insert into reltask.runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, finished_at, outcome)
select $1, i, i, 'busy', 'default', 1, ended, ended, ended, 'succeeded'
from generate_series(1, 5000) as i cross join lateral (select now() + (i - 6000) * interval '1 minute' as ended) as run
"""
FIRST_TO_END = "select job_id from reltask.runs order by finished_at limit 1"


@pytest.mark.slow
async def test_runs_of_one_job_are_found_by_its_key(full_ledger: asyncpg.Connection) -> None:
    """A job that ran once, long ago, one that runs often, and an unknown one: each reads only its own rows."""
    await full_ledger.execute(RUN_OFTEN, BUSY)
    old = await full_ledger.fetchval(FIRST_TO_END)
    for learn in ("select", "analyze reltask.runs"):  # without and with statistics
        await full_ledger.execute(learn)
        for job_id, at_most in ((old, 1), (BUSY, 10), (uuid4(), 0), (None, 50)):  # of all: some more, for their order
            columns = {"job_id": job_id, "task": None, "limit": 10}
            check(await explain(full_ledger, "list_runs", columns), at_most=at_most)


@pytest.mark.slow
async def test_a_small_ledger_is_not_counted_at_all(full_ledger: asyncpg.Connection) -> None:
    """Its size has no room for more rows than are kept; only a larger one is counted, by its index."""
    check(await explain(full_ledger, "read_surplus", {"most": 100 * RUNS}), at_most=0)
    check(await explain(full_ledger, "read_surplus", {"most": 1000}), at_most=1000)
