"""What people do and see: run now, retry, discard; lists, counts and workers."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from reltask.model.job import Outcome, State
from tests.store.bench import LOCK, START, Bench, new_job, recurring, worker_record

SECOND = timedelta(seconds=1)


async def test_run_now_makes_due_and_keeps_the_nominal_time(bench: Bench) -> None:
    """The slot keeps its name; only its due time moves."""
    later = START + timedelta(days=1)
    (job_id,) = await bench.add(recurring(run_at=later))
    bench.now.advance(seconds=1)
    assert await bench.store.run_job_now(job_id)
    claim = await bench.claim_one()
    assert (claim.nominal, claim.due_at) == (later, bench.now())


async def test_run_now_of_a_claimed_or_dead_job_changes_nothing(bench: Bench) -> None:
    """A running job is running; a dead one wants a retry."""
    running, dead = await bench.claimed(), await bench.claimed(new_job(max_attempts=1))
    await bench.fail(dead)
    before = await bench.snapshot()
    assert not await bench.store.run_job_now(running.job_id)
    assert not await bench.store.run_job_now(dead.job_id)
    assert await bench.snapshot() == before


async def test_retry_gives_a_new_set_of_attempts(bench: Bench) -> None:
    """A dead letter comes back with attempt 1 of its limit, due at once, in the same slot."""
    claim = await bench.claimed(new_job(max_attempts=1))
    await bench.fail(claim, delay=timedelta(hours=1))
    assert await bench.store.retry_job(claim.job_id)
    again = await bench.claim_one()
    assert (again.attempt, again.slot_no, again.fence, again.due_at) == (1, 1, 2, bench.now())


async def test_retry_after_lost_runs_is_not_isolated(bench: Bench) -> None:
    """A person has looked at it."""
    claim = await bench.claimed(new_job(max_attempts=1))
    await bench.lose(claim)
    assert await bench.store.retry_job(claim.job_id)
    assert not (await bench.claim_one()).isolated


async def test_discard_leaves_a_ledger_row(bench: Bench) -> None:
    """No worker ran it; it takes the next fence, and its slot has ended."""
    claim = await bench.claimed(new_job(max_attempts=1))
    await bench.fail(claim)
    assert await bench.store.discard_job(claim.job_id)
    failed, discarded = await bench.runs(claim.job_id)
    assert (failed.outcome, discarded.outcome) == (Outcome.FAILED, Outcome.DISCARDED)
    assert (discarded.fence, discarded.slot_no, discarded.worker, discarded.claimed_at) == (2, 1, None, None)
    assert discarded.finished_at == bench.now()


async def test_list_jobs_by_due_time_state_and_task(bench: Bench) -> None:
    """Filters narrow, the limit cuts, the order is by due time."""
    late, early, other = await bench.add(
        new_job(delay=2 * SECOND), new_job(delay=SECOND), new_job(task="other", delay=3 * SECOND)
    )
    running = await bench.claimed()
    await bench.store.pause_job(early)
    assert [view.id for view in await bench.store.list_jobs()] == [running.job_id, early, late, other]
    assert [view.id for view in await bench.store.list_jobs(limit=2)] == [running.job_id, early]
    assert [view.id for view in await bench.store.list_jobs(state=State.PAUSED)] == [early]
    assert [view.id for view in await bench.store.list_jobs(state=State.CLAIMED)] == [running.job_id]
    assert [view.id for view in await bench.store.list_jobs(state=State.READY, task="greet")] == [late]
    assert await bench.store.list_jobs(state=State.DEAD) == []


async def test_list_runs_newest_first(bench: Bench) -> None:
    """Of one job, of one task, or of all."""
    first = await bench.claimed()
    await bench.complete(first)
    bench.now.advance(seconds=1)
    second = await bench.claimed(new_job(task="other"))
    await bench.fail(second)
    assert [run.job_id for run in await bench.store.list_runs()] == [second.job_id, first.job_id]
    assert [run.job_id for run in await bench.store.list_runs(limit=1)] == [second.job_id]
    assert [run.job_id for run in await bench.store.list_runs(task="greet")] == [first.job_id]
    assert [run.job_id for run in await bench.store.list_runs(job_id=first.job_id)] == [first.job_id]
    assert await bench.store.list_runs(job_id=first.job_id, task="other") == []


async def test_unknown_job_is_none(bench: Bench) -> None:
    """No error for an id that is not there."""
    assert await bench.store.read_job(uuid4()) is None


async def test_status_counts_everything(bench: Bench) -> None:
    """Each number by its own definition."""
    await bench.store.register_worker(worker_record("alice", tasks=["greet"]))
    await bench.store.register_worker(worker_record("gone", alive_for=SECOND, tasks=["orphan"]))
    await bench.store.register_worker(worker_record("stopped", tasks=["orphan"]))
    await bench.store.stop_worker("stopped")
    expired = await bench.claimed(new_job(lock_timeout=SECOND))
    dead = await bench.claimed(new_job(max_attempts=1))
    await bench.fail(dead)
    failing = await bench.claimed()
    await bench.fail(failing, delay=5 * SECOND)
    await bench.claimed(new_job(lock_timeout=LOCK))
    bench.now.advance(seconds=2)
    waiting, paused, *_ = await bench.add(
        new_job(delay=timedelta(hours=1)), new_job(), new_job(task="orphan"), new_job()
    )
    await bench.store.pause_job(paused)
    status = await bench.store.read_status()
    assert (status.now, status.workers_alive) == (bench.now(), 1)
    assert (status.ready, status.due, status.running, status.expired) == (2, 2, 2, 1)
    assert (status.failing, status.paused, status.dead) == (1, 1, 1)
    assert status.next_due == bench.now()
    assert status.unknown == {"orphan": 1}
    assert (await bench.job(waiting)).state is State.READY
    assert (await bench.job(expired.job_id)).state is State.CLAIMED


async def test_read_now_is_the_databases_time(bench: Bench) -> None:
    """The clock that decides is the database's, here the test's."""
    bench.now.advance(microseconds=1)
    assert await bench.store.read_now() == bench.now()


async def test_status_of_nothing(bench: Bench) -> None:
    """An empty database counts nought."""
    status = await bench.store.read_status()
    assert (status.ready, status.due, status.running, status.next_due, status.unknown) == (0, 0, 0, None, {})


async def test_workers_introduce_themselves(bench: Bench) -> None:
    """What a worker says of itself is what others read; its running jobs are counted."""
    await bench.store.register_worker(worker_record("alice", queues=["a", "ä"], tasks=["x", '"y"'], app_version="7"))
    await bench.claimed()
    (view,) = await bench.store.list_workers()
    assert (view.id, view.host, view.pid, view.version, view.app_version) == ("alice", "host", 1, "1", "7")
    assert (view.queues, view.tasks, view.concurrency, view.running) == (["a", "ä"], ["x", '"y"'], 4, 1)
    assert (view.started_at, view.heartbeat_at, view.state) == (START, START, "alive")


async def test_worker_introduced_again(bench: Bench) -> None:
    """It began when it first did, and is alive again."""
    await bench.store.register_worker(worker_record())
    await bench.store.stop_worker("alice")
    bench.now.advance(hours=1)
    await bench.store.register_worker(worker_record(tasks=["new"]))
    (view,) = await bench.store.list_workers()
    assert (view.state, view.tasks, view.started_at, view.heartbeat_at) == ("alive", ["new"], START, bench.now())


async def test_living_workers_first(bench: Bench) -> None:
    """Alive, then dead, then stopped."""
    await bench.store.register_worker(worker_record("c-stopped"))
    await bench.store.stop_worker("c-stopped")
    await bench.store.register_worker(worker_record("b-dead", alive_for=SECOND))
    await bench.store.register_worker(worker_record("d-alive"))
    bench.now.advance(seconds=2)
    views = await bench.store.list_workers()
    assert [(view.id, view.state) for view in views] == [
        ("d-alive", "alive"),
        ("b-dead", "dead"),
        ("c-stopped", "stopped"),
    ]
