"""Claiming: which worker gets which job, in which order, and when to ask again."""

from __future__ import annotations

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from reltask.model.job import NewJob, State
from tests.store.store_harness import EVERY, LOCK, StoreHarness, new_job, recurring, worker_record

SECOND = timedelta(seconds=1)


async def test_claim_carries_the_whole_slot(harness: StoreHarness) -> None:
    """A claim has all that a worker needs; the lock timeout is the worker's if the job has none."""
    job = recurring(key="a", args='{"name": "Ada"}', priority=3, max_attempts=7)
    await harness.add(job)
    harness.now.advance(seconds=5)
    claim = await harness.claim_one()
    assert (claim.job_id, claim.fence, claim.slot_no, claim.attempt, claim.max_attempts) == (job.id, 1, 1, 1, 7)
    assert (claim.task, claim.key, claim.queue, claim.priority) == ("greet", "a", "default", 3)
    assert (claim.args, claim.schedule, claim.isolated) == ('{"name": "Ada"}', EVERY, False)
    assert claim.nominal == claim.due_at == harness.now() - 5 * SECOND
    assert claim.locked_at == claim.slot_started_at == harness.now()
    assert claim.lock_timeout == LOCK


async def test_claim_writes_the_lock(harness: StoreHarness) -> None:
    """The row shows the owner, both times and when the lock ends; fence and attempt have grown by one."""
    claim = await harness.claimed(new_job(lock_timeout=7 * SECOND))
    view = await harness.job(claim.job_id)
    assert (view.state, view.locked_by, view.fence, view.attempt) == (State.CLAIMED, "alice", 1, 1)
    assert view.locked_at == view.heartbeat_at == harness.now()
    assert view.lock_expires_at == harness.now() + 7 * SECOND
    assert claim.lock_timeout == 7 * SECOND


async def test_claimed_jobs_are_not_claimed_again(harness: StoreHarness) -> None:
    """One valid claim at a time: the same worker gets nothing either."""
    await harness.claimed()
    assert (await harness.claim("alice", limit=10)).claims == []
    assert (await harness.claim("bob", limit=10)).claims == []


async def test_limit_is_a_limit(harness: StoreHarness) -> None:
    """No more than requested; the rest stays."""
    await harness.add(*[new_job() for _ in range(7)])
    assert len((await harness.claim(limit=3)).claims) == 3
    assert len((await harness.claim(limit=10)).claims) == 4


async def test_limit_zero_only_reports_the_times(harness: StoreHarness) -> None:
    """A worker without a free place can ask when a job becomes due, without claiming."""
    await harness.claimed()
    later = new_job(delay=30 * SECOND)
    await harness.add(later)
    before = await harness.snapshot()
    answer = await harness.claim(limit=0)
    assert answer.claims == []
    assert (answer.now, answer.next_due, answer.next_expiry) == (
        harness.now(),
        harness.now() + 30 * SECOND,
        harness.now() + LOCK,
    )
    assert await harness.snapshot() == before


@pytest.mark.parametrize(
    "fields",
    [{"queue": "other"}, {"task": "unheard_of"}, {"delay": timedelta(microseconds=1)}],
    ids=["other queue", "unknown task", "future"],
)
async def test_not_claimable(harness: StoreHarness, fields: dict[str, object]) -> None:
    """Other queues, unknown names and future jobs are not claimed: no column changes."""
    await harness.add(new_job(**fields))
    before = await harness.snapshot()
    assert (await harness.claim(limit=10)).claims == []
    assert await harness.snapshot() == before


async def test_due_to_the_microsecond(harness: StoreHarness) -> None:
    """A job is claimed at its due time and not a microsecond before."""
    await harness.add(new_job(delay=SECOND))
    harness.now.advance(microseconds=999_999)
    assert (await harness.claim()).claims == []
    harness.now.advance(microseconds=1)
    assert len((await harness.claim()).claims) == 1


async def test_paused_is_not_claimed(harness: StoreHarness) -> None:
    """A paused job waits, however long it has been due."""
    (job_id,) = await harness.add(new_job())
    await harness.store.pause_job(job_id)
    answer = await harness.claim()
    assert (answer.claims, answer.next_due) == ([], None)
    await harness.store.resume_job(job_id)
    assert (await harness.claim_one()).job_id == job_id


async def test_dead_is_not_claimed(harness: StoreHarness) -> None:
    """A dead letter waits for an operator."""
    claim = await harness.claimed(new_job(max_attempts=1))
    await harness.fail(claim)
    harness.now.advance(days=1)
    answer = await harness.claim()
    assert (answer.claims, answer.next_due) == ([], None)


async def test_priority_goes_before_age(harness: StoreHarness) -> None:
    """Priority 0 first, 9 last; within a priority the oldest due time."""
    jobs = [new_job(priority=priority, delay=delay * SECOND) for priority, delay in [(9, 0), (5, 2), (5, 1), (0, 3)]]
    await harness.add(*jobs)
    harness.now.advance(seconds=10)
    answer = await harness.claim(limit=10)
    assert [claim.job_id for claim in answer.claims] == [job.id for job in reversed(jobs)]


