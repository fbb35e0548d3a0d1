"""Pauses and priorities across real processes."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.cluster.cluster import Cluster

pytestmark = pytest.mark.slow

BACKLOG, LOAD = 40, 1_500
"""Urgent jobs that are due before the one of low priority, and after it."""


def add(cluster: Cluster, count: int, *, priority: int) -> list[UUID]:
    task = cluster.app.get_task("tick").using(priority=priority)
    jobs = cluster.app.enqueue_many_sync([task.call() for _ in range(count)])
    cluster.enqueued += [job.id for job in jobs]
    return [job.id for job in jobs]


def test_a_pause_holds_on_every_process_and_a_resume_wakes_them(cluster: Cluster) -> None:
    """A job of a paused task stays unclaimed while other tasks run on both workers; then it runs at once."""
    cluster.start(2, {"poll": "5m"})
    cluster.app.pause_sync(task="tick", reason="the test", by="pytest")
    waiting = add(cluster, 4, priority=0)
    gate = cluster.gate()
    gate.touch()
    for _ in range(4):
        cluster.finished(cluster.enqueue("hold", gate=str(gate)))
    assert [cluster.job(job).fence for job in waiting] == [0] * 4
    (pause,) = cluster.app.pauses_sync()
    assert (pause.paused_by, pause.due) == ("pytest", 4)
    assert cluster.app.resume_sync(task="tick")
    assert [len(cluster.finished(job)) for job in waiting] == [1] * 4


def test_a_low_priority_starts_under_a_load_of_urgent_jobs(cluster: Cluster) -> None:
    """Thousands of urgent jobs that are due later pass it, but no more than ten for each that was due before it."""
    add(cluster, BACKLOG, priority=0)
    (last,) = add(cluster, 1, priority=9)
    add(cluster, LOAD, priority=0)
    cluster.start(2, {"concurrency": "2"})
    (run,) = cluster.finished(last)
    assert run.claimed_at is not None
    later = [other for other in cluster.app.runs_sync(task="tick", limit=2 * LOAD) if other.due_at > run.due_at]
    passed = [other for other in later if other.claimed_at is not None and other.claimed_at < run.claimed_at]
    assert len(passed) <= 10 * (BACKLOG + 2) < LOAD
