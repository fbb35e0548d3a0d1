"""The audit: a history that the verbs have written is sound, and each way to damage it is found and named.

The damage is done by hand, in the tables: no verb can do it.
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
from tests.store.bench import (
    ALIVE,
    LOCK,
    Bench,
    MssqlBackend,
    PostgresBackend,
    SqliteBackend,
    new_job,
    recurring,
    worker_record,
)

ENDS_ONCE = "(job_id, slot_no) where outcome in ('succeeded', 'cancelled', 'skipped', 'discarded')"


async def damage(bench: Bench, sql: str) -> None:
    """Run SQL by hand; `@` stands for what precedes a table's name."""
    if isinstance(bench.backend, SqliteBackend):
        with closing(sqlite3.connect(bench.backend.path)) as connection, connection:
            connection.execute(sql.replace("@", "reltask_"))
        return
    if isinstance(bench.backend, MssqlBackend):
        mssql_server.run(bench.backend.connection, mssql_server.spell(sql))
        return
    assert isinstance(bench.backend, PostgresBackend)
    async with bench.backend._connection() as connection:
        await connection.execute(sql.replace("@", "reltask."))


@pytest.fixture
async def unguarded(bench: Bench) -> AsyncIterator[Bench]:
    """A database that has lost the index which forbids a second end."""
    names = {SqliteBackend: "reltask_runs_slot_ends_once", MssqlBackend: "UX_Runs_SlotEndsOnce"}
    name = names.get(type(bench.backend), "runs_slot_ends_once")
    on_mssql = isinstance(bench.backend, MssqlBackend)
    await damage(bench, f"drop index {name} on @runs" if on_mssql else "drop index @runs_slot_ends_once")
    yield bench
    await damage(bench, "delete from @runs")
    await damage(bench, f"create unique index {name} on @runs {ENDS_ONCE}")


async def end_slots(bench: Bench, job: NewJob, count: int) -> UUID:
    """A recurring job that has succeeded so many times, ten minutes apart."""
    await bench.add(job)
    for _ in range(count):
        assert await bench.complete(await bench.claim_one(), next_run_time=bench.now() + timedelta(minutes=10))
        bench.now.advance(minutes=10)
    return job.id


async def breaks(bench: Bench) -> list[tuple[BreakKind, int, int]]:
    found = await bench.store.audit_slots(kept_for=KEPT_FOR)
    return [(one.kind, one.first_no, one.last_no) for one in found]


async def waits(bench: Bench) -> list[Wait]:
    return await bench.store.audit_waiting(lock_timeout=LOCK)


async def lived(bench: Bench) -> tuple[UUID, UUID]:
    """All that can happen: fail, release, lose, skip, cancel, discard, a dead letter, and a claim under way."""
    await bench.store.register_worker(worker_record())
    every = await end_slots(bench, recurring(key="every"), 1)
    assert await bench.fail(await bench.claim_one())
    assert await bench.release(await bench.claim_one())
    await bench.lose(await bench.claim_one())
    bench.now.advance(minutes=1)
    skipped = tuple(bench.now() + timedelta(minutes=minutes) for minutes in (1, 2))
    last = await bench.claim_one()
    assert await bench.complete(last, next_run_time=bench.now() + timedelta(hours=3), skipped=skipped)
    assert await bench.complete(await bench.claimed(), outcome=Outcome.CANCELLED)
    discarded = await bench.claimed()
    assert await bench.release(discarded)
    assert await bench.store.discard_job(discarded.job_id)
    assert await bench.fail(await bench.claimed(new_job(max_attempts=1)))
    running = await bench.claimed(new_job(lock_timeout=timedelta(hours=1)))
    return every, running.job_id


# Sound histories


async def test_an_empty_database_is_sound(bench: Bench) -> None:
    """Nothing to count, nothing to complain about."""
    assert await bench.store.audit_tasks() == []
    assert await breaks(bench) == []
    assert await waits(bench) == []
    assert await bench.store.audit_losses() == []


async def test_what_the_verbs_wrote_is_sound(bench: Bench) -> None:
    """Skipped and discarded slots take numbers and fences of their own; a claim under way has no ledger row yet."""
    await lived(bench)
    assert await breaks(bench) == []
    assert await waits(bench) == []


