"""Races for jobs. Each case is a function of the driver, so that mutants can be run on it."""

from __future__ import annotations

from collections.abc import Callable

from reltask.model.job import Cancellation, Hold, NewJob, Outcome
from tests.interleaving.driver import Driver
from tests.interleaving.operations import (
    HOLD,
    A,
    B,
    Operation,
    cancel,
    claim,
    complete,
    declare,
    enqueue,
    fail,
    heartbeat,
    reclaim,
)
from tests.interleaving.setups import KEYED, REDECLARED
from tests.interleaving.steps import Case, begun, committed, do, expect, ledger, opened, rows, stopped

# Heartbeats


async def beat_meets_own_completion(driver: Driver) -> None:
    """A heartbeat that meets its worker's own uncommitted completion.

    The row is missing from the answer, but a committed read still shows the claim. After the commit
    the run has ended; it is not lost.
    """
    finishing, beating = driver.first, driver.second
    async with opened(finishing):
        await do(complete(again=True), finishing)
        async with opened(beating):
            renewed, *_ = await do(heartbeat(), beating)
            expect("the row is missing from the beat's answer", renewed, [])
            holds = await beating.store.read_holds("alice", [HOLD])
            expect("the committed row is still ours", holds, {HOLD})
    async with opened(beating):
        expect("no longer ours", await beating.store.read_holds("alice", [HOLD]), set())
        outcomes = await beating.store.read_outcomes([HOLD])
        expect("the ledger knows how it ended", outcomes, {HOLD: Outcome.SUCCEEDED})


async def read_holds_knows_the_fence(driver: Driver) -> None:
    """A claim that was lost and taken again by the same worker has another fence."""
    session = driver.first
    await committed(reclaim(), session)
    await committed(claim(worker="alice"), session)
    async with opened(session):
        given = [HOLD, Hold(A, 2)]
        expect("only the new fence", await session.store.read_holds("alice", given), {Hold(A, 2)})


# Reclaims


async def reclaim_meets_a_renewal(driver: Driver) -> None:
    """A claim that was expired in reclaim's snapshot but renewed before its lock is left alone."""
    reclaiming, beating = driver.first, driver.second
    async with stopped(reclaim(), reclaiming) as answer:
        renewed, *_ = await committed(heartbeat(), beating)
        expect("the beat renews", renewed, [HOLD])
    expect("reclaim takes nothing", await answer, [])
    expect("alice holds it", (await rows(driver))[A]["locked_by"], "alice")


async def beat_meets_a_reclaim(driver: Driver) -> None:
    """A claim that was valid in the heartbeat's snapshot but reclaimed before its lock is not renewed."""
    beating, reclaiming = driver.first, driver.second
    async with stopped(heartbeat(), beating) as answer:
        expect("reclaim takes it", len(await committed(reclaim(), reclaiming)), 1)
    expect("nothing renewed", (await answer)[0], [])
    expect("the row is free", (await rows(driver))[A]["locked_by"], None)


# Cancels


async def a_completion_saves_the_next_slot(driver: Driver) -> None:
    """A cancel that waits for a completion finds the next slot; one before it dies with its own slot."""
    await committed(cancel, driver.second)
    expect("completed", len(await committed(complete(again=True), driver.first)), 1)
    (following,) = await committed(claim(), driver.second)
    expect("the next slot runs", (following.slot_no, following.cancelled), (2, False))


async def a_cancel_meets_a_completion(driver: Driver) -> None:
    """It waits for the completion of a one-off, and then says that the job is gone."""
    await driver.first.begin()
    expect("completed", len(await do(complete(again=False), driver.first)), 1)
    async with begun(cancel, driver.second) as answer:
        expect("the cancel waits", answer.done(), False)
        await driver.first.commit()
    expect("nothing to cancel", await answer, None)
    expect("one end", await ledger(driver), [(A, 1, "succeeded")])


async def a_cancelled_claim_that_fails(driver: Driver) -> None:
    """A failure that has waited for nothing, while a cancel was committed after its snapshot, is due at once."""
    async with stopped(fail(), driver.first) as answer:
        expect("stopping", await committed(cancel, driver.second), Cancellation.STOPPING)
    expect("failed", len(await answer), 1)
    row = (await rows(driver))[A]
    expect("neither dead nor delayed", (row["dead_at"], row["locked_by"]), (None, None))
    (following,) = await committed(claim(), driver.second)
    expect("it is ended", following.cancelled, True)


# Claims


async def two_claims_share_a_lane(driver: Driver) -> None:
    """Two claims of one row each get different rows; the first row of the lane is taken once."""
    async with opened(driver.first), opened(driver.second):
        (first,) = await do(claim(1), driver.first)
        (second,) = await do(claim(1), driver.second)
    expect("different rows", [first.job_id, second.job_id], [A, B])


async def a_claim_with_an_old_snapshot(driver: Driver) -> None:
    """A row that another claim took after the snapshot is skipped, and the next one is taken."""
    late, quick = driver.first, driver.second
    async with stopped(claim(1), late) as answer:
        (taken,) = await committed(claim(1), quick)
    expect("the other claim has the first row", taken.job_id, A)
    expect("the next row is taken", [one.job_id for one in await answer], [B])