async def test_first_come_first_served_one_by_one(harness: StoreHarness) -> None:
    """Claiming one at a time takes jobs of one task in order of due time."""
    jobs = [new_job(delay=delay * SECOND) for delay in (3, 1, 2, 0)]
    await harness.add(*jobs)
    harness.now.advance(seconds=10)
    got = [(await harness.claim_one()).job_id for _ in jobs]
    assert got == [job.id for job in sorted(jobs, key=lambda job: job.delay or timedelta(0))]


async def test_no_task_starves_another_of_its_priority(harness: StoreHarness) -> None:
    """A task with an endless backlog does not keep an older job of another task waiting."""
    await harness.add(
        *[new_job(task="flood", delay=n * SECOND) for n in range(1, 20)], new_job(task="drop", delay=5 * SECOND)
    )
    harness.now.advance(seconds=60)
    claims = [await harness.claim_one(tasks=["flood", "drop"]) for _ in range(6)]
    assert "drop" in {claim.task for claim in claims}


async def test_lanes_of_many_queues_and_tasks(harness: StoreHarness) -> None:
    """Every known queue and task is searched, with unknown names before, between and after them."""
    names = ["a", "b", "c", "d", "e", "f", "ä", "Z"]
    jobs = [
        new_job(queue=queue, task=task, priority=priority)
        for queue in ("q1", "q2", "q3")
        for task in names
        for priority in (0, 5, 9)
    ]
    await harness.add(*jobs)
    answer = await harness.claim(queues=["q3", "q1", "empty"], tasks=["b", "e", "ä", "nothing"], limit=100)
    wanted = {job.id for job in jobs if job.queue in ("q1", "q3") and job.task in ("b", "e", "ä")}
    assert {claim.job_id for claim in answer.claims} == wanted
    assert [claim.priority for claim in answer.claims] == sorted(claim.priority for claim in answer.claims)


async def test_knowing_nothing_claims_nothing(harness: StoreHarness) -> None:
    """A worker without tasks or queues gets no job and no times."""
    await harness.add(new_job())
    for answer in (await harness.claim(tasks=[]), await harness.claim(queues=[])):
        assert (answer.claims, answer.next_due) == ([], None)


async def test_next_due_is_the_next_future_time(harness: StoreHarness) -> None:
    """The earliest due time after now among what this worker knows."""
    await harness.add(
        new_job(delay=30 * SECOND),
        new_job(delay=20 * SECOND, priority=9),
        new_job(delay=10 * SECOND, task="unheard_of"),
        new_job(delay=5 * SECOND, queue="other"),
    )
    assert (await harness.claim()).next_due == harness.now() + 20 * SECOND


async def test_next_due_looks_behind_what_was_taken(harness: StoreHarness) -> None:
    """With its places filled, a worker gets the next future time, not the backlog's, in the same lane too."""
    await harness.add(new_job(), new_job(), new_job(delay=20 * SECOND))
    assert (await harness.claim(limit=1)).next_due == harness.now() + 20 * SECOND
    assert (await harness.claim(limit=5)).next_due == harness.now() + 20 * SECOND


async def test_nothing_to_wait_for(harness: StoreHarness) -> None:
    """An empty database has no times."""
    answer = await harness.claim()
    assert (answer.claims, answer.now, answer.next_due, answer.next_expiry) == ([], harness.now(), None, None)


async def test_next_expiry_is_the_earliest_lock_of_all_workers(harness: StoreHarness) -> None:
    """So a dead worker's slot is taken over when its lock ends, without waiting for a poll."""
    await harness.claimed(new_job(lock_timeout=50 * SECOND), worker="bob")
    await harness.add(new_job())
    answer = await harness.claim()
    assert answer.next_expiry == harness.now() + 50 * SECOND
    assert (await harness.claim(tasks=["unheard_of"])).next_expiry == harness.now() + 50 * SECOND


async def test_next_expiry_includes_the_new_claim(harness: StoreHarness) -> None:
    """The claim's own locks count."""
    await harness.add(new_job())
    assert (await harness.claim()).next_expiry == harness.now() + LOCK


async def isolated_jobs(harness: StoreHarness, *jobs: NewJob) -> list[UUID]:
    """Enqueue these jobs, and lose two runs of each."""
    ids = await harness.add(*jobs)
    for _ in range(2):
        for queue in {job.queue for job in jobs}:
            while (await harness.claim(limit=10, queues=[queue])).claims:
                pass
        harness.now.value += LOCK + SECOND
        assert len(await harness.store.reclaim_jobs()) == len(jobs)
    return ids


async def test_after_one_lost_run_a_job_is_claimed_like_any_other(harness: StoreHarness) -> None:
    """One loss is usually a deploy or a lost machine: all jobs of a dead worker are claimed at once."""
    await harness.add(*(new_job() for _ in range(10)))
    await harness.claim(limit=10)
    harness.now.value += LOCK + SECOND
    assert len(await harness.store.reclaim_jobs()) == 10
    answer = await harness.claim(limit=20)
    assert [(claim.isolated, claim.attempt) for claim in answer.claims] == [(False, 2)] * 10


