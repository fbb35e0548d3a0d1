"""Races of durable functions: records, suspensions, signals, children. Each case is a function of the driver."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from reltask.model.durable import NewSignal
from reltask.model.job import Cancellation, Completion, Hold
from tests.interleaving.driver import Driver, Row
from tests.interleaving.durable_operations import (
    ANSWERED,
    GO,
    RUN_ALL,
    WAIT,
    cancel_children,
    die,
    end,
    fold,
    forget,
    record,
    send,
    step,
    suspend,
    transact,
)
from tests.interleaving.operations import HOLD, LATER, A, B, C, T, claim, fail, heartbeat, reclaim, release
from tests.interleaving.steps import begun, committed, do, expect, ledger, opened, rows, stopped


async def of_a(driver: Driver, *columns: str) -> list[Any]:
    row = (await rows(driver))[A]
    return [row[column] for column in columns]


async def steps(driver: Driver) -> dict[str, Row]:
    return {row["name"]: row for row in (await driver.snapshot()).steps}


async def due(driver: Driver) -> bool:
    """Whether A is due."""
    async with opened(driver.gate):
        job = await driver.gate.store.read_job(A)
    return job is not None and job.due_at <= T + LATER


# Signals


async def a_signal_locks_no_job(driver: Driver) -> None:
    """While a sender's transaction is open, the job is renewed, records, and is suspended: no row is skipped."""
    async with opened(driver.second):
        await do(send(), driver.second)
        renewed, *_ = await committed(heartbeat(), driver.first)
        expect("renewed", renewed, [HOLD])
        expect("recorded", len(await committed(record(), driver.first)), 1)
        expect("suspended", len(await committed(suspend(), driver.first)), 1)
    expect("folded afterwards", await committed(fold(), driver.second), 1)
    expect("and due", await due(driver), True)


async def crossing_signals(driver: Driver) -> None:
    """Two transactions that signal each other's jobs do not wait for each other."""
    sessions = (driver.first, driver.second)
    async with opened(driver.first), opened(driver.second):
        for session, job_id in zip(sessions, (A, B), strict=True):
            await do(send(NewSignal(id=session.worker, name="go", value="1", job_id=job_id)), session)
        for session, job_id in zip(sessions, (B, A), strict=True):
            await do(send(NewSignal(id=session.worker, name="go", value="1", job_id=job_id)), session)
    expect("four", len((await driver.snapshot()).marks), 4)


async def a_signal_sent_twice(driver: Driver) -> None:
    """The second sender waits for the first; the signal is stored once, and both get the job."""
    await driver.first.begin()
    await do(send(), driver.first)
    async with begun(send(), driver.second) as answer:
        await driver.first.commit()
    expect("sent", await answer, {GO.id: A})
    after = await driver.snapshot()
    expect("one signal, one mark", (len(after.signals), len(after.marks)), (1, 1))


async def a_signal_wakes_only_who_waits_for_it(driver: Driver) -> None:
    """A signal of another name counts, and leaves the sleeper asleep."""
    await committed(send(NewSignal(id="1", name="other", value="1", job_id=A)), driver.first)
    expect("folded", await committed(fold(), driver.second), 1)
    expect("counted", await of_a(driver, "wake_seq"), [1])
    expect("asleep", await due(driver), False)


async def a_backoff_is_not_cut_short(driver: Driver) -> None:
    """A job that waits for its next attempt is not suspended: a signal does not make it due."""
    before = await of_a(driver, "due_at")
    await committed(send(), driver.first)
    expect("folded", await committed(fold(), driver.second), 1)
    expect("counted, and due as before", await of_a(driver, "wake_seq", "due_at"), [1, *before])


# Suspensions


async def a_mark_is_folded_before_the_suspension(driver: Driver) -> None:
    """A run that has looked, and suspends after a mark was folded, is due at once."""
    await committed(send(), driver.first)
    await committed(fold(), driver.second)
    expect("suspended", len(await committed(suspend(seen=0), driver.first)), 1)
    expect("and due", await due(driver), True)


async def a_suspension_that_has_seen_all(driver: Driver) -> None:
    """With the number that is in the row, the job sleeps until its wake time."""
    await committed(send(), driver.first)
    await committed(fold(), driver.second)
    await committed(suspend(seen=1), driver.first)
    expect("asleep", await due(driver), False)


async def a_suspension_with_an_old_snapshot(driver: Driver) -> None:
    """A mark that is folded between the suspension's snapshot and its lock is noticed."""
    await committed(send(), driver.second)
    async with stopped(suspend(seen=0), driver.first) as answer:
        driver.second.now = T + LATER
        expect("folded", await committed(fold(), driver.second), 1)
    expect("suspended", len(await answer), 1)
    expect("and due", await due(driver), True)


