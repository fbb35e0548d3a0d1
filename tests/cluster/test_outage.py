"""A database that stops under load and comes back: workers wait and resume, nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from reltask.errors import TransientError
from reltask.model.clock import SystemClock
from reltask.model.job import NewJob, Outcome
from reltask.model.settings import DatabaseSettings
from reltask.model.views import RunView
from reltask.stores.choose import make_store
from reltask.stores.postgres.schema import migrate_postgres
from tests.cluster import table
from tests.cluster.cluster import Cluster, eventually, figures, running
from tests.cluster.workload import SCHEDULES
from tests.postgres_server import PostgresServer, run_in_thread

pytestmark = pytest.mark.slow

BREAKER = {"RELTASK_DATABASE_BREAKER_RESET": "2s"}
"""The default of 30 s would make the tests longer."""
WORKERS = 3
RECURRING = 4
OUTAGE = 8.0


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    with PostgresServer() as own:
        yield own


@pytest.fixture
def cluster(server: PostgresServer, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster on that server."""
    url = server.create_database("cluster")
    run_in_thread(lambda: migrate_postgres(url))
    with running(url, tmp_path) as made:
        yield made


def under_load(cluster: Cluster) -> None:
    """More one-offs than the workers can finish before the server stops."""
    before = len(cluster.runs(task="write"))
    cluster.enqueue_many("write", 150, seconds=0.2)
    eventually(lambda: len(cluster.runs(task="write")) > before + 15, what="the work is under way")


def all_workers_resume(cluster: Cluster) -> None:
    """All one-offs are done, every recurring job goes on, and every worker takes part."""
    since = cluster.app.status_sync().now

    def later() -> list[RunView]:
        return [run for run in cluster.runs() if run.claimed_at is not None and run.claimed_at > since]

    eventually(lambda: not cluster.jobs(task="write"), within=60, what="all one-offs are done")
    eventually(lambda: len({run.worker for run in later()}) == WORKERS, within=60, what="every worker claims again")
    eventually(lambda: len({run.key for run in later() if run.task == "tick"}) == RECURRING, what="schedules go on")
    first = min(run.claimed_at for run in later() if run.claimed_at is not None)
    figures.info("first claim %.2f s after the server was back", (first - since).total_seconds())
    assert all(worker.alive for worker in cluster.workers)


def test_outages_are_survived(server: PostgresServer, cluster: Cluster) -> None:
    """The server stops for 8 s, four lock timeouts, under load; later it crashes and restarts at once."""
    recurring = [{"key": f"tick-{n}", "every": "300ms", "arguments": {"seconds": 0.05}} for n in range(RECURRING)]
    cluster.start(WORKERS, {"concurrency": "5", SCHEDULES: json.dumps(recurring), **BREAKER})
    table.create(cluster.url)
    under_load(cluster)
    server.stop()
    time.sleep(OUTAGE)
    server.start()
    all_workers_resume(cluster)
    under_load(cluster)
    server.stop("immediate")
    server.start()
    all_workers_resume(cluster)
    cluster.stop()
    assert [worker.process.returncode for worker in cluster.workers] == [0] * WORKERS
    report = cluster.report()
    figures.info("%s slots once; %s", report.once, dict(report.outcomes))
    assert report.faults == {}
    assert sorted(table.read(cluster.url)) == sorted(cluster.enqueued)
    # The outage hit a body's transaction: that run failed, and was retried.
    assert {run.task for run in cluster.runs() if run.outcome is Outcome.FAILED} <= {"write"}


async def test_a_statement_is_sent_again_until_the_server_is_back(server: PostgresServer) -> None:
    """The retry policy alone, in front of a store and without a worker: it bridges an outage, or gives up as set."""
    url = server.create_database("retry")
    await migrate_postgres(url)
    retried: asyncio.Queue[tuple[str, float]] = asyncio.Queue()
    patient, impatient = (
        make_store(
            url,
            DatabaseSettings(retry_attempts=attempts, retry_first=first, breaker_failures=100),
            clock=SystemClock(),
            rng=random.Random(1),
            on_retry=lambda verb, _, delay: retried.put_nowait((verb, delay)),
        )
        for attempts, first in ((10, timedelta(milliseconds=100)), (4, timedelta(milliseconds=1)))
    )
    await patient.open()
    await asyncio.to_thread(server.stop)
    with pytest.raises(TransientError):
        await impatient.open()
    assert retried.qsize() == 4
    while not retried.empty():
        retried.get_nowait()
    enqueueing = asyncio.create_task(patient.enqueue_jobs([NewJob(id=uuid4(), task="t")]))
    waits = [await retried.get() for _ in range(3)]
    assert not enqueueing.done()
    await asyncio.to_thread(server.start)
    await enqueueing
    assert [verb for verb, _ in waits] == ["enqueue_jobs"] * 3
    assert all(0.1 * 2**n <= delay < 0.15 * 2**n for n, (_, delay) in enumerate(waits))
    assert (await patient.read_status()).due == 1
    await patient.close()
    await impatient.close()
