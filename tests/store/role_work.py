"""What each role of permissions.sql may do: the verbs that must work for its users, on every server with roles."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from msgspec.structs import replace

from reltask.errors import PermanentError
from reltask.model.audit import BEFORE_ALL
from reltask.model.control import Pause, PauseKind
from reltask.model.durable import NewSignal, Recording, StepKind, StepRecord, StepState
from reltask.model.job import (
    Cancellation,
    ClaimRequest,
    Completion,
    Failure,
    NewJob,
    Outcome,
    Parent,
    Release,
    Suspension,
    Unique,
    WorkerRecord,
)
from reltask.model.lease import Grant, LeaseRequest, Term
from reltask.model.limit import LimitRule
from reltask.stores.store import Store

LEASE = LeaseRequest(name="m", holder="w", acquisition=uuid4(), ttl=timedelta(seconds=10))
SMTP = LimitRule(name="smtp", running=1, declaration="a")
MANY = 100
"""Enough for a server that has another statement for many."""


@asynccontextmanager
async def opened(store: Store) -> AsyncIterator[Store]:
    """A store with the login of one role."""
    try:
        await store.open()
        yield store
    finally:
        await store.close()


def request(worker: str = "w") -> ClaimRequest:
    """A claim of a few jobs."""
    return ClaimRequest(
        worker=worker,
        token=uuid4(),
        queues=["default"],
        tasks=["t"],
        limit=10,
        lock_timeout=timedelta(minutes=2),
        isolated=True,
        alive_for=timedelta(minutes=1),
    )


async def work(store: Store) -> None:
    """All verbs of the protocol."""
    record = WorkerRecord(
        id="w",
        host="h",
        pid=1,
        version="1",
        app_version=None,
        queues=[],
        tasks=[],
        concurrency=1,
        alive_for=timedelta(1),
    )
    await store.register_worker(record)
    await store.enqueue_jobs([NewJob(id=uuid4(), task="t") for _ in range(4)])
    done, failed, released, running = (await store.claim_jobs(request())).claims
    await store.heartbeat_jobs("w", [running.hold], alive_for=timedelta(minutes=1))
    assert await store.record_progress("w", running.hold, "0.5")
    assert await store.complete_jobs("w", [Completion(hold=done.hold)])
    assert await store.fail_jobs("w", [Failure(hold=failed.hold, error="e", delay=timedelta(1))])
    assert await store.release_jobs("w", [Release(hold=released.hold, outcome=Outcome.RELEASED)])
    await store.reclaim_jobs()
    assert await store.discard_job(failed.job_id)
    assert (await store.read_status()).running == 1
    await work_with_limits(store)
    await store.signal()
    await store.stop_worker("w")
    await pause(store)
    await cancel(store)
    await enqueue_unique(store)
    await store.prune_keys(after=("", ""), limit=10)


async def cancel(store: Store) -> None:
    """The verbs of cancelling, on a job that waits, and one that recurs."""
    waiting, again = NewJob(id=uuid4(), task="c"), NewJob(id=uuid4(), task="c", key="r", schedule='{"every":"1h"}')
    await store.enqueue_jobs([waiting, again])
    assert await store.cancel_job(waiting.id) is Cancellation.CANCELLED
    assert await store.cancel_job(again.id) is Cancellation.STOPPING
    await store.cancel_children(parents=[waiting.id])
    await store.signal_cancel([again.id])
    assert await store.discard_job(again.id)


async def enqueue_unique(store: Store) -> None:
    """The verbs of unique tasks that producers need."""
    job = NewJob(id=uuid4(), task="u", unique=Unique(key=uuid4().hex), delay=timedelta(1))
    assert await store.enqueue_unique([job]) == {job.id}
    assert await store.enqueue_unique([replace(job, id=uuid4())]) == set()
    assert job.unique is not None
    assert await store.read_unique([("u", job.unique.key)]) == {("u", job.unique.key): job.id}


async def pause(store: Store) -> None:
    """The verbs of pauses."""
    assert await store.add_pause(Pause(kind=PauseKind.QUEUE, name="mail", reason="why", paused_by="me"))
    assert [view.name for view in await store.list_pauses()] == ["mail"]
    assert await store.end_pause(PauseKind.QUEUE, "mail")


async def work_with_limits(store: Store) -> None:
    """All verbs of limits."""
    await store.write_limit(SMTP, seen=None)
    assert SMTP in await store.read_limits()
    assert await store.enqueue_jobs([NewJob(id=uuid4(), task="t", limits=("smtp",)) for _ in range(2)])
    (claim,) = (await store.claim_limited(request())).claims
    assert await store.complete_jobs("w", [Completion(hold=claim.hold)])
    (claim,) = (await store.claim_limited(request())).claims
    assert await store.release_jobs("w", [Release(hold=claim.hold, outcome=Outcome.RELEASED, delay=timedelta(1))])
    assert await store.recount_limits() == 0


async def run_in_transaction(store: Store) -> None:
    """All verbs of a task's own transaction."""
    await store.enqueue_jobs([NewJob(id=uuid4(), task="t")])
    (claim, *_) = (await store.claim_jobs(request())).claims
    async with store.transaction(timeout=timedelta(seconds=10)) as transaction:
        assert await transaction.holds_job("w", claim.hold)
        assert await transaction.enqueue_jobs([NewJob(id=uuid4(), task="t", delay=timedelta(1)) for _ in range(2)])
        assert await transaction.read_keys([("t", "none")]) == {}
        assert await transaction.guard_job("w", claim.hold)
        assert await transaction.complete_job("w", Completion(hold=claim.hold))


