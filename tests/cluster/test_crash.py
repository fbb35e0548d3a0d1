"""Workers that die: SIGKILL during a body, with a child process, by a poison job, at random moments."""

from __future__ import annotations

import json
import random
import signal
import time
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest

from reltask.errors import UnknownJob
from reltask.model.job import Outcome, State
from reltask.model.views import JobView, RunView
from tests.cluster import table
from tests.cluster.cluster import Cluster, eventually, figures, slowness
from tests.cluster.workload import POISONED, SCHEDULES

pytestmark = pytest.mark.slow

TAKEOVER = timedelta(seconds=1)
"""A dead worker's slot is claimed at most this long after its lock ended, by the database's clock."""


def killed_holder(cluster: Cluster, job: JobView) -> JobView:
    """SIGKILL the worker that holds the job; return the row that it left."""
    cluster.worker(holder(job)).kill()
    return cluster.job(job.id)


def holder(job: JobView) -> int:
    """The process id in a worker's name."""
    assert job.locked_by is not None
    return int(job.locked_by.split("_")[-2])


def assert_taken_over_in_time(cluster: Cluster, left: JobView, following: RunView) -> None:
    """Not before the lock has ended, and soon after it."""
    assert left.lock_expires_at is not None
    assert following.claimed_at is not None
    late = following.claimed_at - left.lock_expires_at
    figures.info("taken over %.3f s after the lock had ended", late.total_seconds())
    assert timedelta(0) <= late <= TAKEOVER * slowness(cluster.url)


def test_a_killed_worker_s_slot_is_taken_over(cluster: Cluster) -> None:
    """Within lock timeout + 1 s, under the next fence, in the same slot; the schedule counts from the first start."""
    gate = cluster.gate()
    schedule = {"task": "hold", "arguments": {"gate": str(gate)}, "every": "1h", "key": "only"}
    cluster.start(3, {SCHEDULES: json.dumps([schedule])})
    (job,) = eventually(lambda: cluster.jobs(state=State.CLAIMED), what="a worker claims the slot")
    cluster.begun(job.id)
    assert_operators_are_refused(cluster, job)
    left = killed_holder(cluster, job)
    assert (left.locked_by, left.fence) == (job.locked_by, 1)
    cluster.begun(job.id, fence=2)
    gate.touch()
    lost, done = cluster.finished(job.id)
    assert [(run.outcome, run.fence, run.slot_no) for run in (lost, done)] == [("lost", 1, 1), ("succeeded", 2, 1)]
    assert lost.worker == job.locked_by != done.worker
    assert_taken_over_in_time(cluster, left, done)
    after = cluster.job(job.id)
    assert (after.slot_no, after.locked_by, after.next_run_time - job.locked_at) == (2, None, timedelta(hours=1))  # type: ignore[operator]  # claimed above
    cluster.stop()
    report = cluster.report()
    assert (report.faults, report.overlapping, report.once) == ({}, [], 1)


def assert_operators_are_refused(cluster: Cluster, job: JobView) -> None:
    """Operators cannot change a job that is validly claimed."""
    handle = cluster.app.job(job.id)
    for change in (handle.run_now_sync, handle.retry_sync, handle.discard_sync):
        with pytest.raises(UnknownJob):
            change()
    assert cluster.job(job.id).fence == job.fence


def test_a_due_time_survives_the_worker_that_knew_it(cluster: Cluster) -> None:
    """A worker dies idle after it completed a recurring slot: with signals, the next slot does not wait for a poll."""
    schedule = {"key": "only", "every": "1s", "arguments": {"seconds": 0.2}}
    cluster.start(2, {"lock_timeout": "2m", "poll": "5s", SCHEDULES: json.dumps([schedule])})
    (job,) = eventually(lambda: [job for job in cluster.jobs() if job.slot_no > 2], what="two slots are done")
    (last,) = [run for run in cluster.runs(job.id) if run.slot_no == job.slot_no - 1]
    cluster.worker(int(str(last.worker).split("_")[-2])).kill()
    (following,) = eventually(
        lambda: [run for run in cluster.runs(job.id) if run.slot_no == job.slot_no], what="the next slot is done"
    )
    assert following.claimed_at is not None
    late = following.claimed_at - following.nominal_time
    figures.info("%.3f s late", late.total_seconds())
    assert late < timedelta(seconds=2 * slowness(cluster.url))


