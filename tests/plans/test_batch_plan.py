"""The cost of a batch, from its plan: each row is looked up by its id, whatever the statistics.

A store's own sessions keep one plan for all calls, so the plan without values counts. Other
sessions, such as a user's or those behind PgBouncer, plan each call with its values.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from reltask.model.job import Completion, Failure, Hold, NewJob, Outcome, Release
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.statement import Statement, load
from tests.plans.test_claim_plan import FILL, nodes
from tests.postgres_server import PostgresServer

HOLDS = [Hold(uuid4(), 1) for _ in range(5)]
BATCHES: dict[str, values.Columns] = {
    "enqueue_jobs": values.new_jobs([NewJob(id=hold.job_id, task="t") for hold in HOLDS]),
    "enqueue_limited": values.new_jobs([NewJob(id=hold.job_id, task="t", limits=("k",)) for hold in HOLDS]),
    "complete_jobs": values.completions([Completion(hold) for hold in HOLDS]),
    "complete_one_offs": {**values.completions([Completion(hold) for hold in HOLDS]), "patience": "100ms"},
    "complete_limited": {**values.completions([Completion(hold) for hold in HOLDS]), "patience": "100ms"},
    "fail_jobs": values.failures([Failure(hold=hold, error="e", delay=timedelta(0)) for hold in HOLDS]),
    "release_jobs": values.releases([Release(hold=hold, outcome=Outcome.RELEASED) for hold in HOLDS]),
    "heartbeat_jobs": {**values.holds(HOLDS), "alive_for": timedelta(minutes=1), "tokens": [], "pending": []},
    "read_holds": values.holds(HOLDS),
    "read_keys": values.names([("t", "k"), ("t", "l")]),
    "read_outcomes": values.holds(HOLDS),
}
READ = {
    "enqueue_jobs": {"jobs", "runs"},
    "enqueue_limited": {"jobs", "runs"},
    "heartbeat_jobs": {"jobs", "workers"},
    "read_outcomes": {"runs"},
}
"""The tables in which a verb looks up rows, if it is not the jobs alone."""
FOUND_BY = {"read_keys": "COALESCE(key"}
"""The index expression, if it is not the id."""
WALKS = {"heartbeat_jobs": ["jobs_expiring"] * 2}
"""A heartbeat reads all held rows, but only for claims whose answer was lost, or is late by a whole interval."""


async def kept_plan(connection: asyncpg.Connection, statement: Statement) -> Any:
    """The plan that a store's own session makes once, and keeps."""
    await connection.execute(f"prepare batch as {statement.text.rstrip(';')}")
    nothing = ", ".join(["null"] * len(statement.names))
    return await connection.fetchval(f"explain (format json) execute batch ({nothing})")


async def plan_for_values(connection: asyncpg.Connection, statement: Statement, columns: values.Columns) -> Any:
    """The plan that another session makes for these values."""
    return await connection.fetchval(f"explain (format json) {statement.text}", *statement.arguments(columns))


def assert_found_by_id(verb: str, answer: Any) -> None:
    plan: dict[str, Any] = json.loads(answer)[0]["Plan"]
    reads = [node for node in nodes(plan) if "Scan" in node["Node Type"] and node.get("Relation Name")]
    assert {node["Relation Name"] for node in reads} == READ.get(verb, {"jobs"})
    by = FOUND_BY.get(verb, "id")
    walks = [node for node in reads if by not in node.get("Index Cond", node.get("Recheck Cond", ""))]
    assert [node.get("Index Name") for node in walks] == WALKS.get(verb, [])[: len(walks)]


@pytest.fixture(scope="module")
def filled(postgres_server: PostgresServer, postgres_template: str) -> Iterator[dict[str, str]]:
    """Databases with statistics, which no test of this module changes: by what their tables hold."""
    fills = {"empty": (), "full": (FILL,), "full, with a ledger": (FILL, LEDGER)}
    urls = {fill: postgres_server.create_database(f"batches {fill}", template=postgres_template) for fill in fills}
    for fill, statements in fills.items():
        preparations = (*statements, "vacuum analyze reltask.jobs, reltask.runs")
        postgres_server.execute(*preparations, database=f"batches {fill}")
    yield urls
    for fill in fills:
        postgres_server.drop_database(f"batches {fill}")


@pytest.mark.parametrize("verb", BATCHES)
@pytest.mark.parametrize("fill", ["empty", "full"])
async def test_a_kept_plan_finds_each_row_by_its_id(filled: dict[str, str], verb: str, fill: str) -> None:
    """A plan is kept until the next statistics: made for an empty table, it must also serve a million rows."""
    connection = await connect(filled[fill], PostgresOptions())
    (statement,) = load("postgres", verb, "numbered")
    assert_found_by_id(verb, await kept_plan(connection, statement))
    await connection.close()


@pytest.mark.parametrize("verb", BATCHES)
async def test_other_sessions_find_each_row_by_its_id(filled: dict[str, str], verb: str) -> None:
    """Even if the planner may read whole tables, a batch does not."""
    connection = await connect(filled["full, with a ledger"], PostgresOptions(), plain=True)
    (statement,) = load("postgres", verb, "numbered")
    columns = {**BATCHES[verb], "worker": "w", "now": None}
    assert_found_by_id(verb, await plan_for_values(connection, statement, columns))
    await connection.close()


LEDGER = """
insert into reltask.runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, finished_at, outcome)
select gen_random_uuid(), i, i, 'known', 'default', 1, now(), now(), now(), 'succeeded'
from generate_series(1, 20000) as i
"""
