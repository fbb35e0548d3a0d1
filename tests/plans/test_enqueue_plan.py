"""What an enqueue costs, as its plan says: each id is looked up by itself, whatever the statistics say."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from reltask.job import NewJob
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import Options, connect
from reltask.stores.statement import load
from tests.plans.test_claim_plan import nodes


async def test_a_table_that_is_believed_empty_is_not_read_whole(postgres_url: str) -> None:
    """A plan is kept until the next statistics: made for an empty table, it must serve the first million, too."""
    connection = await connect(postgres_url, Options())
    await connection.execute("vacuum analyze reltask.jobs, reltask.runs")
    (statement,) = load("postgres", "enqueue_jobs", "numbered")
    columns = values.new_jobs([NewJob(id=uuid4(), task="t")])
    arguments = statement.arguments({**columns, "now": None})
    text = await connection.fetchval(f"explain (format json) {statement.text}", *arguments)
    plan: dict[str, Any] = json.loads(text)[0]["Plan"]
    reads = [node for node in nodes(plan) if "Scan" in node["Node Type"] and node.get("Relation Name")]
    assert sorted(node["Relation Name"] for node in reads) == ["jobs", "runs"]
    assert all("Index Cond" in node for node in reads)
    await connection.close()
