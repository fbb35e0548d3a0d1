"""The audit: a history written by the verbs is sound, and each kind of damage is found and named.

The damage is done by hand, in the tables. No verb can do it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from reltask.model.audit import KEPT_FOR, Break, BreakKind, Wait
from reltask.model.job import Claim, NewJob, Outcome
from tests import mssql_server
from tests.store.store_harness import (
    ALIVE,
    LOCK,
    MssqlBackend,
    PostgresBackend,
    SqliteBackend,
    StoreHarness,
    new_job,
    recurring,
    worker_record,
)

ENDS_ONCE = "(job_id, slot_no) where outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')"


async def damage(harness: StoreHarness, sql: str) -> None:
    """Run SQL by hand; `@` is replaced by the prefix of a table's name."""
    if isinstance(harness.backend, SqliteBackend):
        with closing(sqlite3.connect(harness.backend.path)) as connection, connection:
            connection.execute(sql.replace("@", "reltask_"))
        return
    if isinstance(harness.backend, MssqlBackend):
        mssql_server.run(harness.backend.connection, mssql_server.spell(sql))
        return
    assert isinstance(harness.backend, PostgresBackend)
    async with harness.backend._connection() as connection:
        await connection.execute(sql.replace("@", "reltask."))


@pytest.fixture
async def unguarded(harness: StoreHarness) -> AsyncIterator[StoreHarness]:
    """A database without the index that forbids a second end of a slot."""
    names = {SqliteBackend: "reltask_runs_slot_ends_once", MssqlBackend: "UX_Runs_SlotEndsOnce"}
    name = names.get(type(harness.backend), "runs_slot_ends_once")
    on_mssql = isinstance(harness.backend, MssqlBackend)
    await damage(harness, f"drop index {name} on @runs" if on_mssql else "drop index @runs_slot_ends_once")
    yield harness
    await damage(harness, "delete from @runs")
    await damage(harness, f"create unique index {name} on @runs {ENDS_ONCE}")


async def end_slots(harness: StoreHarness, job: NewJob, count: int) -> UUID:
    """A recurring job that has succeeded `count` times, ten minutes apart."""
    await harness.add(job)
    for _ in range(count):
        assert await harness.complete(await harness.claim_one(), next_run_time=harness.now() + timedelta(minutes=10))
        harness.now.advance(minutes=10)
    return job.id


async def breaks(harness: StoreHarness) -> list[tuple[BreakKind, int, int]]:
    found = await harness.store.audit_slots(kept_for=KEPT_FOR)
    return [(one.kind, one.first_no, one.last_no) for one in found]


async def waits(harness: StoreHarness) -> list[Wait]:
    return await harness.store.audit_waiting(lock_timeout=LOCK)


async def lived(harness: StoreHarness) -> tuple[UUID, UUID]:
    """All transitions: fail, release, lose, skip, cancel, discard, a dead letter, and a running claim."""
    await harness.store.register_worker(worker_record())
    every = await end_slots(harness, recurring(key="every"), 1)
    assert await harness.fail(await harness.claim_one())
    assert await harness.release(await harness.claim_one())
    await harness.lose(await harness.claim_one())
    harness.now.advance(minutes=1)
    skipped = tuple(harness.now() + timedelta(minutes=minutes) for minutes in (1, 2))
    last = await harness.claim_one()
    assert await harness.complete(last, next_run_time=harness.now() + timedelta(hours=3), skipped=skipped)
    assert await harness.complete(await harness.claimed(), outcome=Outcome.CANCELLED)
    discarded = await harness.claimed()
    assert await harness.release(discarded)
    assert await harness.store.discard_job(discarded.job_id)
    assert await harness.fail(await harness.claimed(new_job(max_attempts=1)))
    running = await harness.claimed(new_job(lock_timeout=timedelta(hours=1)))
    return every, running.job_id


# Sound histories


async def test_an_empty_database_is_sound(harness: StoreHarness) -> None:
    """There is nothing to count and no finding."""
    assert await harness.store.audit_tasks() == []
    assert await breaks(harness) == []
    assert await waits(harness) == []
    assert await harness.store.audit_losses() == []


async def test_what_the_verbs_wrote_is_sound(harness: StoreHarness) -> None:
    """Skipped and discarded slots take their own numbers and fences; a running claim has no ledger row yet."""
    await lived(harness)
    assert await breaks(harness) == []
    assert await waits(harness) == []


