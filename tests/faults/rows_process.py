"""Rows: a worker is killed, or falls silent."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import time
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from uuid import UUID

from tests.cluster.cluster import eventually, pause
from tests.cluster.test_crash import is_running
from tests.faults.stage import NotRunHere, Stage

_turns = count()
_rng = random.Random(3)
"""For moments that are chance; their spread is the point, not their repetition."""


def kill_before_claim_answer(stage: Stage) -> float:
    """The claim is committed, and its sender dies before it knows. On SQLite no network stands between the two."""
    jobs = stage.enqueue(4)
    if stage.database != "sqlite":
        aim = stage.proxy.aim("claim_jobs", "keep")
        (victim,) = stage.start(wait=False)
        aim.landed()
    else:
        (victim,) = stage.start()
        time.sleep(_rng.uniform(0, 0.03))  # the moment is chance
    victim.kill()
    since = stage.now()
    (helper,) = stage.start(1, stage.direct())
    recovery = stage.recovered(jobs, since)
    helper.kill()
    return recovery


def kill_after_claim(stage: Stage) -> float:
    """The body has begun, at some moment of its first 30 ms."""
    stage.keep(2)
    (job,) = stage.enqueue(before=str(gate := stage.gate()))
    stage.begun(job)
    time.sleep(_rng.uniform(0, 0.03))  # the moment is chance
    return _killed(stage, job, gate)


def kill_mid_body(stage: Stage) -> float:
    """The body waits in its middle; others of the same worker die with it."""
    stage.keep(2)
    jobs = stage.enqueue(4, before=str(gate := stage.gate()))
    for job in jobs:
        stage.begun(job)
    return _killed(stage, jobs[0], gate)


def kill_before_completion(stage: Stage) -> float:
    """The effect is written, the transaction is open: neither effect nor completion may stay."""
    stage.keep(2)
    (job,) = stage.enqueue(inside=str(gate := stage.gate()))
    stage.written(job, gate)
    return _killed(stage, job, gate)


def kill_with_child(stage: Stage) -> float:
    """The body runs in a child process: it dies with its worker, and does not run beside its successor."""
    stage.keep(2)
    (job,) = stage.enqueue(task="hold_child", gate=str(gate := stage.gate()))
    child = stage.cluster.begun(job).pid
    stage.holder(job).kill()
    since = stage.now()
    eventually(lambda: not is_running(child), what="the child ends")
    gate.touch()
    return stage.recovered([job], since)


def _killed(stage: Stage, job: UUID, gate: Path) -> float:
    stage.holder(job).kill()
    since = stage.now()
    gate.touch()
    jobs = [one.id for one in stage.cluster.jobs()]
    stage.start(1, wait=False)  # for the next trial; it comes in time for this one, or not
    return stage.recovered([job, *jobs], since)


def pause_past_timeout(stage: Stage) -> float:
    """SIGSTOP until another worker holds the job, or has done it, by turns; then SIGCONT: the late write is refused."""
    stage.keep(2)
    (job,) = stage.enqueue(before=str(gate := stage.gate()))
    stage.begun(job)
    paused = stage.holder(job)
    pause(stage.cluster.url, paused)
    since = stage.now()
    if next(_turns) % 2:
        gate.touch()
        stage.done()
    stage.begun(job, fence=2)
    Path(f"{gate}.1").touch()  # the paused body would write at once
    paused.signal(signal.SIGCONT)
    _refused(stage, job)
    gate.touch()
    stage.done()
    (end,) = stage.ends([job])
    assert end.claimed_at is not None
    return (end.claimed_at - since).total_seconds()


def pause_in_transaction(stage: Stage) -> float:
    """SIGSTOP with the effect written and the transaction open: the server ends it, and another worker writes."""
    stage.keep(2)
    (job,) = stage.enqueue(inside=str(gate := stage.gate()))
    stage.written(job, gate)
    paused = stage.holder(job)
    paused.signal(signal.SIGSTOP)
    since = stage.now()
    gate.touch()
    recovery = stage.recovered([job], since)
    paused.signal(signal.SIGCONT)
    _refused(stage, job)
    return recovery


def _refused(stage: Stage, job: UUID) -> None:
    """The first run's late words are in the log as refused."""

    def told() -> bool:
        return any(
            line.get("job") == str(job) and line.get("fence") == 1
            for worker in stage.cluster.workers
            for line in worker.events("LateWriteRefused") + worker.events("RunAbandoned")
        )

    eventually(told, what="the paused worker learns that it is too late")


def start_together(stage: Stage) -> float:
    """20 workers start at the same moment, with work waiting for them."""
    jobs = stage.enqueue(40)
    since = stage.now()
    workers = stage.start(20, {"poll": "5s"}, wait=False)  # the default where nothing signals; more would be a load
    recovery = stage.recovered(jobs, since)
    for worker in workers:
        worker.kill()
    return recovery


WALL_CLOCK_ONLY = {
    "DONT_FAKE_MONOTONIC": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    "FAKETIME_FORCE_MONOTONIC_FIX": "0",
}
"""Monotonic time stays as it is. The last one too: with its fix the library lets threads oversleep by seconds."""


def clock_moved(stage: Stage) -> float:
    """One worker's wall clock is two hours ahead, another's two hours behind; the one that holds a job is killed."""
    library = _faketime()
    while sum(worker.alive for worker in stage.cluster.workers) < 2:
        offset = "+2h" if len(stage.cluster.workers) % 2 else "-2h"
        (moved,) = stage.start(1, {"FAKETIME": offset, "LD_PRELOAD": library, **WALL_CLOCK_ONLY})
        shown = datetime.fromisoformat(moved.events("WorkerStarted")[0]["time"])
        assert abs(shown - stage.now()) > timedelta(hours=1), "the worker's wall clock was not moved"
    delayed = [stage.cluster.app.get_task("only_new").using(delay="700ms").enqueue_sync().id for _ in range(3)]
    stage.cluster.enqueued += delayed
    (job,) = stage.enqueue(before=str(gate := stage.gate()))
    stage.begun(job)
    stage.holder(job).kill()
    since = stage.now()
    gate.touch()
    recovery = stage.recovered([job], since)
    early = [run for run in stage.ends(delayed) if run.claimed_at is None or run.claimed_at < run.due_at]
    assert not early, f"claimed before their time: {early}"
    return recovery


def _faketime() -> str:
    program = shutil.which("faketime")
    if program is None:
        raise NotRunHere("faketime is not installed")
    answer = subprocess.run(
        [program, "-f", "+0", "printenv", "LD_PRELOAD"], capture_output=True, text=True, check=True, env={**os.environ}
    )
    return answer.stdout.strip()
