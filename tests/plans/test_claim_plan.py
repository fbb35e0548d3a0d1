"""The cost of the claim, from its plan: it must not grow with the table.

The statement is explained through a connection and a compiled text like those of the store, on a
table with many future rows, many due rows of unknown tasks, and paused rows.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest
from msgspec.structs import replace

from reltask.model.job import ClaimRequest
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.statement import load

FILL = """
insert into reltask.jobs (id, task, queue, priority, next_run_time, paused_at)
select gen_random_uuid(), kind.task, 'default', i % 10, now() + kind.due + i * interval '1 millisecond',
       case when kind.paused then now() end
from generate_series(1, 20000) as i
cross join (values
    ('known', interval '1 day', false),
    ('known', interval '-1 day', true),
    ('foreign', interval '-1 day', false),
    ('stranger', interval '-1 day', false)
) as kind (task, due, paused);
"""

DUE = """
insert into reltask.jobs (id, task, next_run_time)
select gen_random_uuid(), 'known', now() - interval '1 minute' from generate_series(1, 50);
"""

LOW = """
insert into reltask.jobs (id, task, priority, next_run_time)
select gen_random_uuid(), 'known', 9, now() - interval '1 hour' from generate_series(1, 5000);
"""

REQUEST = ClaimRequest(
    worker="w",
    token=uuid4(),
    queues=["default", "mail"],
    tasks=["after", "known", "zebra"],
    limit=10,
    lock_timeout=timedelta(minutes=2),
    isolated=True,
    alive_for=timedelta(minutes=1),
)


@pytest.fixture
async def full_table(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(postgres_url, PostgresOptions())
    await connection.execute(FILL)
    await connection.execute(DUE)
    yield connection
    await connection.close()


async def explain(connection: asyncpg.Connection, options: str, request: ClaimRequest = REQUEST) -> dict[str, Any]:
    (statement,) = load("postgres", "claim_jobs", "numbered")
    arguments = statement.arguments({**values.request(request), "now": None})
    text = await connection.fetchval(f"explain ({options}, format json) {statement.text}", *arguments)
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def table_reads(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [node for node in nodes(plan) if node.get("Relation Name") == "jobs" and "Scan" in node["Node Type"]]


def sorted_input(sort: dict[str, Any]) -> list[dict[str, Any]]:
    """What a sort reads. Other parts of the statement are below its topmost node too."""
    return [child for child in sort["Plans"] if child["Parent Relationship"] == "Outer"]


def rows_read(node: dict[str, Any]) -> float:
    loops = node["Actual Loops"]
    return float((node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) * loops)


@pytest.mark.slow
async def test_claim_reads_a_number_of_rows_that_does_not_depend_on_the_table(full_table: asyncpg.Connection) -> None:
    """80 000 rows that are not for this worker are not read: every read is an index seek that ends at once."""
    await full_table.execute("analyze reltask.jobs")
    plan = await explain(full_table, "analyze")
    reads = table_reads(plan)
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan"}
    assert any(node.get("Index Name") == "jobs_claimable" for node in reads)
    assert sum(rows_read(node) for node in reads) < 100


@pytest.mark.slow
async def test_paused_lanes_and_the_oldest_place_read_a_few_rows(full_table: asyncpg.Connection) -> None:
    """20 000 due jobs of a paused task are not read; the lane that waits longest costs a seek and its few rows."""
    await full_table.execute(
        "insert into reltask.pauses values ('task', 'foreign', null, 'me', now()), ('queue', 'mail', null, 'me', now())"
    )
    await full_table.execute(LOW)
    await full_table.execute("analyze reltask.jobs")
    request = replace(REQUEST, tasks=["after", "foreign", "known", "zebra"], oldest=2)
    plan = await explain(full_table, "analyze", request)
    reads = table_reads(plan)
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan"}
    assert sum(rows_read(node) for node in reads) < 130
    locked = [node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan) if node["Node Type"] == "LockRows"]
    assert sorted(filter(None, locked)) == [2, REQUEST.limit - 2]


@pytest.mark.slow
async def test_claim_locks_no_more_rows_than_it_takes(full_table: asyncpg.Connection) -> None:
    """The limit applies inside the lanes: another claim finds every row free that this one did not take."""
    plan = await explain(full_table, "analyze")
    locked = [node["Actual Rows"] * node["Actual Loops"] for node in nodes(plan) if node["Node Type"] == "LockRows"]
    assert max(locked) == REQUEST.limit


@pytest.mark.slow
async def test_claim_sorts_lanes_and_never_the_table(full_table: asyncpg.Connection) -> None:
    """The index gives the due order; only a few lanes and the answer are sorted."""
    plan = await explain(full_table, "analyze")
    sorts = [node for node in nodes(plan) if node["Node Type"] in {"Sort", "Incremental Sort"}]
    assert all(node["Actual Rows"] <= REQUEST.limit for node in sorts)
    assert not [node for node in sorts for child in sorted_input(node) if table_reads(child)]


@pytest.mark.slow
async def test_plan_made_on_an_empty_table_is_the_plan_for_a_full_one(postgres_url: str) -> None:
    """Workers start before there are jobs, and keep their plan: it must also suit a full table."""
    connection = await connect(postgres_url, PostgresOptions())
    try:
        if connection.get_server_version() < (16,):
            pytest.skip("EXPLAIN shows generic plans from PostgreSQL 16 on")
        plan = await explain(connection, "generic_plan")
    finally:
        await connection.close()
    found = {(node["Node Type"], node.get("Index Name")) for node in table_reads(plan)}
    assert {kind for kind, _ in found} <= {"Index Scan", "Index Only Scan"}
    assert {"jobs_claimable", "jobs_expiring", "jobs_pkey"} == {name for _, name in found}