async def a_fold_meets_a_suspension(driver: Driver) -> None:
    """A fold whose snapshot is older than the wait and the suspension leaves the mark to the next one."""
    await committed(send(), driver.second)
    async with stopped(fold(), driver.second) as answer:
        await committed(record(WAIT), driver.first)
        await committed(suspend(seen=0), driver.first)
    await answer
    await committed(fold(), driver.second)
    expect("due in the end", await due(driver), True)
    expect("no mark is left", (await driver.snapshot()).marks, [])


async def a_fold_meets_a_claim(driver: Driver) -> None:
    """A job that was suspended in the fold's snapshot and is claimed before its lock keeps its times."""
    async with stopped(fold(), driver.first) as answer:
        async with opened(driver.second):
            await driver.second.store.run_job_now(A)
        expect("claimed", len(await committed(claim(), driver.second)), 1)
        before = await of_a(driver, "not_before")
    await answer
    await committed(fold(), driver.first)
    expect("counted, times as before", await of_a(driver, "wake_seq", "not_before"), [1, *before])


async def a_fold_skips_a_locked_job(driver: Driver) -> None:
    """A mark whose job is locked stays, and the fold does not wait for it."""
    await driver.gate.begin()
    await driver.gate.hold_rows([A], [])
    expect("left", await committed(fold(), driver.first), 0)
    await driver.gate.rollback()
    expect("folded", await committed(fold(), driver.first), 1)
    expect("and due", await due(driver), True)


async def two_folds_with_one_snapshot(driver: Driver) -> None:
    """A mark that another fold removed after the snapshot is not folded again."""
    async with stopped(fold(), driver.first) as answer:
        expect("folded", await committed(fold(), driver.second), 1)
    expect("nothing left", await answer, 0)
    expect("one child fewer", (await steps(driver))["all"]["pending"], 1)
    expect("counted once", await of_a(driver, "wake_seq"), [1])


# Records


async def a_record_of_an_old_fence(driver: Driver) -> None:
    """A claim that was lost and taken again by the same worker records nothing under its old fence."""
    await committed(reclaim(), driver.first)
    await committed(claim(worker="alice"), driver.first)
    expect("refused", await committed(record(), driver.second), [])
    expect("nothing recorded", await steps(driver), {})
    expect("recorded", len(await committed(record(hold=Hold(A, 2)), driver.second)), 1)


async def a_step_recorded_twice(driver: Driver) -> None:
    """A recording that meets the same one, committed after its snapshot, is accepted and changes nothing."""
    async with stopped(record(step(value="2"), WAIT), driver.second) as answer:
        await committed(record(step(value="1"), WAIT), driver.first)
    expect("accepted", len(await answer), 1)
    expect("two steps", await of_a(driver, "steps"), [2])
    expect("the first stays", (await steps(driver))["one"]["value"], 1)


async def a_signal_consumed_once(driver: Driver) -> None:
    """The record that consumes a signal is sent twice: the signal belongs to its step, and no other takes it."""
    await committed(record(ANSWERED), driver.first)
    await committed(record(ANSWERED, step("late", signal="go", signal_id=GO.id)), driver.second)
    (signal,) = (await driver.snapshot()).signals
    expect("consumed by", signal["consumed_by"], "wait")


async def progress_leaves_one_attempt(driver: Driver) -> None:
    """Progress counts attempts anew from this run: 1, so that a suspension gives back this run's and no other."""
    await committed(fail(), driver.first)
    await committed(claim(worker="alice"), driver.first)
    expect("second attempt", await of_a(driver, "attempt"), [2])
    await committed(record(hold=Hold(A, 2)), driver.first)
    expect("counted from here", await of_a(driver, "attempt"), [1])
    await committed(record(step("two"), hold=Hold(A, 2), progress=False), driver.first)
    await committed(suspend(Hold(A, 2)), driver.first)
    expect("given back", await of_a(driver, "attempt"), [0])


async def a_transactional_record_waits(driver: Driver) -> None:
    """A record in a task's transaction waits for a fold of the same job, and is then written."""
    await driver.second.begin()
    expect("folded", await do(fold(), driver.second), 1)
    async with begun(transact(), driver.first) as answer:
        expect("it waits", answer.done(), False)
        await driver.second.commit()
    expect("recorded", await answer, True)
    expect("both", await of_a(driver, "wake_seq", "steps"), [1, 2])


async def a_transactional_record_meets_a_reclaim(driver: Driver) -> None:
    """A record in a task's transaction that waits for a reclaim is refused, so the transaction is rolled back."""
    await driver.second.begin()
    expect("reclaimed", len(await do(reclaim(), driver.second)), 1)
    async with begun(transact(), driver.first) as answer:
        await driver.second.commit()
    expect("refused", await answer, False)
    expect("nothing recorded", set(await steps(driver)), {"wait"})


