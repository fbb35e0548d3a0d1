"""Rows: bad tasks and bad arguments, and two versions of an app at once."""

from __future__ import annotations

import signal
import uuid
from datetime import datetime
from uuid import UUID

from reltask.model.job import NewJob, Outcome, State
from reltask.producer.portal import Operation
from reltask.stores.store import Store
from tests.cluster.cluster import eventually
from tests.cluster.workload import VERSION
from tests.faults.environment import Environment
from tests.faults.workload import OLD

BYSTANDERS = 6


def poison_exit(env: Environment) -> float:
    """A body kills its worker (`os._exit`) until the job is a dead letter; other workers do the other jobs."""
    env.keep(2)
    (bad,), since = env.enqueue(task="poison"), env.now()
    return _dead_letter(env, bad, Outcome.LOST, since)


def poison_memory(env: Environment) -> float:
    """A body in a child process exceeds its memory limit: it fails, and ends as a dead letter."""
    env.keep(2)
    (bad,), since = env.enqueue(task="hungry"), env.now()
    return _dead_letter(env, bad, Outcome.FAILED, since)


def poison_payload(env: Environment) -> float:
    """A row has arguments that the task does not accept."""
    env.keep(2)
    since = env.now()
    bad = _insert(env, NewJob(id=uuid.uuid4(), task=OLD, args='{"before": [1, 2]}', max_attempts=2))
    return _dead_letter(env, bad, Outcome.FAILED, since)


def _dead_letter(env: Environment, bad: UUID, outcome: Outcome, since: datetime) -> float:
    """The bad job is dead after its attempts; all other jobs are done."""
    bystanders = env.enqueue(BYSTANDERS)

    def is_dead() -> bool:
        env.keep(2)  # start a replacement for a dead worker, as a supervisor would
        return env.cluster.job(bad).state is State.DEAD

    eventually(is_dead, within=env.patience, what="the bad job is a dead letter")
    recovery = env.recovered(bystanders, since)
    outcomes = {run.outcome for run in env.cluster.runs(bad)}
    assert outcomes == {outcome}, outcomes
    return recovery


def unknown_name(env: Environment) -> float:
    """A job whose name no worker knows stays unclaimed, without an attempt; all other jobs are done."""
    env.keep(2)
    since = env.now()
    unknown = _insert(env, NewJob(id=uuid.uuid4(), task="unknown_to_all", max_attempts=1))
    bystanders = env.enqueue(BYSTANDERS)
    eventually(lambda: len(env.ends(bystanders)) == BYSTANDERS, what="all other jobs are done")
    view = env.cluster.job(unknown)
    assert (view.fence, view.attempt, view.state) == (0, 0, State.READY), view
    env.cluster.app.job(unknown).discard_sync()
    return env.recovered(bystanders, since)


def rolling_deploy(env: Environment) -> float:
    """Old workers stop and new ones start under load. One task was renamed, another is new."""
    old = env.start(2, {VERSION: "1"})
    since = env.now()
    renamed = [_insert(env, NewJob(id=uuid.uuid4(), task=OLD)) for _ in range(10)]
    fresh = env.enqueue(5, task="only_new") + env.enqueue(5)
    new = env.start(1)
    for worker in old:
        worker.signal(signal.SIGTERM)
    recovery = env.recovered(renamed + fresh, since)
    assert [worker.exit_code() for worker in old] == [0, 0]
    for worker in new:
        worker.kill()
    return recovery


def _insert(env: Environment, job: NewJob) -> UUID:
    """A row as another version, or another language, would write it."""

    async def insert(store: Store) -> None:
        await store.enqueue_jobs([job])

    operation: Operation[None] = insert
    env.cluster.app._client.run_sync(operation, name="insert")
    env.cluster.app.notify_sync()
    env.cluster.enqueued.append(job.id)
    return job.id