async def test_a_task_is_counted(harness: StoreHarness) -> None:
    """Slots by their end, runs by their outcome, and the lateness of first attempts."""
    await lived(harness)
    (count,) = await harness.store.audit_tasks()
    assert (count.jobs, count.ended, count.doubled, count.cut) == (5, 6, 0, 0)
    assert (count.succeeded, count.cancelled, count.skipped, count.discarded) == (2, 1, 2, 1)
    assert (count.failed, count.lost, count.given_back) == (2, 1, 2)
    assert await harness.store.audit_tasks(task="other") == []


async def test_lateness_is_that_of_first_attempts(harness: StoreHarness) -> None:
    """From due to claimed, in seconds: median, 95th percentile, maximum."""
    for late in range(1, 21):
        await harness.add(new_job(run_at=harness.now() - timedelta(seconds=late)))
        assert await harness.complete(await harness.claim_one())
    await harness.add(new_job())
    assert await harness.fail(await harness.claim_one())
    harness.now.advance(seconds=1000)
    assert await harness.complete(await harness.claim_one())
    (count,) = await harness.store.audit_tasks()
    assert (count.late_p50, count.late_p95, count.late_max) == (10.0, 19.0, 20.0)


async def test_pruned_history_is_no_violation(harness: StoreHarness) -> None:
    """Where old rows may have been pruned, a history starts with the first row left; these are counted."""
    job_id = await end_slots(harness, recurring(), 8)
    await damage(harness, "delete from @runs where fence <= 5")
    assert await breaks(harness) == []
    (count,) = await harness.store.audit_tasks()
    assert (count.ended, count.cut) == (3, 1)
    await damage(harness, "delete from @runs where fence = 7")
    found = await harness.store.audit_slots(kept_for=KEPT_FOR)
    assert {(one.job_id, one.starts_at) for one in found} == {(job_id, 6)}


async def test_a_job_whose_whole_history_was_pruned_is_no_violation(harness: StoreHarness) -> None:
    """Only the row is left, and it is old."""
    await end_slots(harness, recurring(), 3)
    await damage(harness, "delete from @runs")
    harness.now.advance(hours=1)
    assert await breaks(harness) == []


# Broken histories


async def test_a_missing_end_is_a_lost_slot(harness: StoreHarness) -> None:
    """The run of slot 2 is not in the ledger: its fence and its end are missing."""
    job_id = await end_slots(harness, recurring(key="k"), 3)
    await damage(harness, "delete from @runs where slot_no = 2")
    assert await breaks(harness) == [(BreakKind.RUN_MISSING, 2, 2), (BreakKind.SLOT_LOST, 2, 2)]
    (first, _) = await harness.store.audit_slots(kept_for=KEPT_FOR)
    assert (first.job_id, first.task, first.key, first.starts_at) == (job_id, "greet", "k", 1)
    assert await harness.store.audit_slots(kept_for=KEPT_FOR, task="other") == []
    assert len(await harness.store.audit_slots(kept_for=KEPT_FOR, limit=1)) == 1


async def test_a_slot_that_was_passed_without_an_end_is_lost(harness: StoreHarness) -> None:
    """All runs exist, but none of slot 2 ended it."""
    await end_slots(harness, recurring(), 3)
    await damage(harness, "update @runs set outcome = 'failed' where slot_no = 2")
    assert await breaks(harness) == [(BreakKind.SLOT_LOST, 2, 2)]


async def test_the_newest_end_must_be_there(harness: StoreHarness) -> None:
    """The row is at slot 4, and the ledger ends with slot 2."""
    await end_slots(harness, recurring(), 3)
    await damage(harness, "delete from @runs where slot_no = 3")
    assert await breaks(harness) == [(BreakKind.RUN_MISSING, 3, 3), (BreakKind.SLOT_LOST, 3, 3)]


async def test_a_row_that_jumped_has_lost_slots(harness: StoreHarness) -> None:
    """A scheduled next slot that is neither in the ledger nor current."""
    await end_slots(harness, recurring(), 2)
    await damage(harness, "update @jobs set slot_no = slot_no + 3")
    assert await breaks(harness) == [(BreakKind.SLOT_LOST, 3, 5)]


async def test_a_young_history_starts_with_the_first_run(harness: StoreHarness) -> None:
    """No row of a job younger than the minimum retention can have been pruned."""
    await end_slots(harness, recurring(), 3)
    await damage(harness, "delete from @runs where fence <= 2")
    assert await breaks(harness) == [(BreakKind.RUN_MISSING, 1, 2), (BreakKind.SLOT_LOST, 1, 2)]
    await damage(harness, "delete from @runs")
    assert await breaks(harness) == [(BreakKind.RUN_MISSING, 1, 3), (BreakKind.SLOT_LOST, 1, 3)]


