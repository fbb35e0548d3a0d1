"""Rows: tasks that should not have been, and versions that meet."""

from __future__ import annotations

import signal
import uuid
from datetime import datetime
from uuid import UUID

from reltask.model.job import NewJob, Outcome, State
from reltask.producer.client import Operation
from reltask.stores.store import Store
from tests.cluster.cluster import eventually
from tests.cluster.workload import VERSION
from tests.faults.stage import Stage
from tests.faults.workload import OLD

BYSTANDERS = 6


def poison_exit(stage: Stage) -> float:
    """A body takes its worker along (`os._exit`) until it is a dead letter; bystanders are done by others."""
    stage.keep(2)
    (bad,), since = stage.enqueue(task="poison"), stage.now()
    return _dead_letter(stage, bad, Outcome.LOST, since)


def poison_memory(stage: Stage) -> float:
    """A body in a child process wants more memory than it may have: a failure of its own, then a dead letter."""
    stage.keep(2)
    (bad,), since = stage.enqueue(task="hungry"), stage.now()
    return _dead_letter(stage, bad, Outcome.FAILED, since)


def poison_payload(stage: Stage) -> float:
    """A row holds arguments that the task cannot take."""
    stage.keep(2)
    since = stage.now()
    bad = _insert(stage, NewJob(id=uuid.uuid4(), task=OLD, args='{"before": [1, 2]}', max_attempts=2))
    return _dead_letter(stage, bad, Outcome.FAILED, since)


def _dead_letter(stage: Stage, bad: UUID, outcome: Outcome, since: datetime) -> float:
    """The bad job ends dead after its limit; everybody else's are done."""
    bystanders = stage.enqueue(BYSTANDERS)

    def is_dead() -> bool:
        stage.keep(2)  # whoever fell is replaced, as a supervisor would
        return stage.cluster.job(bad).state is State.DEAD

    eventually(is_dead, within=stage.patience, what="the bad job is a dead letter")
    recovery = stage.recovered(bystanders, since)
    outcomes = {run.outcome for run in stage.cluster.runs(bad)}
    assert outcomes == {outcome}, outcomes
    return recovery


def unknown_name(stage: Stage) -> float:
    """A name that nobody knows stays unclaimed, with no attempt counted; everybody else goes on."""
    stage.keep(2)
    since = stage.now()
    unknown = _insert(stage, NewJob(id=uuid.uuid4(), task="nobody_knows_this", max_attempts=1))
    bystanders = stage.enqueue(BYSTANDERS)
    eventually(lambda: len(stage.ends(bystanders)) == BYSTANDERS, what="everybody else goes on")
    view = stage.cluster.job(unknown)
    assert (view.fence, view.attempt, view.state) == (0, 0, State.READY), view
    stage.cluster.app.change_sync("discard", unknown)
    return stage.recovered(bystanders, since)


def rolling_deploy(stage: Stage) -> float:
    """Old workers leave and new ones come under load; the task has been renamed, and another is new."""
    old = stage.start(2, {VERSION: "1"})
    since = stage.now()
    renamed = [_insert(stage, NewJob(id=uuid.uuid4(), task=OLD)) for _ in range(10)]
    fresh = stage.enqueue(5, task="only_new") + stage.enqueue(5)
    new = stage.start(1)
    for worker in old:
        worker.signal(signal.SIGTERM)
    recovery = stage.recovered(renamed + fresh, since)
    assert [worker.exit_code() for worker in old] == [0, 0]
    for worker in new:
        worker.kill()
    return recovery


def _insert(stage: Stage, job: NewJob) -> UUID:
    """A row as another version, or another language, would write it."""

    async def insert(store: Store) -> None:
        await store.enqueue_jobs([job])

    operation: Operation[None] = insert
    stage.cluster.app._client.run_sync(operation, name="insert")
    stage.cluster.app.notify_sync()
    stage.cluster.enqueued.append(job.id)
    return job.id
