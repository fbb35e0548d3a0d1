"""Workers that are asked to stop: bodies may finish, the rest is handed over at once; the exit status says which."""

from __future__ import annotations

import signal
from datetime import timedelta

import pytest

from reltask.cli.runner import EXIT_OK, EXIT_UNSETTLED
from reltask.model.job import Outcome
from reltask.model.views import RunView
from tests.cluster.cluster import Cluster, WorkerProcess, eventually, figures, slowness

pytestmark = pytest.mark.slow

AT_ONCE = timedelta(seconds=2)
"""How long a handover may take on a busy machine. The lock would take 5 minutes, the poll one."""


def long_lock(cluster: Cluster, *, grace: str) -> dict[str, str]:
    """Long enough that no lock ends during a test."""
    beat = slowness(cluster.url)
    pace = {"lock_timeout": "5m", "heartbeat": f"{beat}s", "beat_timeout": f"{beat / 2}s", "stop_grace": "500ms"}
    return {"shutdown_grace": grace, **pace}


def stopping(worker: WorkerProcess, number: signal.Signals = signal.SIGTERM) -> None:
    """Send the signal, and wait until the worker has logged it."""
    worker.signal(number)
    eventually(lambda: worker.events("WorkerStopping"), what="the worker stops claiming")


def test_a_worker_that_stops_lets_bodies_finish_and_claims_no_more(cluster: Cluster) -> None:
    """After SIGTERM or Ctrl+C the body goes on under its renewed lock; a new job waits for another worker."""
    for number in (signal.SIGTERM, signal.SIGINT):
        gate = cluster.gate(number.name)
        (worker,) = cluster.start(1, long_lock(cluster, grace=f"{30 * slowness(cluster.url)}s"))
        job = cluster.enqueue("hold", gate=str(gate))
        cluster.begun(job)
        stopping(worker, number)
        # a claim may be under way: this job is due a little later, and by then the lock is renewed
        # once more
        late = cluster.enqueue_later("hold", timedelta(seconds=slowness(cluster.url) / 2), gate=str(gate))
        due = cluster.job(late).due_at
        eventually(lambda job=job, due=due: cluster.job(job).heartbeat_at > due, what="it beats on")  # type: ignore[misc]  # bound now
        gate.touch()
        assert worker.exit_code() == EXIT_OK
        (run,) = cluster.runs(job)
        assert (run.outcome, run.fence, cluster.job(late).fence) == (Outcome.SUCCEEDED, 1, 0)
        cluster.app.job(late).discard_sync()
    assert all(worker.state == "stopped" for worker in cluster.app.workers_sync())


def test_a_body_that_outlasts_the_grace_is_handed_over_at_once(cluster: Cluster) -> None:
    """Its body is stopped, its claim and attempt are released, and another worker runs it at once."""
    gate = cluster.gate()
    cluster.start(2, long_lock(cluster, grace="200ms"))
    job = cluster.enqueue("hold", gate=str(gate))
    first = cluster.worker(cluster.begun(job).pid)
    stopping(first)
    second = cluster.begun(job, fence=2)
    gate.touch()
    assert first.exit_code() == EXIT_OK
    assert_handed_over(cluster.finished(job), by=first.pid, to=second.pid, within=AT_ONCE * slowness(cluster.url))
    assert cluster.effects.find(job=job, fence=1, what="stopped")
    report = cluster.report()
    assert (report.faults, report.overlapping) == ({}, [])


def assert_handed_over(runs: list[RunView], *, by: int, to: int, within: timedelta) -> None:
    released, done = runs
    assert [run.outcome for run in runs] == [Outcome.RELEASED, Outcome.SUCCEEDED]
    assert [run.attempt for run in runs] == [1, 1]
    assert f"_{by}_" in str(released.worker)
    assert f"_{to}_" in str(done.worker)
    assert done.claimed_at is not None
    figures.info("handed over %.3f s after the release", (done.claimed_at - released.finished_at).total_seconds())
    assert done.claimed_at - released.finished_at <= within


def test_a_second_signal_stops_now(cluster: Cluster) -> None:
    """The grace of ten minutes ends at once: the body is stopped, its claim released, the exit status is 0."""
    gate = cluster.gate()
    (worker,) = cluster.start(1, long_lock(cluster, grace="10m"))
    job = cluster.enqueue("hold", gate=str(gate))
    cluster.begun(job)
    stopping(worker)
    worker.signal(signal.SIGTERM)
    assert worker.exit_code() == EXIT_OK
    (run,) = cluster.runs(job)
    assert run.outcome is Outcome.RELEASED
    after = cluster.job(job)
    assert (after.locked_by, after.attempt) == (None, 0)


def test_a_body_that_cannot_be_stopped_keeps_its_lock_till_it_ends(cluster: Cluster) -> None:
    """A thread that ignores the stop keeps its claim until it expires; the exit status is 70."""
    gate = cluster.gate()
    (worker,) = cluster.start(1, {"shutdown_grace": "0s", "lock_timeout": f"{slowness(cluster.url)}s"})
    job = cluster.enqueue("hold_thread", gate=str(gate))
    cluster.begun(job)
    stopping(worker)
    assert worker.exit_code() == EXIT_UNSETTLED
    assert worker.events("BodyStuck")
    assert cluster.runs(job) == []
    cluster.start()
    cluster.begun(job, fence=2)
    gate.touch()
    assert [run.outcome for run in cluster.finished(job)] == [Outcome.LOST, Outcome.SUCCEEDED]
    assert cluster.report().faults == {}
