"""What operators do and see: run now, retry, discard; lists, counts and workers."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from reltask.model.job import Outcome, State
from tests.store.store_harness import LOCK, START, StoreHarness, new_job, recurring, worker_record

SECOND = timedelta(seconds=1)


async def test_run_now_makes_due_and_keeps_the_nominal_time(harness: StoreHarness) -> None:
    """The nominal time stays; only the due time moves."""
    later = START + timedelta(days=1)
    (job_id,) = await harness.add(recurring(run_at=later))
    harness.now.advance(seconds=1)
    assert await harness.store.run_job_now(job_id)
    claim = await harness.claim_one()
    assert (claim.nominal, claim.due_at) == (later, harness.now())


async def test_run_now_of_a_claimed_or_dead_job_changes_nothing(harness: StoreHarness) -> None:
    """A running job runs already; a dead one needs a retry."""
    running, dead = await harness.claimed(), await harness.claimed(new_job(max_attempts=1))
    await harness.fail(dead)
    before = await harness.snapshot()
    assert not await harness.store.run_job_now(running.job_id)
    assert not await harness.store.run_job_now(dead.job_id)
    assert await harness.snapshot() == before


async def test_retry_gives_a_new_set_of_attempts(harness: StoreHarness) -> None:
    """A dead letter gets attempt 1 of its limit again, due at once, in the same slot."""
    claim = await harness.claimed(new_job(max_attempts=1))
    await harness.fail(claim, delay=timedelta(hours=1))
    assert await harness.store.retry_job(claim.job_id)
    again = await harness.claim_one()
    assert (again.attempt, again.slot_no, again.fence, again.due_at) == (1, 1, 2, harness.now())


async def test_retry_after_lost_runs_is_not_isolated(harness: StoreHarness) -> None:
    """An operator has looked at it."""
    claim = await harness.claimed(new_job(max_attempts=2))
    await harness.lose(claim)
    await harness.lose(await harness.claim_one())
    assert (await harness.job(claim.job_id)).isolated
    assert await harness.store.retry_job(claim.job_id)
    assert not (await harness.claim_one()).isolated


async def test_discard_leaves_a_ledger_row(harness: StoreHarness) -> None:
    """No worker ran it; it takes the next fence, and its slot has ended."""
    claim = await harness.claimed(new_job(max_attempts=1))
    await harness.fail(claim)
    assert await harness.store.discard_job(claim.job_id)
    failed, discarded = await harness.runs(claim.job_id)
    assert (failed.outcome, discarded.outcome) == (Outcome.FAILED, Outcome.DISCARDED)
    assert (discarded.fence, discarded.slot_no, discarded.worker, discarded.claimed_at) == (2, 1, None, None)
    assert discarded.finished_at == harness.now()


async def test_list_jobs_by_due_time_state_and_task(harness: StoreHarness) -> None:
    """Filters apply, the limit cuts, the order is by due time."""
    late, early, other = await harness.add(
        new_job(delay=2 * SECOND), new_job(delay=SECOND), new_job(task="other", delay=3 * SECOND)
    )
    running = await harness.claimed()
    await harness.store.pause_job(early)
    assert [view.id for view in await harness.store.list_jobs()] == [running.job_id, early, late, other]
    assert [view.id for view in await harness.store.list_jobs(limit=2)] == [running.job_id, early]
    assert [view.id for view in await harness.store.list_jobs(state=State.PAUSED)] == [early]
    assert [view.id for view in await harness.store.list_jobs(state=State.CLAIMED)] == [running.job_id]
    assert [view.id for view in await harness.store.list_jobs(state=State.READY, task="greet")] == [late]
    assert await harness.store.list_jobs(state=State.DEAD) == []


async def test_list_runs_newest_first(harness: StoreHarness) -> None:
    """Of one job, of one task, or of all."""
    first = await harness.claimed()
    await harness.complete(first)
    harness.now.advance(seconds=1)
    second = await harness.claimed(new_job(task="other"))
    await harness.fail(second)
    assert [run.job_id for run in await harness.store.list_runs()] == [second.job_id, first.job_id]
    assert [run.job_id for run in await harness.store.list_runs(limit=1)] == [second.job_id]
    assert [run.job_id for run in await harness.store.list_runs(task="greet")] == [first.job_id]
    assert [run.job_id for run in await harness.store.list_runs(job_id=first.job_id)] == [first.job_id]
    assert await harness.store.list_runs(job_id=first.job_id, task="other") == []


async def test_unknown_job_is_none(harness: StoreHarness) -> None:
    """An unknown id is no error."""
    assert await harness.store.read_job(uuid4()) is None


async def test_status_counts_everything(harness: StoreHarness) -> None:
    """Each number by its own definition."""
    await harness.store.register_worker(worker_record("alice", tasks=["greet"]))
    await harness.store.register_worker(worker_record("gone", alive_for=SECOND, tasks=["orphan"]))
    await harness.store.register_worker(worker_record("stopped", tasks=["orphan"]))
    await harness.store.stop_worker("stopped")
    expired = await harness.claimed(new_job(lock_timeout=SECOND))
    dead = await harness.claimed(new_job(max_attempts=1))
    await harness.fail(dead)
    failing = await harness.claimed()
    await harness.fail(failing, delay=5 * SECOND)
    await harness.claimed(new_job(lock_timeout=LOCK))
    harness.now.advance(seconds=2)
    waiting, paused, *_ = await harness.add(
        new_job(delay=timedelta(hours=1)), new_job(), new_job(task="orphan"), new_job()
    )
    await harness.store.pause_job(paused)
    status = await harness.store.read_status()
    assert (status.now, status.workers_alive) == (harness.now(), 1)
    assert (status.ready, status.due, status.running, status.expired) == (2, 2, 2, 1)
    assert (status.failing, status.paused, status.dead) == (1, 1, 1)
    assert status.next_due == harness.now()
    assert status.unknown == {"orphan": 1}
    assert (await harness.job(waiting)).state is State.READY
    assert (await harness.job(expired.job_id)).state is State.CLAIMED


async def test_read_now_is_the_databases_time(harness: StoreHarness) -> None:
    """The deciding clock is the database's, here the test's."""
    harness.now.advance(microseconds=1)
    assert await harness.store.read_now() == harness.now()


async def test_status_of_nothing(harness: StoreHarness) -> None:
    """An empty database has only zeros."""
    status = await harness.store.read_status()
    assert (status.ready, status.due, status.running, status.next_due, status.unknown) == (0, 0, 0, None, {})


async def test_workers_register(harness: StoreHarness) -> None:
    """What a worker registers is what others read; its running jobs are counted."""
    await harness.store.register_worker(worker_record("alice", queues=["a", "ä"], tasks=["x", '"y"'], app_version="7"))
    await harness.claimed()
    (view,) = await harness.store.list_workers()
    assert (view.id, view.host, view.pid, view.version, view.app_version) == ("alice", "host", 1, "1", "7")
    assert (view.queues, view.tasks, view.concurrency, view.running) == (["a", "ä"], ["x", '"y"'], 4, 1)
    assert (view.started_at, view.heartbeat_at, view.state) == (START, START, "alive")


async def test_worker_registered_again(harness: StoreHarness) -> None:
    """Its start time stays, and it is alive again."""
    await harness.store.register_worker(worker_record())
    await harness.store.stop_worker("alice")
    harness.now.advance(hours=1)
    await harness.store.register_worker(worker_record(tasks=["new"]))
    (view,) = await harness.store.list_workers()
    assert (view.state, view.tasks, view.started_at, view.heartbeat_at) == ("alive", ["new"], START, harness.now())


async def test_living_workers_first(harness: StoreHarness) -> None:
    """Alive, then dead, then stopped."""
    await harness.store.register_worker(worker_record("c-stopped"))
    await harness.store.stop_worker("c-stopped")
    await harness.store.register_worker(worker_record("b-dead", alive_for=SECOND))
    await harness.store.register_worker(worker_record("d-alive"))
    harness.now.advance(seconds=2)
    views = await harness.store.list_workers()
    assert [(view.id, view.state) for view in views] == [
        ("d-alive", "alive"),
        ("b-dead", "dead"),
        ("c-stopped", "stopped"),
    ]


@pytest.mark.parametrize("verb", ["pause_job", "resume_job", "run_job_now", "retry_job", "cancel_job"])
async def test_an_operator_who_saw_an_older_run_changes_nothing(harness: StoreHarness, verb: str) -> None:
    """With the fence that a page showed, an action is refused once the job was claimed again."""
    claim = await harness.claimed(new_job(max_attempts=1 if verb == "retry_job" else None))
    assert await harness.fail(claim)
    if verb == "resume_job":
        assert await harness.store.pause_job(claim.job_id)
    act = getattr(harness.store, verb)
    before = await harness.backend.snapshot()
    assert not await act(claim.job_id, fence=claim.fence - 1)
    assert not await act(claim.job_id, fence=claim.fence + 1)
    assert await harness.backend.snapshot() == before
    assert await act(claim.job_id, fence=claim.fence)
