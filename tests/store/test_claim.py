"""Claiming: who gets what, in which order, and when to ask again."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from reltask.model.job import State
from tests.store.bench import EVERY, ISOLATED_AFTER, LOCK, Bench, new_job, recurring, worker_record

SECOND = timedelta(seconds=1)


async def test_claim_carries_the_whole_slot(bench: Bench) -> None:
    """A claim says all that a worker needs; the lock timeout is the worker's where the job names none."""
    job = recurring(key="a", args='{"name": "Ada"}', priority=3, max_attempts=7)
    await bench.add(job)
    bench.now.advance(seconds=5)
    claim = await bench.claim_one()
    assert (claim.job_id, claim.fence, claim.slot_no, claim.attempt, claim.max_attempts) == (job.id, 1, 1, 1, 7)
    assert (claim.task, claim.key, claim.queue, claim.priority) == ("greet", "a", "default", 3)
    assert (claim.args, claim.schedule, claim.isolated) == ('{"name": "Ada"}', EVERY, False)
    assert claim.nominal == claim.due_at == bench.now() - 5 * SECOND
    assert claim.locked_at == claim.slot_started_at == bench.now()
    assert claim.lock_timeout == LOCK


async def test_claim_writes_the_lock(bench: Bench) -> None:
    """The row shows the owner, both times and when the lock ends; fence and attempt have grown by one."""
    claim = await bench.claimed(new_job(lock_timeout=7 * SECOND))
    view = await bench.job(claim.job_id)
    assert (view.state, view.locked_by, view.fence, view.attempt) == (State.CLAIMED, "alice", 1, 1)
    assert view.locked_at == view.heartbeat_at == bench.now()
    assert view.lock_expires_at == bench.now() + 7 * SECOND
    assert claim.lock_timeout == 7 * SECOND


async def test_claimed_jobs_are_not_claimed_again(bench: Bench) -> None:
    """One valid claim at a time: the same worker gets nothing either."""
    await bench.claimed()
    assert (await bench.claim("alice", limit=10)).claims == []
    assert (await bench.claim("bob", limit=10)).claims == []


async def test_limit_is_a_limit(bench: Bench) -> None:
    """No more than asked for, and the rest stays."""
    await bench.add(*[new_job() for _ in range(7)])
    assert len((await bench.claim(limit=3)).claims) == 3
    assert len((await bench.claim(limit=10)).claims) == 4


async def test_limit_nought_only_tells_the_times(bench: Bench) -> None:
    """A worker without a free place can ask when something becomes due, and takes nothing."""
    await bench.claimed()
    later = new_job(delay=30 * SECOND)
    await bench.add(later)
    before = await bench.snapshot()
    answer = await bench.claim(limit=0)
    assert answer.claims == []
    assert (answer.now, answer.next_due, answer.next_expiry) == (
        bench.now(),
        bench.now() + 30 * SECOND,
        bench.now() + LOCK,
    )
    assert await bench.snapshot() == before


@pytest.mark.parametrize(
    "fields",
    [{"queue": "other"}, {"task": "unheard_of"}, {"delay": timedelta(microseconds=1)}],
    ids=["other queue", "unknown task", "future"],
)
async def test_not_claimable(bench: Bench, fields: dict[str, object]) -> None:
    """Other queues, unknown names and the future are left alone: not a column changes."""
    await bench.add(new_job(**fields))
    before = await bench.snapshot()
    assert (await bench.claim(limit=10)).claims == []
    assert await bench.snapshot() == before


async def test_due_to_the_microsecond(bench: Bench) -> None:
    """A job is claimed at its due time and not a microsecond before."""
    await bench.add(new_job(delay=SECOND))
    bench.now.advance(microseconds=999_999)
    assert (await bench.claim()).claims == []
    bench.now.advance(microseconds=1)
    assert len((await bench.claim()).claims) == 1


async def test_paused_is_not_claimed(bench: Bench) -> None:
    """A paused job waits, however long it has been due."""
    (job_id,) = await bench.add(new_job())
    await bench.store.pause_job(job_id)
    answer = await bench.claim()
    assert (answer.claims, answer.next_due) == ([], None)
    await bench.store.resume_job(job_id)
    assert (await bench.claim_one()).job_id == job_id


