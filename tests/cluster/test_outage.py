"""A database that goes away under load and comes back: everybody waits and resumes, nothing is lost or doubled."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Literal

import pytest

from reltask.job import Outcome
from reltask.stores.migration import migrate_postgres
from tests.cluster import table
from tests.cluster.cluster import Cluster, eventually, figures, running
from tests.cluster.workload import SCHEDULES
from tests.postgres_server import PostgresServer, run_in_thread

pytestmark = pytest.mark.slow

BREAKER = {"RELTASK_DATABASE_BREAKER_RESET": "2s"}
"""The default of 30 s would only make the tests longer."""
WORKERS = 3


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may take away."""
    with PostgresServer() as own:
        yield own


@pytest.fixture
def cluster(server: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster on that server."""
    url = server.create_database("cluster")
    run_in_thread(lambda: migrate_postgres(url))
    with running(url, tmp_path) as made:
        yield made


def under_load(cluster: Cluster) -> int:
    """Workers, recurring jobs, and more one-offs than they can finish before the outage; how many one-offs."""
    recurring = [{"key": f"tick-{n}", "every": "300ms", "arguments": {"seconds": 0.05}} for n in range(4)]
    cluster.start(WORKERS, {"concurrency": "5", SCHEDULES: json.dumps(recurring), **BREAKER})
    table.create(cluster.url)
    jobs = cluster.enqueue_many("write", 300, seconds=0.2)
    eventually(lambda: len(cluster.runs(task="write")) > 15, what="the work is under way")
    return len(jobs)


def assert_everybody_resumes(cluster: Cluster, jobs: int, since: datetime) -> None:
    """All one-offs get done, every recurring job goes on, on every worker."""

    def resumed() -> bool:
        later = [run for run in cluster.runs() if run.claimed_at is not None and run.claimed_at > since]
        return len({run.worker for run in later}) == WORKERS and {run.key for run in later if run.task == "tick"} == {
            f"tick-{n}" for n in range(4)
        }

    eventually(lambda: not cluster.jobs(task="write"), within=60, what="all one-offs are done")
    eventually(resumed, within=60, what="every worker has claimed again")
    first = min(run.claimed_at for run in cluster.runs() if run.claimed_at is not None and run.claimed_at > since)
    figures.info("first claim %.2f s after the server was back", (first - since).total_seconds())
    assert all(worker.alive for worker in cluster.workers)
    cluster.stop()
    assert [worker.process.returncode for worker in cluster.workers] == [0] * WORKERS
    report = cluster.report()
    figures.info("%s slots once; %s", report.once, dict(report.outcomes))
    assert report.faults == {}
    failures = [run for run in cluster.runs() if run.outcome is Outcome.FAILED]
    assert all(run.task == "write" for run in failures)  # its own transaction met the outage; it was tried again
    assert sorted(table.read(cluster.url)) == sorted(cluster.enqueued)
    assert len(cluster.enqueued) == jobs


@pytest.mark.parametrize(("mode", "seconds"), [("fast", 8.0), ("immediate", 0.0)])
def test_an_outage_is_survived(
    server: PostgresServer, cluster: Cluster, mode: Literal["fast", "immediate"], seconds: float
) -> None:
    """The server stops for 8 s, four lock timeouts, under load; or it crashes and comes back as fast as it can."""
    jobs = under_load(cluster)
    server.stop(mode)
    time.sleep(seconds)  # the outage itself
    server.start()
    assert_everybody_resumes(cluster, jobs, cluster.app.status_sync().now)
