"""How fast the ledger is pruned, in virtual time: paced by the backlog."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from reltask import events
from reltask.worker.maintenance import LEVELS, Backlog
from tests.worker.worker_harness import HarnessApp, WorkerHarness

SETTINGS: dict[str, object] = {"maintenance.coordination": "lease", "maintenance.keep_runs": "1h"}
COLUMNS = "job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at, finished_at, outcome"


def insert_history(app: HarnessApp, harness: WorkerHarness, rows: int) -> None:
    """Ledger rows that are a day old."""
    old = int(harness.now().timestamp() - 86_400) * 10**6
    values = [(f"{number:032x}", 1, 1, "old", "default", 1, old, old, old, "succeeded") for number in range(rows)]
    with closing(sqlite3.connect(app.path)) as file, file:
        file.executemany(f"insert into reltask_runs ({COLUMNS}) values ({', '.join('?' * 10)})", values)


def test_a_leader_prunes_faster_than_one_process_completes(harness: WorkerHarness) -> None:
    """A batch of 1 000 rows takes 10 ms, as on PostgreSQL: a leader removes more than 30 000 rows/s."""
    app = harness.app(settings=SETTINGS)
    app.faults.slow["prune_runs"] = 0.01
    rows, times = 20_000, list[float]()

    async def scenario() -> None:
        async with app.worker():
            insert_history(app, harness, rows)
            app.subscribe(lambda e: times.append(harness.seconds()) if isinstance(e, events.RunsPruned) else None)
            while sum(event.count for event in app.log.of(events.RunsPruned)) < rows:
                await app.log.wait(events.RunsPruned, len(app.log.of(events.RunsPruned)) + 1)

    harness.run(scenario())
    assert rows / (times[-1] - times[0]) > 30_000


def test_a_small_backlog_is_pruned_gently(harness: WorkerHarness) -> None:
    """Batches grow and rests shrink while full batches come back; the next backlog begins with a small batch."""
    app = harness.app(settings=SETTINGS)

    async def scenario() -> None:
        async with app.worker():
            for seen in (0, 4):
                insert_history(app, harness, 2000)
                await app.log.wait(events.RunsPruned, seen + 4)

    harness.run(scenario())
    assert [event.count for event in app.log.of(events.RunsPruned)] == [250, 500, 1000, 250] * 2


def test_slow_batches_are_followed_by_smaller_ones() -> None:
    """A busy disk gets a rest: batches shrink to the smallest, and rests stay in proportion."""
    backlog = Backlog(LEVELS, most=1000)
    rests = [backlog.worked(backlog.batch, 0.01) for _ in LEVELS]
    assert (backlog.batch, rests) == (1000, [0.025, 0.0125, 0.01, 0.01])
    slow = [(backlog.worked(backlog.batch, 0.2), backlog.batch) for _ in LEVELS]
    assert slow == [(0.2, 1000), (0.4, 500), (0.8, 250), (0.8, 250)]
    assert backlog.worked(backlog.batch - 1, 0.01) is None