async def test_isolated_job_is_claimed_with_others(harness: StoreHarness) -> None:
    """A job that has lost two runs in a row is isolated: one per claim, beside everything else that is due."""
    first, second = await isolated_jobs(harness, new_job(), new_job())
    others = await harness.add(new_job(), new_job())
    answer = await harness.claim(limit=10)
    found = {claim.job_id: claim.isolated for claim in answer.claims}
    assert len(found) == 3
    assert {found.pop(job_id) for job_id in others} == {False}
    assert set(found.values()) == {True}
    assert set(found) < {first, second}
    assert answer.next_due is None, "the other isolated job waits for the end of this one, not for a time"


async def test_worker_that_runs_an_isolated_job_takes_no_other(harness: StoreHarness) -> None:
    """Without `isolated` such jobs are as if they were not there, and everything else is claimed."""
    await isolated_jobs(harness, new_job(), new_job())
    (other,) = await harness.add(new_job())
    answer = await harness.claim(limit=10, isolated=False)
    assert [claim.job_id for claim in answer.claims] == [other]
    assert answer.next_due is None


async def test_isolated_job_keeps_its_priority(harness: StoreHarness) -> None:
    """It goes neither before what is more urgent nor after what is less."""
    (lost,) = await isolated_jobs(harness, new_job(priority=5))
    before, after = await harness.add(new_job(priority=1), new_job(priority=9))
    assert [(await harness.claim_one(limit=1)).job_id for _ in range(3)] == [before, lost, after]


async def test_isolated_jobs_of_several_lanes(harness: StoreHarness) -> None:
    """One in all, not one per queue, task or priority: the most urgent one first."""
    jobs = [new_job(priority=9), new_job(priority=1), new_job(priority=5)]
    ids = await isolated_jobs(harness, *jobs)
    first = [claim.job_id for claim in (await harness.claim(limit=10)).claims]
    assert first == [ids[1]]
    assert [claim.job_id for claim in (await harness.claim(limit=10)).claims] == [ids[2]]


async def test_isolated_job_in_the_future(harness: StoreHarness) -> None:
    """`next_due` names it like any other, but not to a worker that could not take it."""
    (lost,) = await isolated_jobs(harness, new_job())
    claim = await harness.claim_one()
    assert claim.job_id == lost
    await harness.fail(claim, delay=timedelta(minutes=5))
    assert (await harness.claim()).next_due == harness.now() + timedelta(minutes=5)


async def test_isolated_job_of_an_unknown_task_is_left_alone(harness: StoreHarness) -> None:
    """Isolation does not extend what a worker knows."""
    await isolated_jobs(harness, new_job())
    assert (await harness.claim(tasks=["other"])).claims == []
    assert (await harness.claim(queues=["other"])).claims == []


async def test_slot_started_at_is_the_first_claim(harness: StoreHarness) -> None:
    """The start that `every` counts from does not move with later attempts of the slot, nor with heartbeats."""
    first = await harness.claimed(recurring())
    harness.now.advance(seconds=3)
    await harness.store.heartbeat_jobs("alice", [first.hold], alive_for=LOCK)
    await harness.fail(first)
    again = await harness.claim_one()
    assert again.slot_started_at == first.locked_at
    assert again.locked_at == harness.now()


async def test_claim_shows_a_sign_of_life(harness: StoreHarness) -> None:
    """A worker that only polls stays alive for the others."""
    await harness.store.register_worker(worker_record(alive_for=10 * SECOND))
    harness.now.advance(seconds=9)
    await harness.claim(alive_for=60 * SECOND)
    harness.now.advance(seconds=30)
    (view,) = await harness.store.list_workers()
    assert (view.state, view.heartbeat_at) == ("alive", harness.now() - 30 * SECOND)


async def test_tokens_identify_claims(harness: StoreHarness) -> None:
    """Each claim writes its token, so that a claim whose answer was lost can be recognised."""
    tokens = [uuid4(), uuid4()]
    await harness.add(new_job(), new_job())
    claims = [await harness.claim_one(token=token) for token in tokens]
    found = [
        (await harness.store.heartbeat_jobs("alice", [], alive_for=LOCK, tokens=[token])).strays for token in tokens
    ]
    assert found == [[claim.hold] for claim in claims]


async def test_own_lock_timeout_goes_before_the_workers(harness: StoreHarness) -> None:
    """The copied timeout is the job's own, and the answer reports what is in the row."""
    claim = await harness.claimed(new_job(lock_timeout=timedelta(milliseconds=1500)))
    view = await harness.job(claim.job_id)
    assert view.lock_expires_at is not None
    assert claim.lock_timeout == view.lock_expires_at - claim.locked_at == timedelta(milliseconds=1500)
