"""Limits across real processes that are killed and paused: judged by the times in the ledger.

`RELTASK_TEST_LIMIT_JOBS=10000` runs the whole of it: 10 000 jobs over 1 000 keys.
"""

from __future__ import annotations

import os
import random
import signal
from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from uuid import UUID

import pytest

from reltask import App
from reltask.model.views import RunView
from tests.cluster.cluster import EVERYTHING, Cluster, eventually, figures, pause, running
from tests.cluster.limit_workload import BURST, RATE, RUNNING, make_app

pytestmark = pytest.mark.slow

JOBS = int(os.environ.get("RELTASK_TEST_LIMIT_JOBS", "1500"))
WORKERS = 8
COMMAND = ("reltask.cli", "worker", "tests.cluster.limit_workload:app")
STARTS = 300


@pytest.fixture
def app(url: str) -> Iterator[App]:
    made = make_app(url)
    yield made
    made.close()


def left(app: App) -> int:
    return len(app.jobs_sync(limit=EVERYTHING))


def most_at_once(runs: list[RunView], keys: dict[UUID, int]) -> dict[int, int]:
    """How many runs of each key had a claim at the same moment. An end and a start at one moment do not overlap."""
    changes: dict[int, list[tuple[datetime, int]]] = defaultdict(list)
    for run in runs:
        assert run.claimed_at is not None
        changes[keys[run.job_id]] += [(run.claimed_at, 1), (run.finished_at, -1)]
    most = {}
    for key, moments in changes.items():
        count = most[key] = 0
        for _, change in sorted(moments):
            count += change
            most[key] = max(most[key], count)
    return most


@pytest.mark.timeout(600)
def test_never_more_than_the_limit_while_workers_die(url: str, app: App, tmp_path: Path) -> None:
    """Eight workers, ten jobs per key: two are killed, one is paused past its lock, and the limit is changed."""
    with running(url, tmp_path) as cluster:
        rng, task = random.Random(20), app.get_task("limited")
        numbers = [nth % (JOBS // 10) for nth in range(JOBS)]
        rng.shuffle(numbers)
        jobs = app.enqueue_many_sync([task.call(number) for number in numbers])
        keys = {job.id: number for job, number in zip(jobs, numbers, strict=True)}
        cluster.start(WORKERS, {"concurrency": "20"}, command=COMMAND)
        disturb(cluster, app)
        eventually(lambda: left(app) == 0, within=500, what="all jobs end", seen=app.limits_sync)
        runs = cluster_runs(app, "limited")
        most = most_at_once(runs, keys)
        lost = sum(run.outcome == "lost" for run in runs)
        figures.info("%d runs, %d lost, most at once %d", len(runs), lost, max(most.values()))
        assert {job.id for job in jobs} == {run.job_id for run in runs if run.outcome == "succeeded"}
        assert max(most.values()) == RUNNING
        assert [view.in_use for view in app.limits_sync() if view.name == "each"] == [0]


def disturb(cluster: Cluster, app: App) -> None:
    """Each time some jobs have ended."""
    paused, *killed = cluster.workers[:3]
    eventually(lambda: left(app) < 0.95 * JOBS, within=120, what="jobs end")
    pause(cluster.url, paused)
    killed[0].kill()
    app.change_limit_sync("each", running=1)
    eventually(lambda: left(app) < 0.8 * JOBS, within=120, what="more jobs end")
    killed[1].kill()
    app.change_limit_sync("each", running=RUNNING)
    cluster.start(2, {"concurrency": "20"}, command=COMMAND)
    eventually(lambda: left(app) < 0.6 * JOBS, within=120, what="still more jobs end")
    paused.signal(signal.SIGCONT)


def cluster_runs(app: App, task: str) -> list[RunView]:
    return app.runs_sync(task=task, limit=EVERYTHING)


@pytest.mark.timeout(300)
def test_never_more_starts_than_the_bucket_has(url: str, app: App, tmp_path: Path) -> None:
    """In any window at most rate × window + burst, by the ledger, with three workers that want more."""
    with running(url, tmp_path) as cluster:
        cluster.start(3, {"concurrency": "20"}, command=COMMAND)
        app.enqueue_many_sync([app.get_task("paced").call()] * STARTS)
        eventually(lambda: left(app) == 0, within=200, what="all jobs end")
        starts = sorted(run.claimed_at for run in cluster_runs(app, "paced") if run.claimed_at is not None)
        assert len(starts) == STARTS
        pace = (STARTS - BURST) / (starts[-1] - starts[0]).total_seconds()
        figures.info("%.1f starts a second of %d", pace, RATE)
        for nth, first in enumerate(starts):
            for later, last in enumerate(starts[nth:], start=1):
                assert later <= RATE * (last - first).total_seconds() + BURST + 1e-3