async def work_durably(store: Store) -> UUID:
    """All verbs of durable functions. The job that is left is suspended, and the end of its child is not folded yet."""
    parent = NewJob(id=uuid4(), task="t")
    await store.enqueue_jobs([parent])
    (claim,) = (await store.claim_jobs(request())).claims
    part = Parent(job_id=parent.id, slot_no=claim.slot_no, step="labels", nth=0)
    await store.enqueue_jobs([NewJob(id=uuid4(), task="t", parent=part)])
    signal = NewSignal(id="1", name="go", value="1", job_id=parent.id)
    assert await store.send_signals([signal]) == {"1": parent.id}
    started_at = datetime.now(UTC)
    steps = (
        StepRecord(
            name="go", kind=StepKind.WAIT, state=StepState.DONE, started_at=started_at, signal="go", signal_id="1"
        ),
        StepRecord(name="labels", kind=StepKind.RUN, state=StepState.WAITING, started_at=started_at, pending=1),
    )
    assert await store.record_steps("w", [Recording(hold=claim.hold, steps=steps)])
    assert await store.fold_marks() == 1
    waits = await store.read_waits(parent.id, claim.slot_no)
    assert waits is not None
    assert await store.suspend_jobs("w", [Suspension(hold=claim.hold, seen=waits.wake_seq, wake_at=None)])
    (child,) = (await store.claim_jobs(request())).claims
    assert await store.complete_jobs("w", [Completion(hold=child.hold, has_parent=True)])
    assert (await store.cancel_children()).ended == []
    return parent.id


async def forget(store: Store, durable: UUID) -> None:
    """What an operator may do to the job that `work_durably` has left: both steps are forgotten, with all they left."""
    assert [view.name for view in await store.read_steps(durable)] == ["go", "labels"]
    assert await store.send_signals([NewSignal(id="2", name="go", value="1", job_id=durable)])
    assert [await store.forget_steps(durable, name) for name in ("go", "labels")] == [1, 1]
    assert [signal.consumed_by for signal in await store.list_signals(durable)] == [None, None]
    assert await store.list_children(durable) == []


async def enqueue_many(store: Store) -> None:
    """Bulk inserts, the first and again."""
    many = [NewJob(id=uuid4(), task="t") for _ in range(MANY)]
    assert len(await store.enqueue_jobs(many)) == MANY
    assert await store.enqueue_jobs(many) == set()


async def lead(store: Store) -> None:
    """All verbs of leases and maintenance."""
    assert (await store.acquire_lease(LEASE)).term == 1
    assert (await store.acquire_lease(replace(LEASE, acquisition=uuid4(), waits=LEASE.ttl))).term is None
    grant = Grant(term=Term("m", 1), acquisition=LEASE.acquisition)
    assert await store.heartbeat_lease(grant)
    async with store.transaction(timeout=LEASE.ttl) as transaction:
        assert await transaction.guard_lease(grant.term)
    hour = timedelta(hours=1)
    await store.mark_dead_workers(leader=grant.term)
    await store.prune_runs(older_than=hour, most=1, leader=grant.term)
    await store.prune_records(workers=hour, metrics=hour, leader=grant.term)
    await store.roll_up_runs(leader=grant.term)
    async with store.advisory_lock("m") as is_alive:
        assert is_alive is not None
        assert await is_alive()
    assert await store.resign_lease(grant)
    await store.signal_lease("m")


