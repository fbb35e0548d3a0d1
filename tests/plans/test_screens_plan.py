"""The cost of the dashboard's screens on PostgreSQL, from their plans: no table is read whole.

Read on 30 000 jobs, as many with a limit, each with a key of its own, and 60 000 ledger rows. If an index of the jobs
changes its condition, these statements must follow.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from reltask.model.screens import ListedState
from reltask.stores.postgres.connections import PostgresOptions, connect
from tests.plans.test_claim_plan import nodes, rows_read
from tests.plans.test_maintenance_plan import explain

JOBS = 30_000
FILL = f"""
insert into reltask.jobs (id, task, queue, next_run_time, dead_at, paused_at, suspended, locked_by, locked_at,
                          heartbeat_at, lock_expires_at, fence, key, schedule)
select gen_random_uuid(), 'task ' || i % 5, 'queue ' || i % 3, now() + (i - {JOBS // 2}) * interval '1 second',
       case when i % 100 = 1 then now() - i * interval '1 second' end,
       case when i % 100 = 2 then now() - i * interval '1 second' end,
       i % 100 = 3,
       case when i % 1000 = 4 then 'w' end, case when i % 1000 = 4 then now() end,
       case when i % 1000 = 4 then now() end, case when i % 1000 = 4 then now() + interval '1 minute' end,
       1, case when i % 100 = 5 then 'key ' || i end, case when i % 1000 = 5 then '{{"every":"1m"}}' end
from generate_series(1, {JOBS}) as i;
insert into reltask.jobs (id, task, queue, next_run_time, limit_key)
select gen_random_uuid(), 'limited ' || i % 5, 'queue ' || i % 3, now() + (i - {JOBS // 2}) * interval '1 second',
       'customer:' || i
from generate_series(1, {JOBS}) as i;
insert into reltask.runs (
    job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, claimed_at, finished_at, outcome, error)
select gen_random_uuid(), 1, 1, 'task ' || i % 5, 'default', 1, ended, ended, ended, ended, 'failed', 'Error: no'
from generate_series(1, {2 * JOBS}) as i
cross join lateral (select now() - i * interval '10 seconds' as ended) as run;
analyze reltask.jobs;
analyze reltask.runs;
"""
PAGE: dict[str, Any] = {"task": None, "queue": None, "after_at": None, "after_id": None, "limit": 51}


@pytest.fixture
async def large(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    """Many jobs and runs."""
    connection = await connect(postgres_url, PostgresOptions())
    await connection.execute(FILL)
    yield connection
    await connection.close()


def check(plan: dict[str, Any], *, at_most: int) -> None:
    """Jobs and runs are read by an index, and this many rows at most."""
    tables = {"jobs", "runs"}
    read = [node for node in nodes(plan) if node.get("Relation Name") in tables and "Scan" in node["Node Type"]]
    whole = [node for node in read if node["Node Type"] == "Seq Scan" and node["Actual Loops"]]
    assert whole == []
    assert sum(rows_read(node) for node in read) <= at_most


@pytest.mark.slow
async def test_no_screen_reads_a_whole_table(large: asyncpg.Connection) -> None:
    """Each reads a page, or as far as it counts."""
    for state in ListedState:
        check(await explain(large, "page_jobs", {**PAGE, "state": str(state)}), at_most=3_000)
    check(await explain(large, "find_jobs", {"key": "key 105", "limit": 50}), at_most=50)
    check(await explain(large, "list_schedules", {"after_task": None, "after_id": None, "limit": 51}), at_most=200)
    check(await explain(large, "list_dead_errors", {"most": 100, "characters": 100}), at_most=700)
    check(await explain(large, "sample_runs", {"since": timedelta(days=1), "limit": 100}), at_most=200)


@pytest.mark.slow
async def test_the_overview_counts_only_so_far(large: asyncpg.Connection) -> None:
    """Thirty lanes, two counts each, and the other states: not the table."""
    check(await explain(large, "read_overview", {"most": 101}), at_most=30 * 2 * 101 + 1_500)