async def two_claims_of_everything(driver: Driver) -> None:
    """Of two claims of all rows, the second gets none and does not wait."""
    async with opened(driver.first), opened(driver.second):
        expect("all", len(await do(claim(2), driver.first)), 2)
        expect("none", await do(claim(2), driver.second), [])


async def a_skipped_head_is_asked_for_again(driver: Driver) -> None:
    """A claim that skipped a due row asks to be called again at once: the other may roll back."""
    async with opened(driver.first), opened(driver.second):
        await do(claim(2), driver.first)
        answer = await claim(2).statements[0](driver.second)
        expect("due already", answer.next_due is not None and answer.next_due <= answer.now, True)


# Late writes


def late_write_meets_a_reclaim(late: Operation) -> Case:
    """An old owner's write changes nothing: neither one that meets an uncommitted reclaim, nor one after it."""

    async def case(driver: Driver) -> None:
        await driver.first.begin()
        expect("reclaim takes it", len(await do(reclaim(), driver.first)), 1)
        async with begun(late, driver.second) as answer:
            await driver.first.commit()
        expect("it changes nothing", await answer, [])
        expect("it changes nothing afterwards", await committed(late, driver.second), [])
        expect("one ledger row", await ledger(driver), [(A, 1, "lost")])

    return case


def a_held_row_delays_one_outcome(settle: Callable[..., Operation], *, then_reclaimed: bool) -> Case:
    """A settlement that meets a held row settles the others. The held one is suspect, not lost.

    When the other session lets go, the settlement or a reclaim has the row, but not both.
    """

    async def case(driver: Driver) -> None:
        await driver.gate.begin()
        await driver.gate.hold_rows([A], [])
        settled = await committed(settle(HOLD, Hold(B, 1)), driver.first)
        expect("the free one", [one.hold for one in settled], [Hold(B, 1)])
        async with opened(driver.first):
            holds = await driver.first.store.read_holds("alice", [HOLD, Hold(B, 1)])
            expect("the held one is still ours", holds, {HOLD})
        await driver.gate.rollback()
        if then_reclaimed:
            expect("reclaim takes both that are left", len(await committed(reclaim(), driver.second)), 2)
        expect("settled", len(await committed(settle(HOLD), driver.first)), 0 if then_reclaimed else 1)
        (first, *_) = await ledger(driver)
        expect("one end, as reported", (first[2] == "lost"), then_reclaimed)

    return case


# Completions sent twice


def a_completion_sent_twice(*, again: bool) -> Case:
    """A completion sent twice, overlapping or afterwards, makes one ledger row; the second gets nothing."""

    async def case(driver: Driver) -> None:
        await driver.first.begin()
        expect("first", len(await do(complete(again=again), driver.first)), 1)
        async with begun(complete(again=again), driver.second) as answer:
            await driver.first.commit()
        expect("second", await answer, [])
        expect("third", await committed(complete(again=again), driver.second), [])
        expect("one ledger row", await ledger(driver), [(A, 1, "succeeded")])

    return case


# Enqueues


def sent_twice(first: NewJob, second: NewJob, *, first_commits: bool) -> Case:
    """Of two enqueues with one id or key, the second waits for the first. One row, and no error."""

    async def case(driver: Driver) -> None:
        await driver.first.begin()
        expect("first", await do(enqueue(first, name="first"), driver.first), {first.id})
        async with begun(enqueue(second, name="second"), driver.second) as answer:
            expect("the second waits", answer.done(), False)
            await (driver.first.commit() if first_commits else driver.first.rollback())
        expect("second", await answer, set() if first_commits else {second.id})
        expect("one row", list(await rows(driver)), [first.id if first_commits else second.id])

    return case


async def a_resend_meets_the_end_of_its_job(driver: Driver) -> None:
    """An enqueue sent again while its job's completion is about to commit inserts nothing."""
    await driver.first.begin()
    await do(complete(again=False), driver.first)
    async with begun(enqueue(KEYED, name="resend"), driver.second) as answer:
        await driver.first.commit()
    expect("nothing inserted", await answer, set())
    expect("gone for good", await rows(driver), {})


async def a_resend_with_an_old_snapshot(driver: Driver) -> None:
    """The same if the completion commits between the resend's snapshot and its insert."""
    async with stopped(enqueue(KEYED, name="resend"), driver.second) as answer:
        await committed(complete(again=False), driver.first)
    expect("nothing inserted", await answer, set())
    expect("gone for good", await rows(driver), {})


# Declarations


async def a_declaration_meets_a_claim(driver: Driver) -> None:
    """A declaration does not wait for a claim, and leaves the running job unchanged."""
    before = (await rows(driver))[A]
    async with opened(driver.first):
        await do(claim(), driver.first)
        expect("declared while it is locked", await committed(declare(REDECLARED), driver.second), False)
    expect("declared while it runs", await committed(declare(REDECLARED), driver.second), False)
    after = (await rows(driver))[A]
    expect("the slot stays", (after["next_run_time"], after["due_at"]), (before["next_run_time"], before["due_at"]))
    expect("the old definition", after["declaration"], "v1")


async def a_claim_meets_a_declaration(driver: Driver) -> None:
    """A claim does not wait for a declaration: it skips the row, and the slot may still move."""
    async with opened(driver.first):
        expect("declared", await do(declare(REDECLARED), driver.first), True)
        expect("nothing to claim", await committed(claim(), driver.second), [])