async def test_a_task_is_counted(bench: Bench) -> None:
    """Slots by how they ended, runs by how they went, and how late the first attempts were."""
    await lived(bench)
    (count,) = await bench.store.audit_tasks()
    assert (count.jobs, count.ended, count.doubled, count.cut) == (5, 6, 0, 0)
    assert (count.succeeded, count.cancelled, count.skipped, count.discarded) == (2, 1, 2, 1)
    assert (count.failed, count.lost, count.given_back) == (2, 1, 2)
    assert await bench.store.audit_tasks(task="other") == []


async def test_lateness_is_that_of_first_attempts(bench: Bench) -> None:
    """From due to claimed, in seconds: the middle, the 95th of a hundred, the worst."""
    for late in range(1, 21):
        await bench.add(new_job(run_at=bench.now() - timedelta(seconds=late)))
        assert await bench.complete(await bench.claim_one())
    await bench.add(new_job())
    assert await bench.fail(await bench.claim_one())
    bench.now.advance(seconds=1000)
    assert await bench.complete(await bench.claim_one())
    (count,) = await bench.store.audit_tasks()
    assert (count.late_p50, count.late_p95, count.late_max) == (10.0, 19.0, 20.0)


async def test_pruned_history_is_no_violation(bench: Bench) -> None:
    """Where old rows may have been pruned, a history starts with what is left; how many do is counted."""
    job_id = await end_slots(bench, recurring(), 8)
    await damage(bench, "delete from @runs where fence <= 5")
    assert await breaks(bench) == []
    (count,) = await bench.store.audit_tasks()
    assert (count.ended, count.cut) == (3, 1)
    await damage(bench, "delete from @runs where fence = 7")
    found = await bench.store.audit_slots(kept_for=KEPT_FOR)
    assert {(one.job_id, one.starts_at) for one in found} == {(job_id, 6)}


async def test_a_job_whose_whole_history_was_pruned_is_no_violation(bench: Bench) -> None:
    """Nothing of it is left but the row, and the row is old."""
    await end_slots(bench, recurring(), 3)
    await damage(bench, "delete from @runs")
    bench.now.advance(hours=1)
    assert await breaks(bench) == []


# Broken histories


async def test_a_missing_end_is_a_lost_slot(bench: Bench) -> None:
    """The run of slot 2 is not in the ledger: neither is its fence, nor its end."""
    job_id = await end_slots(bench, recurring(key="k"), 3)
    await damage(bench, "delete from @runs where slot_no = 2")
    assert await breaks(bench) == [(BreakKind.RUN_MISSING, 2, 2), (BreakKind.SLOT_LOST, 2, 2)]
    (first, _) = await bench.store.audit_slots(kept_for=KEPT_FOR)
    assert (first.job_id, first.task, first.key, first.starts_at) == (job_id, "greet", "k", 1)
    assert await bench.store.audit_slots(kept_for=KEPT_FOR, task="other") == []
    assert len(await bench.store.audit_slots(kept_for=KEPT_FOR, limit=1)) == 1


async def test_a_slot_that_was_passed_without_an_end_is_lost(bench: Bench) -> None:
    """All runs are there, but none of slot 2 ended it."""
    await end_slots(bench, recurring(), 3)
    await damage(bench, "update @runs set outcome = 'failed' where slot_no = 2")
    assert await breaks(bench) == [(BreakKind.SLOT_LOST, 2, 2)]


async def test_the_newest_end_must_be_there(bench: Bench) -> None:
    """The row has moved on to slot 4, and the ledger ends with slot 2."""
    await end_slots(bench, recurring(), 3)
    await damage(bench, "delete from @runs where slot_no = 3")
    assert await breaks(bench) == [(BreakKind.RUN_MISSING, 3, 3), (BreakKind.SLOT_LOST, 3, 3)]


async def test_a_row_that_jumped_has_lost_slots(bench: Bench) -> None:
    """A scheduled successor that is neither in the ledger nor current."""
    await end_slots(bench, recurring(), 2)
    await damage(bench, "update @jobs set slot_no = slot_no + 3")
    assert await breaks(bench) == [(BreakKind.SLOT_LOST, 3, 5)]