async def dead_job(store: Store) -> UUID:
    """A job that has failed for the last time."""
    job = NewJob(id=uuid4(), task="t", max_attempts=1)
    await store.enqueue_jobs([job])
    (claim,) = (await store.claim_jobs(request())).claims
    assert await store.fail_jobs("w", [Failure(hold=claim.hold, error="e", delay=timedelta(0))])
    return job.id


async def operate(store: Store, dead: UUID) -> None:
    """All verbs of operators; claiming does not work. The lease is held, and the job is dead."""
    schedule = NewJob(id=uuid4(), task="t", key="nightly", schedule='{"every":"1h"}', declaration="a", app_version="1")
    assert await store.enqueue_jobs([schedule]) == {schedule.id}
    (seen,) = await store.read_declared([("t", "nightly")])
    assert await store.declare_job(replace(schedule, schedule='{"every":"2h"}', declaration="b"), seen=seen)
    assert await store.pause_job(schedule.id)
    assert await store.resume_job(schedule.id)
    assert await store.run_job_now(schedule.id)
    assert await store.retry_job(dead)
    assert await store.discard_job(dead)
    assert [run.outcome for run in await store.list_runs(job_id=dead)] == [Outcome.DISCARDED, Outcome.FAILED]
    assert (await store.list_jobs())[0].id == schedule.id
    assert await store.release_lease(Term("m", 1))
    assert await store.write_limit(SMTP, seen=None)
    assert await store.write_limit(replace(SMTP, running=2), seen="a")
    limited = NewJob(id=uuid4(), task="t", limits=("smtp",), delay=timedelta(1))
    assert await store.enqueue_jobs([limited])
    assert await store.run_job_now(limited.id)
    assert await store.discard_job(limited.id)
    await pause(store)
    await cancel(store)
    await enqueue_unique(store)
    await store.signal()


async def enqueue(store: Store) -> None:
    """Enqueueing, the schema check and the signal work; reading a job and claiming it do not."""
    job = NewJob(id=uuid4(), task="t", key="once", args='{"secret": 1}')
    assert await store.enqueue_jobs([job]) == {job.id}
    assert await store.enqueue_jobs([job]) == set()
    assert await store.enqueue_jobs([job], again=True) == {job.id}
    assert await store.read_keys([("t", "once")]) == {("t", "once"): job.id}
    await enqueue_many(store)
    limited = [NewJob(id=uuid4(), task="t", limits=("smtp", "all")) for _ in range(MANY)]
    assert len(await store.enqueue_jobs(limited)) == MANY
    await enqueue_unique(store)
    await store.signal()
    for refused in (store.cancel_job(job.id), store.replace_job(replace(job, unique=Unique(key="k")))):
        with pytest.raises(PermanentError, match=r"permissions\.sql"):
            await refused
    with pytest.raises(PermanentError, match=r"permissions\.sql"):
        await store.write_limit(SMTP, seen=None)
    with pytest.raises(PermanentError, match=r"permissions\.sql"):
        await store.read_job(job.id)
    with pytest.raises(PermanentError, match=r"permissions\.sql"):
        await store.claim_jobs(request())
    with pytest.raises(PermanentError, match=r"permissions\.sql"):
        await store.add_pause(Pause(kind=PauseKind.TASK, name="t", paused_by="me"))


async def read(store: Store, job: NewJob) -> None:
    """All reading verbs work, in a database with only this job; enqueueing does not."""
    assert await store.read_job(job.id) is not None
    assert len(await store.list_jobs()) == 1
    assert await store.list_runs() == []
    assert await store.read_results([job.id]) == []
    assert await store.list_workers() == []
    assert (await store.read_status()).due == 1
    assert [count.jobs for count in await store.audit_tasks()] == [1]
    assert await store.audit_slice(after=BEFORE_ALL, rows=10) is None
    assert await store.audit_slots(kept_for=timedelta(hours=1)) == []
    assert await store.audit_durable(kept_for=timedelta(hours=1)) == []
    assert await store.audit_waiting(lock_timeout=timedelta(minutes=2)) == []
    assert await store.audit_losses() == []
    assert await store.list_leases() == []
    assert (await store.read_limits(), await store.list_limits(), await store.list_limit_keys("smtp")) == ([], [], [])
    assert await store.read_job_limits(job.id) == []
    assert list(await store.audit_limits()) == []
    assert await store.list_pauses() == []
    assert await store.list_metrics(since=timedelta(hours=1)) == []
    with pytest.raises(PermanentError, match=r"permissions\.sql"):
        await store.end_pause(PauseKind.TASK, "t")
    with pytest.raises(PermanentError, match=r"permissions\.sql"):
        await store.enqueue_jobs([NewJob(id=uuid4(), task="t")])