async def test_dead_is_not_claimed(bench: Bench) -> None:
    """A dead letter waits for a person."""
    claim = await bench.claimed(new_job(max_attempts=1))
    await bench.fail(claim)
    bench.now.advance(days=1)
    answer = await bench.claim()
    assert (answer.claims, answer.next_due) == ([], None)


async def test_priority_goes_before_age(bench: Bench) -> None:
    """Priority 0 first, 9 last; within a priority the oldest due time."""
    jobs = [new_job(priority=priority, delay=delay * SECOND) for priority, delay in [(9, 0), (5, 2), (5, 1), (0, 3)]]
    await bench.add(*jobs)
    bench.now.advance(seconds=10)
    answer = await bench.claim(limit=10)
    assert [claim.job_id for claim in answer.claims] == [job.id for job in reversed(jobs)]


async def test_first_come_first_served_one_by_one(bench: Bench) -> None:
    """Claiming one at a time takes jobs of one task in order of due time."""
    jobs = [new_job(delay=delay * SECOND) for delay in (3, 1, 2, 0)]
    await bench.add(*jobs)
    bench.now.advance(seconds=10)
    got = [(await bench.claim_one()).job_id for _ in jobs]
    assert got == [job.id for job in sorted(jobs, key=lambda job: job.delay or timedelta(0))]


async def test_no_task_starves_another_of_its_priority(bench: Bench) -> None:
    """A task with an endless backlog does not keep an older job of another task waiting."""
    await bench.add(
        *[new_job(task="flood", delay=n * SECOND) for n in range(1, 20)], new_job(task="drop", delay=5 * SECOND)
    )
    bench.now.advance(seconds=60)
    claims = [await bench.claim_one(tasks=["flood", "drop"]) for _ in range(6)]
    assert "drop" in {claim.task for claim in claims}


async def test_lanes_of_many_queues_and_tasks(bench: Bench) -> None:
    """Every known queue and task is looked through, with unknown names before, between and after them."""
    names = ["a", "b", "c", "d", "e", "f", "ä", "Z"]
    jobs = [
        new_job(queue=queue, task=task, priority=priority)
        for queue in ("q1", "q2", "q3")
        for task in names
        for priority in (0, 5, 9)
    ]
    await bench.add(*jobs)
    answer = await bench.claim(queues=["q3", "q1", "empty"], tasks=["b", "e", "ä", "nothing"], limit=100)
    wanted = {job.id for job in jobs if job.queue in ("q1", "q3") and job.task in ("b", "e", "ä")}
    assert {claim.job_id for claim in answer.claims} == wanted
    assert [claim.priority for claim in answer.claims] == sorted(claim.priority for claim in answer.claims)


async def test_knowing_nothing_claims_nothing(bench: Bench) -> None:
    """A worker without tasks or queues asks in vain, and is told of no time."""
    await bench.add(new_job())
    for answer in (await bench.claim(tasks=[]), await bench.claim(queues=[])):
        assert (answer.claims, answer.next_due) == ([], None)


async def test_next_due_is_the_next_future_time(bench: Bench) -> None:
    """The earliest due time after now among what this worker knows."""
    await bench.add(
        new_job(delay=30 * SECOND),
        new_job(delay=20 * SECOND, priority=9),
        new_job(delay=10 * SECOND, task="unheard_of"),
        new_job(delay=5 * SECOND, queue="other"),
    )
    assert (await bench.claim()).next_due == bench.now() + 20 * SECOND


async def test_next_due_looks_behind_what_was_taken(bench: Bench) -> None:
    """With its places filled, a worker hears of the future and not of the backlog, in the same lane too."""
    await bench.add(new_job(), new_job(), new_job(delay=20 * SECOND))
    assert (await bench.claim(limit=1)).next_due == bench.now() + 20 * SECOND
    assert (await bench.claim(limit=5)).next_due == bench.now() + 20 * SECOND


async def test_nothing_to_wait_for(bench: Bench) -> None:
    """An empty database knows no times."""
    answer = await bench.claim()
    assert (answer.claims, answer.now, answer.next_due, answer.next_expiry) == ([], bench.now(), None, None)


async def test_next_expiry_is_the_earliest_lock_of_anybody(bench: Bench) -> None:
    """So that a dead worker's slot is taken over when its lock ends, not a poll later."""
    await bench.claimed(new_job(lock_timeout=50 * SECOND), worker="bob")
    await bench.add(new_job())
    answer = await bench.claim()
    assert answer.next_expiry == bench.now() + 50 * SECOND
    assert (await bench.claim(tasks=["unheard_of"])).next_expiry == bench.now() + 50 * SECOND