async def test_a_young_history_starts_with_the_first_run(bench: Bench) -> None:
    """Nothing of a job younger than what is always kept can have been pruned."""
    await end_slots(bench, recurring(), 3)
    await damage(bench, "delete from @runs where fence <= 2")
    assert await breaks(bench) == [(BreakKind.RUN_MISSING, 1, 2), (BreakKind.SLOT_LOST, 1, 2)]
    await damage(bench, "delete from @runs")
    assert await breaks(bench) == [(BreakKind.RUN_MISSING, 1, 3), (BreakKind.SLOT_LOST, 1, 3)]


async def test_the_last_end_of_an_old_job_must_be_there_while_it_is_young(bench: Bench) -> None:
    """The row says when the last slot ended: too lately for its ledger row to have been pruned."""
    await end_slots(bench, recurring(), 8)
    await damage(bench, "delete from @runs")
    assert await breaks(bench) == [(BreakKind.SLOT_LOST, 8, 8)]


async def test_a_slot_with_two_ends_is_found(unguarded: Bench) -> None:
    """Without its index a database would take them; the audit counts them all the same."""
    await end_slots(unguarded, recurring(), 2)
    await damage(unguarded, "update @runs set slot_no = 1 where slot_no = 2")
    await damage(unguarded, "update @jobs set slot_no = 2")
    assert await breaks(unguarded) == [(BreakKind.SLOT_TWICE, 1, 1)]
    (count,) = await unguarded.store.audit_tasks()
    assert (count.ended, count.doubled) == (1, 1)


async def test_a_run_after_its_slots_end_is_found(bench: Bench) -> None:
    """Every run of a slot precedes its end."""
    await end_slots(bench, recurring(), 1)
    assert await bench.fail(await bench.claim_one())
    await damage(bench, "update @runs set slot_no = 1 where slot_no = 2")
    found = await breaks(bench)
    assert (BreakKind.SLOT_REOPENED, 1, 1) in found


async def test_a_row_that_stands_at_an_ended_slot_is_found(bench: Bench) -> None:
    """It would run again what has ended."""
    await end_slots(bench, recurring(), 2)
    await damage(bench, "update @jobs set slot_no = 2")
    assert await breaks(bench) == [(BreakKind.SLOT_REOPENED, 2, 2)]


async def test_a_claim_that_left_no_ledger_row_is_found(bench: Bench) -> None:
    """Somebody cleared a lock by hand: the run is over, and the ledger does not know it."""
    await bench.claimed()
    assert await breaks(bench) == []
    unlocked = "locked_by = null, locked_at = null, heartbeat_at = null, lock_expires_at = null"
    await damage(bench, f"update @jobs set {unlocked}")
    assert await breaks(bench) == [(BreakKind.RUN_MISSING, 1, 1)]


async def test_a_fence_that_went_back_is_found(bench: Bench) -> None:
    """The next claim would present a fence that somebody had before."""
    await end_slots(bench, recurring(), 2)
    await damage(bench, "update @jobs set fence = 1")
    assert await breaks(bench) == [(BreakKind.FENCE_BEHIND, 2, 2)]


async def test_a_job_that_vanished_before_its_end_is_lost(bench: Bench) -> None:
    """A one-off's row is removed with its end and never without."""
    claim = await bench.claimed()
    assert await bench.fail(claim)
    await damage(bench, "delete from @jobs")
    assert await breaks(bench) == [(BreakKind.SLOT_LOST, 1, 1)]


async def test_a_recurring_job_that_vanished_has_lost_its_successor(bench: Bench) -> None:
    """Only one that was discarded may be gone."""
    assert await bench.store.discard_job(await end_slots(bench, recurring(key="discarded"), 2))
    assert await breaks(bench) == []
    vanished = await end_slots(bench, recurring(key="vanished"), 2)
    await damage(bench, "delete from @jobs")
    (found,) = await bench.store.audit_slots(kept_for=KEPT_FOR)
    assert (found.job_id, found.kind, found.first_no, found.last_no) == (vanished, BreakKind.SLOT_LOST, 3, 3)


async def test_breaks_of_one_job_are_not_those_of_another(bench: Bench) -> None:
    """Each history stands alone, whatever its neighbours' numbers are."""
    for key in ("a", "b", "c"):
        await bench.add(recurring(key=key))
    for claim in (await bench.claim(limit=3)).claims:
        assert await bench.complete(claim, next_run_time=bench.now() + timedelta(hours=1))
    assert await breaks(bench) == []
    middle = sorted(str(job.id) for job in await bench.store.list_jobs())[1]
    await damage(bench, f"update @jobs set slot_no = 3 where id = '{middle}'")
    (found,) = await bench.store.audit_slots(kept_for=KEPT_FOR)
    assert (str(found.job_id), found.kind, found.first_no) == (middle, BreakKind.SLOT_LOST, 2)


