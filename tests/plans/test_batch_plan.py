"""What a batch costs, as its plan says: each row is looked up by its id, whatever the statistics say."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from reltask.job import Completion, Failure, Hold, NewJob, Outcome, Release
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import Options, connect
from reltask.stores.statement import load
from tests.plans.test_claim_plan import FILL, nodes

HOLD = Hold(uuid4(), 1)
BATCHES: dict[str, values.Columns] = {
    "enqueue_jobs": values.new_jobs([NewJob(id=uuid4(), task="t")]),
    "complete_jobs": values.completions([Completion(HOLD)]),
    "complete_one_offs": values.completions([Completion(HOLD)]),
    "fail_jobs": values.failures([Failure(hold=HOLD, error="e", delay=timedelta(0))]),
    "release_jobs": values.releases([Release(hold=HOLD, outcome=Outcome.RELEASED)]),
    "heartbeat_jobs": {**values.holds([HOLD]), "alive_for": timedelta(minutes=1), "tokens": []},
    "read_holds": values.holds([HOLD]),
    "read_outcomes": values.holds([HOLD]),
    "read_ended": {"ids": [HOLD.job_id]},
}
READ = {
    "enqueue_jobs": {"jobs", "runs"},
    "heartbeat_jobs": {"jobs", "workers"},
    "read_outcomes": {"runs"},
    "read_ended": {"runs"},
}
"""Which tables a verb looks rows up in, where it is not the jobs alone."""


async def explain(url: str, verb: str, *preparations: str) -> dict[str, Any]:
    connection = await connect(url, Options())
    for preparation in preparations:
        await connection.execute(preparation)
    (statement,) = load("postgres", verb, "numbered")
    arguments = statement.arguments({**BATCHES[verb], "worker": "w", "now": None})
    text = await connection.fetchval(f"explain (format json) {statement.text}", *arguments)
    await connection.close()
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    return plan


@pytest.mark.parametrize("verb", BATCHES)
@pytest.mark.parametrize("fill", [(), (FILL,)], ids=["empty", "full"])
async def test_each_row_is_found_by_its_id(postgres_url: str, verb: str, fill: tuple[str, ...]) -> None:
    """A plan is kept until the next statistics: made for an empty table, it must serve the first million, too."""
    plan = await explain(postgres_url, verb, *fill, "vacuum analyze reltask.jobs, reltask.runs")
    reads = [node for node in nodes(plan) if "Scan" in node["Node Type"] and node.get("Relation Name")]
    assert {node["Relation Name"] for node in reads} == READ.get(verb, {"jobs"})
    assert all("id" in node["Index Cond"] for node in reads)
