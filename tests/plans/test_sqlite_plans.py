"""SQLite's plans: every statement of the protocol searches an index; none scans a table.

The tables are empty, as in a new file, and there are no statistics: every file gets this plan.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from reltask.model.job import ClaimRequest, NewJob
from reltask.stores.migration import migrations
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.statement import load

PROTOCOL = [
    "claim_jobs",
    "heartbeat_jobs",
    "read_holds",
    "complete_jobs",
    "fail_jobs",
    "release_jobs",
    "reclaim_jobs",
    "read_outcomes",
    "record_progress",
    "enqueue_jobs",
    "read_declared",
    "read_keys",
    "declare_job",
    "discard_job",
    "read_job",
    "acquire_lease",
    "heartbeat_lease",
    "resign_lease",
    "release_lease",
    "guard_lease",
    "prune_runs",
    "roll_up_runs",
    "record_steps",
    "suspend_jobs",
    "read_steps",
    "read_waits",
    "send_signals",
    "fold_marks",
    "cancel_children",
    "forget_steps",
    "list_signals",
    "list_children",
]
_TABLES = (
    r"(reltask_\w+|jobs|runs|workers|leases|first|next|other|this|future"
    r"|steps|marks|known|recorded|named|child|parent)"
)


@pytest.fixture
def empty() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:")) as connection:
        for migration in migrations("sqlite"):
            connection.executescript(migration.sql)
        yield connection


def explain(connection: sqlite3.Connection, verb: str) -> list[list[str]]:
    """The plan of each statement of a verb's file."""
    return [
        [row[3] for row in connection.execute("explain query plan " + text, dict.fromkeys(names))]
        for text, names in load("sqlite", verb, "named")
    ]


@pytest.mark.parametrize("verb", PROTOCOL)
def test_protocol_never_scans_a_table(empty: sqlite3.Connection, verb: str) -> None:
    """Each step through one of reltask's tables is a search; but for marks and workers, of which there are few.

    Marks live for milliseconds, and an operator who forgets a step may read them all. A look that finds nothing counts
    the idle workers, now and then.
    """
    steps = [step for plan in explain(empty, verb) for step in plan]
    scans = [step for step in steps if re.match(rf"SCAN {_TABLES}\b", step)]
    few = {"forget_steps": ["SCAN reltask_marks"], "claim_jobs": ["SCAN reltask_workers"]}
    assert scans == few.get(verb, [])


def test_lanes_are_found_by_seeks_in_the_claim_index(empty: sqlite3.Connection) -> None:
    """The first lane, each next one, the first future time of a lane, and the due jobs of one: each an index seek."""
    lanes, _, due, *_ = explain(empty, "claim_jobs")
    index, queue = "USING INDEX reltask_jobs_claimable", "isolated=? AND queue=?"
    steps = [step.replace("COVERING INDEX", "INDEX") for step in lanes]
    assert f"SEARCH first {index} ({queue} AND task>?)" in steps
    assert f"SEARCH next {index} ({queue} AND task=? AND priority>?)" in steps
    assert f"SEARCH other {index} ({queue} AND task>?)" in steps
    assert f"SEARCH future {index} ({queue} AND task=? AND priority=? AND due_at>?)" in steps
    assert due == [f"SEARCH reltask_jobs {index} ({queue} AND task=? AND priority=? AND due_at<?)"]


@pytest.mark.parametrize(
    "verb",
    ["heartbeat_jobs", "complete_jobs", "fail_jobs", "release_jobs", "suspend_jobs", "record_steps", "read_holds"],
)
def test_batches_go_by_the_primary_key(empty: sqlite3.Connection, verb: str) -> None:
    """One seek per row of the batch; by the index of held rows a batch of n would cost n²."""
    first, *_ = explain(empty, verb)
    assert any("sqlite_autoindex_reltask_jobs_1 (id=?)" in step for step in first)


def test_a_mark_finds_the_step_that_waits(empty: sqlite3.Connection) -> None:
    """A slot may have recorded ten thousand others."""
    _, jobs, _ = explain(empty, "fold_marks")
    assert "SEARCH steps USING INDEX reltask_steps_waiting (job_id=? AND slot_no=? AND signal=?)" in jobs
    assert "SEARCH steps USING PRIMARY KEY (job_id=? AND slot_no=? AND name=?)" in jobs


def test_cancelled_children_are_found_among_children(empty: sqlite3.Connection) -> None:
    """Jobs without a parent are not read."""
    for plan in explain(empty, "cancel_children"):
        assert "SEARCH child USING INDEX reltask_jobs_children (parent_id>?)" in plan


def test_screens_search_the_indexes_of_the_claims(empty: sqlite3.Connection) -> None:
    """Lists and counts of waiting jobs walk the lanes, with and without a limit; other states have an index each."""
    for verb in ("page_jobs", "read_overview"):
        steps = [step for plan in explain(empty, verb) for step in plan]
        read = [step for step in steps if re.match(r"(SEARCH|SCAN) (reltask_jobs|first|next|job)\b", step)]
        used = {name for step in read for name in re.findall(r"INDEX (\w+)", step)}
        assert {"reltask_jobs_claimable", "reltask_jobs_limited_due", "reltask_jobs_dead"} <= used
        scans = [step for step in read if step.startswith("SCAN") or " INDEX " not in step]
        assert scans == ["SCAN reltask_jobs USING INDEX reltask_jobs_recurring"] * (verb == "read_overview")


@pytest.mark.slow
async def test_claim_costs_the_same_in_a_full_table(tmp_path: Path) -> None:
    """Counted in SQLite's own steps: 30 000 future, unknown and paused rows do not change an empty poll."""
    request = ClaimRequest(
        worker="w",
        token=uuid4(),
        queues=["default"],
        tasks=["known", "other"],
        limit=10,
        lock_timeout=timedelta(minutes=2),
        isolated=True,
        alive_for=timedelta(minutes=1),
    )
    steps = []
    for size in (10, 10_000):
        store = SqliteStore(str(tmp_path / f"{size}.db"), inline=True)
        await store.open()
        await store.enqueue_jobs([NewJob(id=uuid4(), task="known", delay=timedelta(days=1)) for _ in range(size)])
        await store.enqueue_jobs([NewJob(id=uuid4(), task="foreign") for _ in range(size)])
        await store.enqueue_jobs([NewJob(id=uuid4(), task="zebra", priority=n % 10) for n in range(size)])
        steps.append(await _count_steps(store, request))
        await store.close()
    small, large = steps
    assert large <= small * 1.2


async def _count_steps(store: SqliteStore, request: ClaimRequest) -> int:
    counted = 0

    def step() -> int:
        nonlocal counted
        counted += 1
        return 0

    connection = store._session.connection()
    connection.set_progress_handler(step, 1)
    assert (await store.claim_jobs(request)).claims == []
    connection.set_progress_handler(None, 1)
    return counted