async def a_forgotten_step_meets_a_run(driver: Driver) -> None:
    """Steps are not forgotten if the job ran after the snapshot: it may have recorded others."""
    async with stopped(forget(), driver.first) as answer:
        await committed(fold(), driver.second)
        await committed(claim(worker="alice"), driver.second)
        await committed(record(ANSWERED, hold=Hold(A, 2)), driver.second)
        await committed(suspend(Hold(A, 2), seen=1), driver.second)
    expect("nothing is forgotten", await answer, 0)
    expect("it stays", (await steps(driver))["wait"]["state"], "done")


async def a_forgotten_step_meets_a_suspension(driver: Driver) -> None:
    """Steps are not forgotten if the job ran in the snapshot: its run may have recorded others since."""
    async with stopped(forget(), driver.first) as answer:
        await committed(record(), driver.second)
        await committed(suspend(), driver.second)
    expect("nothing is forgotten", await answer, 0)
    expect("both stay", set(await steps(driver)), {"wait", "one"})


# Children


async def _ends(driver: Driver) -> list[tuple[UUID, str]]:
    return [(UUID(row["job_id"]), row["outcome"]) for row in (await driver.snapshot()).child_ends]


async def the_last_two_children_end_at_once(driver: Driver) -> None:
    """Neither sees the other's end, and the parent is due."""
    async with opened(driver.first), opened(driver.second):
        expect("one", len(await do(end(B), driver.first)), 1)
        expect("the other", len(await do(end(C), driver.second)), 1)
    expect("folded", await committed(fold(), driver.second), 2)
    expect("none is left", (await steps(driver))["all"]["pending"], 0)
    expect("due", await due(driver), True)


async def the_first_child_does_not_wake_its_parent(driver: Driver) -> None:
    """A parent that waits for two children sleeps on when one has ended."""
    await committed(end(B), driver.first)
    expect("folded", await committed(fold(), driver.second), 1)
    expect("one is left", (await steps(driver))["all"]["pending"], 1)
    expect("asleep", await due(driver), False)


async def a_child_counts_once(driver: Driver) -> None:
    """A child that died, is retried and succeeds has ended for its parent once, as failed."""
    await committed(die(B), driver.first)
    row = (await rows(driver))[B]
    expect("it has no parent any more", [row[name] for name in row if name.startswith("parent_")], [None] * 4)
    async with opened(driver.first):
        await driver.first.store.retry_job(B)
    (again,) = await committed(claim(worker="alice"), driver.first)
    expect("no parent", again.has_parent, False)
    async with opened(driver.first):
        await driver.first.store.complete_jobs("alice", [Completion(hold=again.hold)])
    expect("one end", await _ends(driver), [(B, "failed")])
    expect("folded", await committed(fold(), driver.second), 1)
    expect("one is left", (await steps(driver))["all"]["pending"], 1)


async def a_reclaim_ends_a_child(driver: Driver) -> None:
    """A child that is dead after its last lost run has ended for its parent."""
    await committed(reclaim((B, C)), driver.first)
    expect("both", await _ends(driver), [(B, "failed"), (C, "failed")])
    expect("folded", await committed(fold(), driver.second), 2)
    expect("due", await due(driver), True)


async def a_recording_sent_again_keeps_the_count(driver: Driver) -> None:
    """The recording of the children arrives a second time, after one of them has ended: one is left."""
    await committed(end(B), driver.first)
    await committed(fold(), driver.first)
    await committed(record(RUN_ALL), driver.second)
    expect("one is left", (await steps(driver))["all"]["pending"], 1)


async def an_end_meets_a_fold(driver: Driver) -> None:
    """A child ends while its parent's row is locked by a fold: it does not wait."""
    async with opened(driver.first):
        expect("folded", await do(fold(), driver.first), 1)
        expect("ended", len(await committed(end(C), driver.second)), 1)
    expect("folded afterwards", await committed(fold(), driver.second), 1)
    expect("due", await due(driver), True)


async def a_cancelled_child_meets_a_claim(driver: Driver) -> None:
    """A child that is claimed after the snapshot is not ended but asked to stop; once it is released, it ends."""
    async with stopped(cancel_children(), driver.first) as answer:
        (taken,) = await committed(claim(worker="alice"), driver.second)
    expect("both are asked to stop", await answer, [Cancellation.STOPPING] * 2)
    row = (await rows(driver))[B]
    expect("claimed, and cancelled", (row["locked_by"], row["cancel_slot"]), ("alice", 1))
    await committed(release(taken.hold), driver.second)
    expect("now", await committed(cancel_children(), driver.first), [str(B)])
    expect("cancelled", (B, 3, "cancelled") in await ledger(driver), True)


async def a_child_of_a_live_parent_stays(driver: Driver) -> None:
    """A child that waits for a worker is not cancelled while its parent's slot goes on."""
    await committed(release(Hold(B, 1)), driver.first)
    expect("none", await committed(cancel_children(), driver.second), [])