async def test_the_last_end_of_an_old_job_must_be_there_while_it_is_young(harness: StoreHarness) -> None:
    """The row says when the last slot ended: too recently for its ledger row to have been pruned."""
    await end_slots(harness, recurring(), 8)
    await damage(harness, "delete from @runs")
    assert await breaks(harness) == [(BreakKind.SLOT_LOST, 8, 8)]


async def test_a_slot_with_two_ends_is_found(unguarded: StoreHarness) -> None:
    """Without its index a database would accept them; the audit counts them."""
    await end_slots(unguarded, recurring(), 2)
    await damage(unguarded, "update @runs set slot_no = 1 where slot_no = 2")
    await damage(unguarded, "update @jobs set slot_no = 2")
    assert await breaks(unguarded) == [(BreakKind.SLOT_TWICE, 1, 1)]
    (count,) = await unguarded.store.audit_tasks()
    assert (count.ended, count.doubled) == (1, 1)


async def test_a_run_after_its_slots_end_is_found(harness: StoreHarness) -> None:
    """Every run of a slot precedes its end."""
    await end_slots(harness, recurring(), 1)
    assert await harness.fail(await harness.claim_one())
    await damage(harness, "update @runs set slot_no = 1 where slot_no = 2")
    found = await breaks(harness)
    assert (BreakKind.SLOT_REOPENED, 1, 1) in found


async def test_a_row_at_an_ended_slot_is_found(harness: StoreHarness) -> None:
    """It would run an ended slot again."""
    await end_slots(harness, recurring(), 2)
    await damage(harness, "update @jobs set slot_no = 2")
    assert await breaks(harness) == [(BreakKind.SLOT_REOPENED, 2, 2)]


async def test_a_claim_that_left_no_ledger_row_is_found(harness: StoreHarness) -> None:
    """A lock was cleared by hand: the run is over, and the ledger does not have it."""
    await harness.claimed()
    assert await breaks(harness) == []
    unlocked = "locked_by = null, locked_at = null, heartbeat_at = null, lock_expires_at = null"
    await damage(harness, f"update @jobs set {unlocked}")
    assert await breaks(harness) == [(BreakKind.RUN_MISSING, 1, 1)]


async def test_a_fence_that_went_back_is_found(harness: StoreHarness) -> None:
    """The next claim would get a fence that was given before."""
    await end_slots(harness, recurring(), 2)
    await damage(harness, "update @jobs set fence = 1")
    assert await breaks(harness) == [(BreakKind.FENCE_BEHIND, 2, 2)]


async def test_a_job_that_vanished_before_its_end_is_lost(harness: StoreHarness) -> None:
    """A one-off's row is removed together with its end, never without."""
    claim = await harness.claimed()
    assert await harness.fail(claim)
    await damage(harness, "delete from @jobs")
    assert await breaks(harness) == [(BreakKind.SLOT_LOST, 1, 1)]


async def test_a_recurring_job_that_vanished_has_lost_its_successor(harness: StoreHarness) -> None:
    """Only a discarded job may be gone."""
    assert await harness.store.discard_job(await end_slots(harness, recurring(key="discarded"), 2))
    assert await breaks(harness) == []
    vanished = await end_slots(harness, recurring(key="vanished"), 2)
    await damage(harness, "delete from @jobs")
    (found,) = await harness.store.audit_slots(kept_for=KEPT_FOR)
    assert (found.job_id, found.kind, found.first_no, found.last_no) == (vanished, BreakKind.SLOT_LOST, 3, 3)


async def test_a_one_off_may_end_in_a_later_slot(harness: StoreHarness) -> None:
    """`Again` gave it a second slot; the row that ended the job says so."""
    claim = await harness.claimed()
    assert await harness.complete(claim, next_run_time=harness.now(), args='{"cursor":2}')
    harness.now.advance(seconds=1)
    assert await harness.complete(await harness.claim_one())
    assert await breaks(harness) == []


async def test_a_recurring_job_that_vanished_after_its_first_slot_is_lost(harness: StoreHarness) -> None:
    """Its only end did not end the job."""
    await end_slots(harness, recurring(), 1)
    await damage(harness, "delete from @jobs")
    assert await breaks(harness) == [(BreakKind.SLOT_LOST, 2, 2)]


async def test_discarded_and_cancelled_jobs_are_over(harness: StoreHarness) -> None:
    """No worker ended them: a parent that an operator discarded, and its child."""
    parent = await harness.parent(1)
    assert await harness.store.discard_job(parent.job_id)
    assert await harness.sweep() == 1
    assert await breaks(harness) == []


