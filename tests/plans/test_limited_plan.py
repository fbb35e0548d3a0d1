"""The cost of a claim of jobs with limits, from its plan: one seek per key, and no key compared with every other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from reltask.stores.postgres import values
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.statement import load
from tests.plans.test_claim_plan import REQUEST, nodes, rows_read, table_reads

KEYS, JOBS = 400, 4_000
LIMITS = "insert into reltask.limits (name, running, declaration, changed_at) values ('each', 1, '', now())"
FILL = f"""
insert into reltask.jobs (id, task, queue, next_run_time, limit_key)
select gen_random_uuid(), 'known', 'default', now() - interval '1 minute', 'each:' || i % {KEYS}
from generate_series(1, {JOBS}) as i
"""
LOOK = replace(REQUEST, limit=KEYS // 2)


def limited(request: Any) -> tuple[str, list[Any]]:
    (statement,) = load("postgres", "claim_limited", "numbered")
    columns = {**values.request(request), "now": None, "skips": False, "patience": "1s"}
    return statement.text, statement.arguments(columns)


@pytest.mark.slow
async def test_a_look_at_many_keys_reads_a_few_rows_of_each(postgres_url: str) -> None:
    """Without statistics, as in a new database: its lists of keys are hashed, and jobs are found by key or by id."""
    connection = await connect(postgres_url, PostgresOptions())
    try:
        await connection.execute(LIMITS)
        await connection.execute(FILL)
        for _ in range(2):  # at keys that are new, and at keys that are counted
            text, arguments = limited(LOOK)
            found = await connection.fetchval(f"explain (analyze, format json) {text}", *arguments)
            plan: dict[str, Any] = json.loads(found)[0]["Plan"]
            reads = table_reads(plan)
            assert {node["Index Name"] for node in reads} <= {"jobs_limited", "jobs_pkey", "jobs_holding"}
            assert sum(rows_read(node) for node in reads) < 20 * KEYS
            compared = sum(node.get("Rows Removed by Join Filter", 0) * node["Actual Loops"] for node in nodes(plan))
            assert compared < 20 * KEYS
    finally:
        await connection.close()


@pytest.mark.slow
async def test_the_longest_statement_is_planned_once(postgres_url: str) -> None:
    """The driver keeps it although it is long; a plan takes longer than what it does."""
    connection = await connect(postgres_url, PostgresOptions())
    try:
        for _ in range(3):
            text, arguments = limited(LOOK)
            await connection.fetch(text, *arguments)
        plans = "select generic_plans, custom_plans from pg_prepared_statements where statement = $1"
        assert [tuple(row) for row in await connection.fetch(plans, text)] == [(3, 0)]
    finally:
        await connection.close()