# Waiting


async def wait_for(bench: Bench, length: timedelta) -> None:
    """Let time pass while every worker that was alive stays so."""
    bench.now.value += length
    for worker in await bench.store.list_workers():
        await bench.store.heartbeat_jobs(worker.id, [], alive_for=ALIVE)


async def test_a_due_job_that_an_idle_worker_leaves_lying_is_a_violation(bench: Bench) -> None:
    """Past its lock timeout, and not before."""
    await bench.store.register_worker(worker_record())
    job_id, _ = await bench.add(new_job(), new_job(delay=timedelta(hours=1)))
    await wait_for(bench, LOCK)
    assert await waits(bench) == []
    await wait_for(bench, timedelta(seconds=1))
    (wait,) = await waits(bench)
    assert wait.kind is BreakKind.UNCLAIMED
    assert wait.kind.is_violation
    assert (wait.task, wait.queue, wait.jobs, wait.job_id) == ("greet", "default", 1, job_id)
    assert wait.since == bench.now() - LOCK - timedelta(seconds=1)
    assert await bench.store.audit_waiting(task="other", lock_timeout=LOCK) == []


async def test_a_jobs_own_lock_timeout_counts(bench: Bench) -> None:
    """It may be longer or shorter than the default."""
    await bench.store.register_worker(worker_record())
    await wait_for(bench, LOCK)
    patient = timedelta(minutes=10)
    _, hasty = await bench.add(new_job(lock_timeout=patient), new_job(lock_timeout=timedelta(seconds=10)))
    await wait_for(bench, timedelta(seconds=11))
    assert [wait.job_id for wait in await waits(bench)] == [hasty]
    await wait_for(bench, patient)
    assert [wait.jobs for wait in await waits(bench)] == [2]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"tasks": ["other"]}, BreakKind.UNSERVED),
        ({"queues": ["other"]}, BreakKind.UNSERVED),
        ({"concurrency": 0}, BreakKind.BACKLOG),
        ({"tasks": ["other", "greet"], "queues": ["other", "default"]}, BreakKind.UNCLAIMED),
    ],
)
async def test_only_a_worker_that_could_have_helped_is_to_blame(
    bench: Bench, fields: dict[str, Any], kind: BreakKind
) -> None:
    """It knows the task, serves the queue, and has a free place; else there are too few workers, and that is a note."""
    await bench.store.register_worker(worker_record(**fields))
    await bench.add(new_job())
    await wait_for(bench, LOCK + timedelta(seconds=1))
    assert [wait.kind for wait in await waits(bench)] == [kind]


async def test_stopped_silent_and_new_workers_are_not_to_blame(bench: Bench) -> None:
    """Nobody was there, or only just came; one that has stopped is gone, however long it meant to live."""
    await bench.store.register_worker(worker_record("stopped", alive_for=timedelta(days=1)))
    await bench.store.register_worker(worker_record("silent"))
    await bench.store.stop_worker("stopped")
    await bench.add(new_job())
    bench.now.advance(minutes=10)
    assert [wait.kind for wait in await waits(bench)] == [BreakKind.UNSERVED]
    await bench.store.register_worker(worker_record("new"))
    assert [wait.kind for wait in await waits(bench)] == [BreakKind.BACKLOG]


async def test_a_worker_that_is_busy_in_the_queue_is_working_off_a_backlog(bench: Bench) -> None:
    """It holds a job of the queue, or has just ended one; when it has done neither for a lock timeout, it is idle."""
    await bench.store.register_worker(worker_record())
    await bench.add(new_job(), new_job())
    claim = await bench.claim_one()
    await wait_for(bench, LOCK + timedelta(seconds=1))
    assert [wait.kind for wait in await waits(bench)] == [BreakKind.BACKLOG]
    assert await bench.complete(claim)
    assert [wait.kind for wait in await waits(bench)] == [BreakKind.BACKLOG]
    await wait_for(bench, LOCK)
    assert [wait.kind for wait in await waits(bench)] == [BreakKind.UNCLAIMED]