async def test_next_expiry_includes_the_new_claim(bench: Bench) -> None:
    """The claim's own locks count."""
    await bench.add(new_job())
    assert (await bench.claim()).next_expiry == bench.now() + LOCK


async def test_isolated_job_is_claimed_alone(bench: Bench) -> None:
    """After a lost run a job comes alone although others are due and there is room; the answer says: ask again."""
    lost = await bench.claimed()
    await bench.lose(lost)
    bystanders = await bench.add(new_job(), new_job())
    answer = await bench.claim(limit=10)
    assert [(claim.job_id, claim.isolated) for claim in answer.claims] == [(lost.job_id, True)]
    assert answer.next_due is not None
    assert answer.next_due <= bench.now()
    answer = await bench.claim(limit=10)
    assert {claim.job_id for claim in answer.claims} == set(bystanders)


async def test_isolated_job_is_not_due_at_once(bench: Bench) -> None:
    """It leaves the first moments to others, and `next_due` says when it may be taken."""
    lost = await bench.claimed(new_job(lock_timeout=SECOND))
    await bench.lose(lost)
    answer = await bench.claim(limit=10)
    assert (answer.claims, answer.next_due) == ([], lost.due_at + ISOLATED_AFTER)
    bench.now.value = lost.due_at + ISOLATED_AFTER
    assert (await bench.claim_one(limit=10)).job_id == lost.job_id


async def test_only_one_isolated_job_at_a_time(bench: Bench) -> None:
    """Two jobs whose runs were lost come one by one: one of them may be the poison."""
    await bench.add(new_job(), new_job())
    await bench.claim(limit=2)
    bench.now.value += LOCK + SECOND
    assert len(await bench.store.reclaim_jobs()) == 2
    assert [len((await bench.claim(limit=10)).claims) for _ in range(3)] == [1, 1, 0]


async def test_isolated_job_of_an_unknown_task_is_left_alone(bench: Bench) -> None:
    """Isolation does not widen what a worker knows."""
    await bench.lose(await bench.claimed())
    bench.now.advance(hours=1)
    assert (await bench.claim(tasks=["other"])).claims == []
    assert (await bench.claim(queues=["other"])).claims == []


async def test_slot_started_at_is_the_first_claim(bench: Bench) -> None:
    """What `every` counts from does not move with later attempts of the slot, nor with heartbeats."""
    first = await bench.claimed(recurring())
    bench.now.advance(seconds=3)
    await bench.store.heartbeat_jobs("alice", [first.hold], alive_for=LOCK)
    await bench.fail(first)
    again = await bench.claim_one()
    assert again.slot_started_at == first.locked_at
    assert again.locked_at == bench.now()


async def test_claim_shows_a_sign_of_life(bench: Bench) -> None:
    """A worker that only polls stays alive in the eyes of the others."""
    await bench.store.register_worker(worker_record(alive_for=10 * SECOND))
    bench.now.advance(seconds=9)
    await bench.claim(alive_for=60 * SECOND)
    bench.now.advance(seconds=30)
    (view,) = await bench.store.list_workers()
    assert (view.state, view.heartbeat_at) == ("alive", bench.now() - 30 * SECOND)


async def test_tokens_tell_claims_apart(bench: Bench) -> None:
    """Each claim writes its token, so that a claim whose answer was lost can be recognised."""
    tokens = [uuid4(), uuid4()]
    await bench.add(new_job(), new_job())
    claims = [await bench.claim_one(token=token) for token in tokens]
    found = [(await bench.store.heartbeat_jobs("alice", [], alive_for=LOCK, tokens=[token])).strays for token in tokens]
    assert found == [[claim.hold] for claim in claims]


async def test_own_lock_timeout_goes_before_the_workers(bench: Bench) -> None:
    """The copied timeout is the job's own, and what is reported is what is in the row."""
    claim = await bench.claimed(new_job(lock_timeout=timedelta(milliseconds=1500)))
    view = await bench.job(claim.job_id)
    assert view.lock_expires_at is not None
    assert claim.lock_timeout == view.lock_expires_at - claim.locked_at == timedelta(milliseconds=1500)