async def test_breaks_of_one_job_are_not_those_of_another(harness: StoreHarness) -> None:
    """Each history is checked alone, whatever the numbers of other jobs."""
    for key in ("a", "b", "c"):
        await harness.add(recurring(key=key))
    for claim in (await harness.claim(limit=3)).claims:
        assert await harness.complete(claim, next_run_time=harness.now() + timedelta(hours=1))
    assert await breaks(harness) == []
    middle = sorted(str(job.id) for job in await harness.store.list_jobs())[1]
    await damage(harness, f"update @jobs set slot_no = 3 where id = '{middle}'")
    (found,) = await harness.store.audit_slots(kept_for=KEPT_FOR)
    assert (str(found.job_id), found.kind, found.first_no) == (middle, BreakKind.SLOT_LOST, 2)


# Waiting


async def wait_for(harness: StoreHarness, length: timedelta) -> None:
    """Let time pass while every living worker stays alive."""
    harness.now.value += length
    for worker in await harness.store.list_workers():
        await harness.store.heartbeat_jobs(worker.id, [], alive_for=ALIVE)


async def test_a_due_job_that_an_idle_worker_leaves_is_a_violation(harness: StoreHarness) -> None:
    """After its lock timeout, and not before."""
    await harness.store.register_worker(worker_record())
    job_id, _ = await harness.add(new_job(), new_job(delay=timedelta(hours=1)))
    await wait_for(harness, LOCK)
    assert await waits(harness) == []
    await wait_for(harness, timedelta(seconds=1))
    (wait,) = await waits(harness)
    assert wait.kind is BreakKind.UNCLAIMED
    assert wait.kind.is_violation
    assert (wait.task, wait.queue, wait.jobs, wait.job_id) == ("greet", "default", 1, job_id)
    assert wait.since == harness.now() - LOCK - timedelta(seconds=1)
    assert await harness.store.audit_waiting(task="other", lock_timeout=LOCK) == []


async def test_a_jobs_own_lock_timeout_counts(harness: StoreHarness) -> None:
    """It may be longer or shorter than the default."""
    await harness.store.register_worker(worker_record())
    await wait_for(harness, LOCK)
    patient = timedelta(minutes=10)
    _, hasty = await harness.add(new_job(lock_timeout=patient), new_job(lock_timeout=timedelta(seconds=10)))
    await wait_for(harness, timedelta(seconds=11))
    assert [wait.job_id for wait in await waits(harness)] == [hasty]
    await wait_for(harness, patient)
    assert [wait.jobs for wait in await waits(harness)] == [2]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tasks": ["other"]}, BreakKind.UNSERVED),
        ({"queues": ["other"]}, BreakKind.UNSERVED),
        ({"concurrency": 0}, BreakKind.BACKLOG),
        ({"tasks": ["other", "greet"], "queues": ["other", "default"]}, BreakKind.UNCLAIMED),
    ],
)
async def test_only_a_worker_that_could_have_claimed_it_is_at_fault(
    harness: StoreHarness, fields: dict[str, Any], kind: BreakKind
) -> None:
    """It knows the task, serves the queue, and has a free place; otherwise too few workers run, and that is a note."""
    await harness.store.register_worker(worker_record(**fields))
    await harness.add(new_job())
    await wait_for(harness, LOCK + timedelta(seconds=1))
    assert [wait.kind for wait in await waits(harness)] == [kind]


async def test_stopped_silent_and_new_workers_are_not_at_fault(harness: StoreHarness) -> None:
    """No worker was there, or it has just started; a stopped one is gone, whatever its alive_for."""
    await harness.store.register_worker(worker_record("stopped", alive_for=timedelta(days=1)))
    await harness.store.register_worker(worker_record("silent"))
    await harness.store.stop_worker("stopped")
    await harness.add(new_job())
    harness.now.advance(minutes=10)
    assert [wait.kind for wait in await waits(harness)] == [BreakKind.UNSERVED]
    await harness.store.register_worker(worker_record("new"))
    assert [wait.kind for wait in await waits(harness)] == [BreakKind.BACKLOG]


async def test_a_worker_that_is_busy_in_the_queue_is_working_off_a_backlog(harness: StoreHarness) -> None:
    """It holds a job of the queue, or has just ended one.

    After a lock timeout without either, it is idle.
    """
    await harness.store.register_worker(worker_record())
    await harness.add(new_job(), new_job())
    claim = await harness.claim_one()
    await wait_for(harness, LOCK + timedelta(seconds=1))
    assert [wait.kind for wait in await waits(harness)] == [BreakKind.BACKLOG]
    assert await harness.complete(claim)
    assert [wait.kind for wait in await waits(harness)] == [BreakKind.BACKLOG]
    await wait_for(harness, LOCK)
    assert [wait.kind for wait in await waits(harness)] == [BreakKind.UNCLAIMED]