async def test_a_freed_or_late_inserted_job_waits_from_then_on(bench: Bench) -> None:
    """Its due time is long ago, but nobody could have claimed it earlier."""
    await bench.store.register_worker(worker_record())
    await bench.add(new_job())
    freed = await bench.claim_one("elsewhere")
    await wait_for(bench, LOCK + timedelta(minutes=1))
    await bench.store.reclaim_jobs()
    await bench.add(new_job(run_at=bench.now() - timedelta(hours=1)))
    assert await waits(bench) == []
    await wait_for(bench, LOCK + timedelta(seconds=1))
    (wait,) = await waits(bench)
    assert (wait.kind, wait.jobs, freed.job_id in {job.id for job in await bench.store.list_jobs()}) == (
        BreakKind.UNCLAIMED,
        2,
        True,
    )


async def test_paused_and_dead_jobs_do_not_wait(bench: Bench) -> None:
    """Nobody may claim them."""
    await bench.store.register_worker(worker_record())
    (paused,) = await bench.add(new_job())
    assert await bench.store.pause_job(paused)
    assert await bench.fail(await bench.claimed(new_job(max_attempts=1)))
    await wait_for(bench, 3 * LOCK)
    assert await waits(bench) == []


async def test_an_expired_claim_is_taken_away_in_time(bench: Bench) -> None:
    """With nobody there it is a note; with a worker that does not do it, a violation."""
    claim: Claim = await bench.claimed()
    bench.now.advance(minutes=4)
    assert await waits(bench) == []
    bench.now.advance(seconds=1)
    (wait,) = await waits(bench)
    assert (wait.kind, wait.job_id) == (BreakKind.EXPIRED, claim.job_id)
    await bench.store.register_worker(worker_record("other", tasks=[]))
    assert [wait.kind for wait in await waits(bench)] == [BreakKind.EXPIRED]
    await wait_for(bench, LOCK)
    (wait,) = await waits(bench)
    assert (wait.kind, wait.kind.is_violation) == (BreakKind.UNRECLAIMED, True)


# Losses


async def test_lost_runs_are_told_by_worker_with_their_reason(bench: Bench) -> None:
    """The last reason stands for all; a worker seen alive afterwards was not dead, and its late writes were refused."""
    for name in ("dead", "paused"):
        await bench.store.register_worker(worker_record(name))
    await bench.lose(await bench.claimed(worker="dead"))
    paused = await bench.claimed(new_job(task="other"), worker="paused")
    await bench.lose(paused)
    assert not await bench.complete(paused, worker="paused")
    bench.now.advance(minutes=1)
    await bench.store.heartbeat_jobs("paused", [], alive_for=ALIVE)
    second, first = await bench.store.audit_losses()
    assert (first.task, first.outcome, first.worker, first.runs, first.returned) == (
        "greet",
        Outcome.LOST,
        "dead",
        1,
        0,
    )
    assert (second.task, second.worker, second.runs, second.returned) == ("other", "paused", 1, 1)
    assert (second.reason or "").startswith("no heartbeat since 2025-03-30")
    assert [loss.worker for loss in await bench.store.audit_losses(task="greet")] == ["dead"]


async def test_an_abandoned_run_says_why(bench: Bench) -> None:
    """The worker itself gave up; of several reasons the last is told."""
    await bench.add(new_job())
    for reason in ("first", "three heartbeats failed"):
        claim = await bench.claim_one()
        assert await bench.release(claim, outcome=Outcome.ABANDONED, error=reason)
        bench.now.advance(seconds=1)
    (loss,) = await bench.store.audit_losses()
    assert (loss.outcome, loss.runs, loss.reason) == (Outcome.ABANDONED, 2, "three heartbeats failed")


# Reading


def test_a_break_reads_as_a_sentence() -> None:
    """One number, or from and to."""
    one = Break(kind=BreakKind.SLOT_LOST, job_id=uuid4(), task="t", key=None, first_no=3, last_no=3, starts_at=1)
    assert one.text == "slot 3 neither ended in the ledger nor current in the job's row"
    many = Break(kind=BreakKind.RUN_MISSING, job_id=uuid4(), task="t", key=None, first_no=3, last_no=5, starts_at=1)
    assert (many.text, many.count) == ("fences 3 to 5 issued, but without a row in the ledger", 3)
