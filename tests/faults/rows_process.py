"""Rows: a worker is killed or paused."""

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
from tests.faults.environment import Environment, NotRunHere

_turns = count()
_rng = random.Random(3)
"""For random moments: trials should differ."""


def kill_before_claim_answer(env: Environment) -> float:
    """The worker is killed after its claim's commit, before the answer.

    On SQLite there is no network between.
    """
    jobs = env.enqueue(4)
    if env.database != "sqlite":
        aim = env.proxy.aim("claim_jobs", "keep")
        (victim,) = env.start(wait=False)
        aim.landed()
    else:
        (victim,) = env.start()
        time.sleep(_rng.uniform(0, 0.03))  # a random moment
    victim.kill()
    since = env.now()
    (helper,) = env.start(1, env.direct())
    recovery = env.recovered(jobs, since)
    helper.kill()
    return recovery


def kill_after_claim(env: Environment) -> float:
    """The body began at most 30 ms ago."""
    env.keep(2)
    (job,) = env.enqueue(before=str(gate := env.gate()))
    env.begun(job)
    time.sleep(_rng.uniform(0, 0.03))  # a random moment
    return _killed(env, job, gate)


def kill_mid_body(env: Environment) -> float:
    """The body waits in the middle; other bodies of the same worker die with it."""
    env.keep(2)
    jobs = env.enqueue(4, before=str(gate := env.gate()))
    for job in jobs:
        env.begun(job)
    return _killed(env, jobs[0], gate)


def kill_before_completion(env: Environment) -> float:
    """The effect is written and the transaction is open: neither effect nor completion may stay."""
    env.keep(2)
    (job,) = env.enqueue(inside=str(gate := env.gate()))
    env.written(job, gate)
    return _killed(env, job, gate)


def kill_with_child(env: Environment) -> float:
    """The body runs in a child process: the child dies with its worker, before the job runs again."""
    env.keep(2)
    (job,) = env.enqueue(task="hold_child", gate=str(gate := env.gate()))
    child = env.cluster.begun(job).pid
    env.holder(job).kill()
    since = env.now()
    eventually(lambda: not is_running(child), what="the child ends")
    gate.touch()
    return env.recovered([job], since)


def _killed(env: Environment, job: UUID, gate: Path) -> float:
    env.holder(job).kill()
    since = env.now()
    gate.touch()
    jobs = [one.id for one in env.cluster.jobs()]
    env.start(1, wait=False)  # for the next trial; it may or may not be in time for this one
    return env.recovered([job, *jobs], since)


def pause_past_timeout(env: Environment) -> float:
    """SIGSTOP until another worker holds the job, or has done it (alternating), then SIGCONT.

    The late write is refused.
    """
    env.keep(2)
    (job,) = env.enqueue(before=str(gate := env.gate()))
    env.begun(job)
    paused = env.holder(job)
    pause(env.cluster.url, paused)
    since = env.now()
    if next(_turns) % 2:
        gate.touch()
        env.done()
    env.begun(job, fence=2)
    Path(f"{gate}.1").touch()  # so that the paused body writes at once
    paused.signal(signal.SIGCONT)
    _refused(env, job)
    gate.touch()
    env.done()
    (end,) = env.ends([job])
    assert end.claimed_at is not None
    return (end.claimed_at - since).total_seconds()


def pause_in_transaction(env: Environment) -> float:
    """SIGSTOP with the effect written and the transaction open: the server ends it, another worker writes."""
    env.keep(2)
    (job,) = env.enqueue(inside=str(gate := env.gate()))
    env.written(job, gate)
    paused = env.holder(job)
    paused.signal(signal.SIGSTOP)
    since = env.now()
    gate.touch()
    recovery = env.recovered([job], since)
    paused.signal(signal.SIGCONT)
    _refused(env, job)
    return recovery


def _refused(env: Environment, job: UUID) -> None:
    """The log says that the first run's late write was refused."""

    def is_refused() -> bool:
        return any(
            line.get("job") == str(job) and line.get("fence") == 1
            for worker in env.cluster.workers
            for line in worker.events("LateWriteRefused") + worker.events("RunAbandoned")
        )

    eventually(is_refused, what="the paused worker logs that its write is refused")


def start_together(env: Environment) -> float:
    """20 workers start at the same moment, with work waiting."""
    jobs = env.enqueue(40)
    since = env.now()
    workers = env.start(
        20, {"poll": "5s"}, wait=False
    )  # the default where there are no signals; more often would be a load
    recovery = env.recovered(jobs, since)
    for worker in workers:
        worker.kill()
    return recovery


WALL_CLOCK_ONLY = {
    "DONT_FAKE_MONOTONIC": "1",
    "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    "FAKETIME_FORCE_MONOTONIC_FIX": "0",
}
"""Monotonic time is unchanged.

The last variable too: with its fix, the library makes threads oversleep by seconds.
"""


def clock_moved(env: Environment) -> float:
    """One worker's wall clock is two hours ahead, another's two hours behind; the job's holder is killed."""
    library = _faketime()
    while sum(worker.alive for worker in env.cluster.workers) < 2:
        offset = "+2h" if len(env.cluster.workers) % 2 else "-2h"
        (moved,) = env.start(1, {"FAKETIME": offset, "LD_PRELOAD": library, **WALL_CLOCK_ONLY})
        shown = datetime.fromisoformat(moved.events("WorkerStarted")[0]["time"])
        assert abs(shown - env.now()) > timedelta(hours=1), "the worker's wall clock was not moved"
    delayed = [env.cluster.app.get_task("only_new").using(delay="700ms").enqueue_sync().id for _ in range(3)]
    env.cluster.enqueued += delayed
    (job,) = env.enqueue(before=str(gate := env.gate()))
    env.begun(job)
    env.holder(job).kill()
    since = env.now()
    gate.touch()
    recovery = env.recovered([job], since)
    early = [run for run in env.ends(delayed) if run.claimed_at is None or run.claimed_at < run.due_at]
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