async def test_a_freed_or_late_inserted_job_waits_from_then_on(harness: StoreHarness) -> None:
    """Its due time is long ago, but it could not be claimed earlier."""
    await harness.store.register_worker(worker_record())
    await harness.add(new_job())
    freed = await harness.claim_one("elsewhere")
    await wait_for(harness, LOCK + timedelta(minutes=1))
    await harness.store.reclaim_jobs()
    await harness.add(new_job(run_at=harness.now() - timedelta(hours=1)))
    assert await waits(harness) == []
    await wait_for(harness, LOCK + timedelta(seconds=1))
    (wait,) = await waits(harness)
    assert (wait.kind, wait.jobs, freed.job_id in {job.id for job in await harness.store.list_jobs()}) == (
        BreakKind.UNCLAIMED,
        2,
        True,
    )


async def test_paused_and_dead_jobs_do_not_wait(harness: StoreHarness) -> None:
    """They cannot be claimed."""
    await harness.store.register_worker(worker_record())
    (paused,) = await harness.add(new_job())
    assert await harness.store.pause_job(paused)
    assert await harness.fail(await harness.claimed(new_job(max_attempts=1)))
    await wait_for(harness, 3 * LOCK)
    assert await waits(harness) == []


async def test_an_expired_claim_is_taken_away_in_time(harness: StoreHarness) -> None:
    """Without a worker it is a note; with a worker that does not reclaim, a violation."""
    claim: Claim = await harness.claimed()
    harness.now.advance(minutes=4)
    assert await waits(harness) == []
    harness.now.advance(seconds=1)
    (wait,) = await waits(harness)
    assert (wait.kind, wait.job_id) == (BreakKind.EXPIRED, claim.job_id)
    await harness.store.register_worker(worker_record("other", tasks=[]))
    assert [wait.kind for wait in await waits(harness)] == [BreakKind.EXPIRED]
    await wait_for(harness, LOCK)
    (wait,) = await waits(harness)
    assert (wait.kind, wait.kind.is_violation) == (BreakKind.UNRECLAIMED, True)


# Losses


async def test_lost_runs_are_reported_by_worker_with_their_reason(harness: StoreHarness) -> None:
    """The last reason stands for all; a worker seen alive afterwards was not dead, and its late writes were refused."""
    for name in ("dead", "paused"):
        await harness.store.register_worker(worker_record(name))
    await harness.lose(await harness.claimed(worker="dead"))
    paused = await harness.claimed(new_job(task="other"), worker="paused")
    await harness.lose(paused)
    assert not await harness.complete(paused, worker="paused")
    harness.now.advance(minutes=1)
    await harness.store.heartbeat_jobs("paused", [], alive_for=ALIVE)
    second, first = await harness.store.audit_losses()
    assert (first.task, first.outcome, first.worker, first.runs, first.returned) == (
        "greet",
        Outcome.LOST,
        "dead",
        1,
        0,
    )
    assert (second.task, second.worker, second.runs, second.returned) == ("other", "paused", 1, 1)
    assert (second.reason or "").startswith("no heartbeat since 2025-03-30")
    assert [loss.worker for loss in await harness.store.audit_losses(task="greet")] == ["dead"]


async def test_an_abandoned_run_says_why(harness: StoreHarness) -> None:
    """The worker itself gave up; of several reasons the last is reported."""
    await harness.add(new_job())
    for reason in ("first", "three heartbeats failed"):
        claim = await harness.claim_one()
        assert await harness.release(claim, outcome=Outcome.ABANDONED, error=reason)
        harness.now.advance(seconds=1)
    (loss,) = await harness.store.audit_losses()
    assert (loss.outcome, loss.runs, loss.reason) == (Outcome.ABANDONED, 2, "three heartbeats failed")


# Reading


def test_a_break_reads_as_a_sentence() -> None:
    """One number, or a range."""
    one = Break(kind=BreakKind.SLOT_LOST, job_id=uuid4(), task="t", key=None, first_no=3, last_no=3, starts_at=1)
    assert one.text == "slot 3 neither ended in the ledger nor current in the job's row"
    many = Break(kind=BreakKind.RUN_MISSING, job_id=uuid4(), task="t", key=None, first_no=3, last_no=5, starts_at=1)
    assert (many.text, many.count) == ("fences 3 to 5 issued, but without a row in the ledger", 3)
