"""Workers that are silent but alive: stopped by SIGSTOP past their lock, or with a blocked event loop."""

from __future__ import annotations

import signal

import pytest

from reltask.model.job import Outcome, State
from tests.cluster.cluster import Cluster, eventually, pause

pytestmark = pytest.mark.slow


def test_a_worker_that_was_paused_past_its_lock_is_too_late(cluster: Cluster) -> None:
    """When it continues, its bodies are stopped, its late writes are refused, and the new owner's state stays."""
    (paused,) = cluster.start()
    gate, thread_gate = cluster.gate(), cluster.gate("thread")
    job, in_thread = cluster.enqueue("hold", gate=str(gate)), cluster.enqueue("hold_thread", gate=str(thread_gate))
    cluster.begun(job)
    cluster.begun(in_thread)
    pause(cluster.url, paused)
    (owner,) = cluster.start()
    cluster.begun(job, fence=2)
    cluster.begun(in_thread, fence=2)
    cluster.gate("thread.1").touch()  # the paused body succeeds as soon as it runs, which is too late
    paused.signal(signal.SIGCONT)
    eventually(lambda: cluster.effects.find(job=job, fence=1, what="stopped"), what="the body is stopped")
    eventually(lambda: len(paused.events("LateWriteRefused")) == 2, what="both late writes are refused")
    assert {line["job"]: line["fence"] for line in paused.events("LateWriteRefused")} == {
        str(job): 1,
        str(in_thread): 1,
    }
    assert paused.events("RunAbandoned")
    assert [(run.outcome, run.fence) for run in cluster.runs()] == [("lost", 1), ("lost", 1)]
    for view in cluster.jobs():
        assert (view.state, view.fence, view.slot_no) == (State.CLAIMED, 2, 1)
        assert f"_{owner.pid}_" in str(view.locked_by)
    gate.touch()
    thread_gate.touch()
    for each in (job, in_thread):
        assert [(run.outcome, run.fence) for run in cluster.finished(each)] == [("lost", 1), ("succeeded", 2)]
    cluster.finished(cluster.enqueue("tick"))
    assert paused.alive
    cluster.stop()
    report = cluster.report()
    assert (report.faults, report.once, cluster.jobs()) == ({}, 3, [])


def test_a_task_that_blocks_the_event_loop_keeps_its_lock(cluster: Cluster) -> None:
    """Heartbeats have a separate thread: three workers leave a blocked one's slot alone, well past its lock."""
    cluster.start(3)
    job = cluster.enqueue("block_loop", seconds=1.4 * cluster.lock_timeout)
    (run,) = cluster.finished(job)
    assert (run.outcome, run.fence, run.attempt) == (Outcome.SUCCEEDED, 1, 1)
    assert run.claimed_at is not None
    assert (run.finished_at - run.claimed_at).total_seconds() > 1.3 * cluster.lock_timeout
    report = cluster.report()
    assert (report.faults, report.once, list(report.bodies.values())) == ({}, 1, [1])