def test_the_child_of_a_killed_worker_ends_itself(cluster: Cluster) -> None:
    """A body in a child process ends with its worker, so it cannot overlap with its next run."""
    gate = cluster.gate()
    cluster.start(2)
    job = cluster.enqueue("hold_child", gate=str(gate))
    child = cluster.begun(job).pid
    left = killed_holder(cluster, cluster.job(job))
    eventually(lambda: not is_running(child), what="the child ends")
    second = cluster.begun(job, fence=2)
    assert second.pid != child
    gate.touch()
    lost, done = cluster.finished(job)
    assert (lost.outcome, done.slot_no, done.fence) == (Outcome.LOST, 1, 2)
    assert_taken_over_in_time(cluster, left, done)
    assert cluster.report().faults == {}


def is_running(pid: int) -> bool:
    """Whether a process is alive. A zombie is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_poison_job_ends_dead_and_harms_no_other(cluster: Cluster) -> None:
    """A body that kills its worker uses its three attempts; all other jobs are done."""
    settings = {"concurrency": "5"}
    cluster.start(2, settings)
    short = timedelta(seconds=slowness(cluster.url))  # three deaths are waited for; other locks outlast a pause
    poison = cluster.app.get_task("poison").using(lock_timeout=short).enqueue_sync().id
    cluster.enqueued.append(poison)
    cluster.enqueue_many("tick", 40, seconds=0.1)

    def settled() -> bool:
        fallen = [worker for worker in cluster.workers[-2:] if not worker.alive]
        for _ in fallen:
            cluster.start(1, settings, wait=False)
        jobs = cluster.jobs()
        return [job.state for job in jobs] == [State.DEAD]

    eventually(settled, within=60 * slowness(cluster.url), what="only the dead letter is left")
    runs = cluster.runs(poison)
    assert [(run.outcome, run.attempt, run.slot_no) for run in runs] == [("lost", n, 1) for n in (1, 2, 3)]
    ends = [worker.process.returncode for worker in cluster.workers if not worker.alive]
    assert ends == [POISONED] * 3
    cluster.stop()
    report = cluster.report()
    assert (report.faults, report.overlapping, report.once) == ({}, [], 40)
    hit = 2  # a bystander is hit twice at most, and its third body runs on a worker without the poison
    assert max(report.bodies[slot] for slot in report.bodies if slot.job != poison) <= hit + 1


def test_workers_killed_at_random_lose_and_double_nothing(cluster: Cluster) -> None:
    """SIGKILL at any moment of claim, body and completion: each transaction's effect exists once."""
    rng = random.Random(20)
    settings = {"concurrency": "4"}
    cluster.start(3, settings)
    table.create(cluster.url)
    jobs: list[UUID] = []
    for _ in range(6):
        before = len(cluster.runs())
        jobs += cluster.enqueue_many("write", 50, seconds=0.03)  # so that there is work, however long this one took
        eventually(lambda seen=before: len(cluster.runs()) > seen, what="work goes on")  # type: ignore[misc]  # bound now
        time.sleep(rng.uniform(0.0, 0.15))  # a random moment is the purpose
        victim = rng.choice([worker for worker in cluster.workers if worker.alive])
        victim.kill()
        assert victim.process.returncode == -signal.SIGKILL
        cluster.start(1, settings, wait=False)
    eventually(lambda: not cluster.jobs(), within=60 * slowness(cluster.url), what="all jobs are done")
    cluster.stop()
    report = cluster.report()
    assert (report.faults, report.overlapping, report.once) == ({}, [], len(jobs))
    assert sorted(table.read(cluster.url)) == sorted(jobs)
    figures.info("%s jobs, %s bodies, %s", len(jobs), sum(report.bodies.values()), dict(report.outcomes))
    assert report.outcomes[Outcome.LOST] > 0
