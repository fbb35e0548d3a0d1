"""Cancelling jobs that run in other processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reltask import Cancellation
from tests.cluster.cluster import Cluster, eventually, running

pytestmark = pytest.mark.slow
SOON = 15.0
"""Seconds of patience on a busy machine: less than a heartbeat of `patient`, so that only a signal can be the cause."""


@pytest.fixture
def patient(url: str, tmp_path: Path) -> Iterator[Cluster]:
    """Workers that beat every 30 s, except on a database without signals, where the beat has to say it."""
    settings = {} if url.startswith("mssql") else {"lock_timeout": "3m", "heartbeat": "30s"}
    with running(url, tmp_path, **settings) as cluster:
        yield cluster


@pytest.mark.parametrize("task", ["hold", "hold_checking", "hold_child"])
def test_a_body_in_another_process_stops(patient: Cluster, task: str) -> None:
    """A coroutine, a thread and a child process of another worker process end, long before the next heartbeat."""
    patient.start()
    job = patient.enqueue(task, gate=str(patient.gate()))
    patient.begun(job)
    assert patient.app.job(job).cancel_sync() is Cancellation.STOPPING
    eventually(lambda: patient.effects.find(job=job, fence=1, what="stopped"), within=SOON, what="the body stops")
    (run,) = patient.finished(job, "cancelled")
    assert (run.fence, run.error) == (1, "cancelled by request")
    assert patient.app.job(job).cancel_sync() is Cancellation.CANCELLED


def test_a_cancelled_job_of_a_killed_worker_runs_no_more(cluster: Cluster) -> None:
    """Its lock expires, and the next worker ends it without a body."""
    (first,) = cluster.start()
    job = cluster.enqueue("hold_thread", gate=str(cluster.gate()))
    cluster.begun(job)
    assert cluster.app.job(job).cancel_sync() is Cancellation.STOPPING
    first.kill()
    cluster.start()
    runs = cluster.finished(job, "cancelled")
    assert [(run.outcome, run.fence) for run in runs] == [("lost", 1), ("cancelled", 2)]
    assert cluster.effects.find(job=job, fence=2, what="start") is None
