"""The cost of durable functions, from the plans: what waits costs nothing, and a mark finds its job by index.

The statements are explained through connections and texts like those of the store, beside many
suspended functions with a step, a signal and an ended child each, and one function with 5 000 steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from reltask.model.durable import Recording, StepKind, StepRecord, StepState
from reltask.model.job import EARLIEST, Hold
from reltask.stores.postgres import durable, values
from reltask.stores.postgres.connections import PostgresOptions, connect
from tests.plans.test_claim_plan import REQUEST, nodes, rows_read
from tests.plans.test_maintenance_plan import explain

SLEEPERS = 10_000
LONG = UUID(int=0xF)
"""The function with many steps; it is claimed, and some of its steps wait."""
FALL_ASLEEP = """
insert into reltask.jobs (id, task, queue, next_run_time, not_before, suspended, steps)
select md5(i::text)::uuid, 'known', 'default', now() - interval '1 day', now() + i * interval '1 minute', true, 1
from generate_series($1::integer, $2::integer) as i
"""
FILL = f"""
insert into reltask.steps
    (job_id, slot_no, name, kind, state, fingerprint, attempt, fence, started_at, recorded_at, signal, pending)
select md5(i::text)::uuid, 1, 'wait', 'wait', 'waiting', '', 1, 1, now(), now(), 'go', 0
from generate_series(1, {SLEEPERS}) as i;
insert into reltask.signals (job_id, slot_no, name, id, value, sent_at)
select md5(i::text)::uuid, 1, 'other', '1', 'null', now() from generate_series(1, {SLEEPERS}) as i;
insert into reltask.child_ends (parent_id, slot_no, step, nth, job_id, outcome, ended_at)
select md5(i::text)::uuid, 1, 'all', 0, md5(i::text)::uuid, 'succeeded', now()
from generate_series(1, {SLEEPERS}) as i;
insert into reltask.jobs (id, task, next_run_time, fence, locked_by, locked_at, heartbeat_at, lock_expires_at, steps)
values ('{LONG}', 'known', now(), 1, 'w', now(), now(), now() + interval '1 minute', 5000);
insert into reltask.steps
    (job_id, slot_no, name, kind, state, fingerprint, attempt, fence, started_at, recorded_at, signal, pending)
select '{LONG}', 1, 'step ' || i, 'wait', case when i <= 3 then 'waiting' else 'done' end, '', 1, 1, now(), now(),
       'go', 0
from generate_series(1, 5000) as i;
"""
MARKS = f"""
insert into reltask.marks (at, kind, job_id, slot_no, name)
select now() - interval '1 minute', case when i % 2 = 0 then 'signal' else 'child' end, md5(i::text)::uuid, 1,
       case when i % 2 = 0 then 'go' else 'wait' end
from generate_series(1, 10) as i;
insert into reltask.marks (at, kind, job_id, slot_no, name)
select now() - interval '1 minute', 'signal', '{LONG}', 1, 'go' from generate_series(1, 5);
"""
TABLES = {"jobs", "steps", "signals", "child_ends", "marks", "runs"}


@pytest.fixture(params=["no statistics", "statistics"])
async def sleepers(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await connect(postgres_url, PostgresOptions())
    await connection.execute(FALL_ASLEEP, 1, SLEEPERS)
    await connection.execute(FILL)
    if request.param == "statistics":
        await connection.execute("analyze")
    yield connection
    await connection.close()


def check(plan: dict[str, Any], *, at_most: int) -> None:
    """Every read of a table uses an index, and together they read at most this many rows."""
    reads = [node for node in nodes(plan) if node.get("Relation Name") in TABLES and "Scan" in node["Node Type"]]
    assert {node["Node Type"] for node in reads} <= {"Index Scan", "Index Only Scan"}
    assert sum(rows_read(node) for node in reads) <= at_most


@pytest.mark.slow
async def test_a_claim_passes_by_what_sleeps(sleepers: asyncpg.Connection) -> None:
    """Beside 100 000 of them a claim reads the first of the lane, for when to ask again, and the first mark."""
    await sleepers.execute(FALL_ASLEEP, SLEEPERS + 1, 100_000)
    check(await explain(sleepers, "claim_jobs", values.request(REQUEST)), at_most=6)
    await sleepers.execute(MARKS)
    check(await explain(sleepers, "claim_jobs", values.request(REQUEST)), at_most=7)


@pytest.mark.slow
async def test_a_fold_reads_its_marks_jobs_and_waiting_steps(sleepers: asyncpg.Connection) -> None:
    """Fifteen marks: each reads its job three times, its step, and itself twice; not the other 5 000 steps."""
    check(await explain(sleepers, "fold_marks", {"limit": 1000, "patience": None}), at_most=0)
    await sleepers.execute(MARKS)
    check(await explain(sleepers, "fold_marks", {"limit": 1000, "patience": None}), at_most=15 * 9)


@pytest.mark.slow
async def test_a_run_reads_its_own_steps_and_waits(sleepers: asyncpg.Connection) -> None:
    """One slot's rows, however many there are of others."""
    one = await sleepers.fetchval("select md5('7')::uuid")
    check(await explain(sleepers, "read_steps", {"job_id": one, "slot_no": 1}), at_most=1)
    check(await explain(sleepers, "read_steps", {"job_id": one, "slot_no": None}), at_most=2)
    check(await explain(sleepers, "read_steps", {"job_id": uuid4(), "slot_no": 1}), at_most=0)
    check(await explain(sleepers, "read_waits", {"job_id": one, "slot_no": 1}), at_most=3)
    check(await explain(sleepers, "list_children", {"job_id": one}), at_most=1)


@pytest.mark.slow
async def test_a_record_reads_no_other_step(sleepers: asyncpg.Connection) -> None:
    """Two steps of a function that has 5 000: its row twice a step, and the signal that one of them consumes."""
    recorded = [
        StepRecord(name=name, kind=StepKind.WAIT, state=StepState.DONE, started_at=EARLIEST, signal="go", signal_id="1")
        for name in ("step 1", "new")
    ]
    columns = durable.recorded([Recording(hold=Hold(LONG, 1), steps=tuple(recorded))])
    check(await explain(sleepers, "record_steps", {**columns, "worker": "w"}), at_most=6)


@pytest.mark.slow
async def test_children_are_swept_by_their_parents(sleepers: asyncpg.Connection) -> None:
    """A thousand children of ten living parents: a few seeks per parent, and none where there is no child."""
    check(await explain(sleepers, "cancel_children", {"limit": 1000, "parents": None}), at_most=0)
    await sleepers.execute(
        "insert into reltask.jobs (id, task, next_run_time, parent_id, parent_slot, parent_step, parent_nth)"
        " select gen_random_uuid(), 'known', now(), md5((i % 10 + 1)::text)::uuid, 1, 'all', i"
        " from generate_series(1, 1000) as i"
    )
    check(await explain(sleepers, "cancel_children", {"limit": 1000, "parents": None}), at_most=10 * 2)
