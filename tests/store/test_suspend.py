"""Suspending durable functions: no claim, no attempt, and nothing that wakes them is missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from reltask.model.durable import StepKind, Waits
from reltask.model.job import Hold, Outcome, Settled, State, Suspension
from reltask.model.lease import Term
from tests.store.store_harness import START, StoreHarness, new_job, recurring, seen, step, waiting

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)
NEVER = datetime(8999, 12, 31, tzinfo=UTC)


# The end of a run


async def test_a_suspended_job_is_free_until_its_wake_time(harness: StoreHarness) -> None:
    """Lock cleared, attempt given back, one ledger row; claimed again when the time has come, not a moment earlier."""
    claim = await harness.claimed(new_job(max_attempts=1))
    harness.now.advance(seconds=4)
    assert await harness.suspend(claim, wake_at=START + DAY)
    view = await harness.job(claim.job_id)
    assert (view.state, view.due_at, view.attempt, view.fence, view.slot_no) == (State.SUSPENDED, START + DAY, 0, 1, 1)
    assert (view.locked_by, view.locked_at, view.heartbeat_at, view.lock_expires_at) == (None,) * 4
    (run,) = await harness.runs(claim.job_id)
    assert (run.outcome, run.fence, run.attempt, run.worker) == (Outcome.SUSPENDED, 1, 1, "alice")
    assert (run.claimed_at, run.finished_at, run.error, run.result) == (START, harness.now(), None, None)
    harness.now.value = START + DAY - timedelta(microseconds=1)
    answer = await harness.claim()
    assert (answer.claims, answer.next_due) == ([], START + DAY)
    harness.now.value = START + DAY
    again = await harness.claim_one("bob")
    assert (again.attempt, again.fence, again.slot_no) == (1, 2, 1)
    assert again.slot_started_at == claim.slot_started_at


async def test_without_a_wake_time_only_a_mark_wakes_it(harness: StoreHarness) -> None:
    """It is due at the end of all times that can be stored."""
    claim = await harness.suspended(waiting())
    assert (await harness.job(claim.job_id)).due_at == NEVER
    harness.now.value = START + 10_000 * DAY
    assert (await harness.claim()).claims == []


async def test_a_claim_ends_the_suspension(harness: StoreHarness) -> None:
    """A run that is given back afterwards is ready: signals no longer move its due time."""
    claim = await harness.suspended(waiting(), wake_at=START)
    again = await harness.claim_one()
    await harness.release(again, delay=DAY)
    assert (await harness.job(claim.job_id)).state is State.READY
    await harness.send(claim.job_id)
    await harness.store.fold_marks()
    assert (await harness.job(claim.job_id)).due_at == START + DAY


async def test_a_suspension_ends_isolation(harness: StoreHarness) -> None:
    """The run ended well: losses are counted in a row."""
    await harness.lose(await harness.claimed())
    await harness.lose(await harness.claim_one())
    claim = await harness.claim_one()
    assert claim.isolated
    await harness.suspend(claim, wake_at=harness.now())
    assert not (await harness.job(claim.job_id)).isolated


# Only the owner


async def test_a_lost_claim_cannot_be_suspended(harness: StoreHarness) -> None:
    """Under an old fence, or by another worker, nothing changes."""
    claim = await harness.claimed()
    await harness.lose(claim)
    again = await harness.claim_one("bob")
    before = await harness.snapshot()
    assert not await harness.suspend(claim)
    assert not await harness.suspend(claim, "bob")
    assert not await harness.suspend(again)
    assert not await harness.suspend(msgspec.structs.replace(again, job_id=uuid4()), "bob")
    assert await harness.snapshot() == before


async def test_a_suspension_that_is_sent_twice_is_refused_the_second_time(harness: StoreHarness) -> None:
    """The ledger tells that the first one was accepted."""
    claim = await harness.suspended(waiting())
    before = await harness.snapshot()
    assert not await harness.suspend(claim)
    assert await harness.snapshot() == before
    assert await harness.store.read_outcomes([claim.hold]) == {claim.hold: Outcome.SUSPENDED}


async def test_a_batch_suspends_what_matches(harness: StoreHarness) -> None:
    """Each with its own wake time; a lost claim does not keep the others."""
    await harness.add(new_job(), new_job(), new_job())
    first, second, lost = (await harness.claim(limit=3)).claims
    settled = await harness.store.suspend_jobs(
        "alice",
        [
            Suspension(hold=Hold(lost.job_id, lost.fence + 1), seen=0, wake_at=None),
            Suspension(hold=first.hold, seen=0, wake_at=START + DAY),
            Suspension(hold=second.hold, seen=0, wake_at=START + 2 * DAY),
        ],
        wait=True,
    )
    assert sorted(settled, key=lambda one: one.hold) == [Settled(hold) for hold in sorted([first.hold, second.hold])]
    assert (await harness.job(first.job_id)).due_at == START + DAY
    assert (await harness.job(second.job_id)).due_at == START + 2 * DAY
    assert (await harness.job(lost.job_id)).state is State.CLAIMED


# What came meanwhile


async def test_a_mark_that_was_folded_meanwhile_makes_it_due(harness: StoreHarness) -> None:
    """The run looked, the signal came and was folded, the run suspends with what it saw: it is due at once."""
    claim = await harness.claimed()
    await harness.record(claim, waiting())
    looked = await harness.waits(claim)
    await harness.send(claim.job_id)
    await harness.store.fold_marks()
    harness.now.advance(seconds=1)
    assert await harness.suspend(claim, seen=looked.wake_seq, wake_at=START + DAY)
    assert (await harness.job(claim.job_id)).due_at == harness.now()
    again = await harness.claim_one()
    assert [signal.name for signal in (await harness.waits(again)).signals] == ["go"]


async def test_a_mark_that_is_folded_afterwards_makes_it_due(harness: StoreHarness) -> None:
    """The signal came before the suspension, and its mark was folded after it."""
    claim = await harness.claimed()
    await harness.record(claim, waiting())
    looked = await harness.waits(claim)
    await harness.send(claim.job_id)
    assert await harness.suspend(claim, seen=looked.wake_seq)
    assert (await harness.job(claim.job_id)).due_at == NEVER
    harness.now.advance(seconds=1)
    assert await harness.store.fold_marks() == 1
    assert (await harness.job(claim.job_id)).due_at == harness.now()


async def test_several_waits_are_looked_at_together(harness: StoreHarness) -> None:
    """One answer has the number of marks and everything that has come, so that nothing falls between two looks."""
    claim = await harness.claimed()
    await harness.record(claim, waiting("a", signal="left"), waiting("b", signal="right"))
    await harness.send(claim.job_id, "left", sent_as="1")
    await harness.store.fold_marks()
    looked = await harness.waits(claim)
    assert (looked.wake_seq, [signal.id for signal in looked.signals]) == (1, ["1"])
    await harness.send(claim.job_id, "right", sent_as="2")
    await harness.store.fold_marks()
    assert await harness.suspend(claim, seen=looked.wake_seq)
    assert (await harness.job(claim.job_id)).due_at == harness.now()
    assert [signal.id for signal in (await harness.waits(claim)).signals] == ["1", "2"]


async def test_a_mark_that_it_has_seen_does_not_wake_it(harness: StoreHarness) -> None:
    """It looked after the fold, so it knows what came; else it would never sleep again."""
    claim = await harness.claimed()
    await harness.record(claim, waiting())
    await harness.send(claim.job_id, "other")
    await harness.store.fold_marks()
    looked = await harness.waits(claim)
    assert await harness.suspend(claim, seen=looked.wake_seq, wake_at=START + DAY)
    assert (await harness.job(claim.job_id)).due_at == START + DAY


async def test_another_slot_has_nothing_to_look_at(harness: StoreHarness) -> None:
    """Nor has a job that is gone; a slot without marks has an empty answer."""
    claim = await harness.claimed(recurring())
    assert await harness.store.read_waits(claim.job_id, 1) == Waits(wake_seq=0, signals=[], ends=[])
    assert await harness.store.read_waits(claim.job_id, 2) is None
    await harness.fail(claim)
    await harness.store.discard_job(claim.job_id)
    assert await harness.store.read_waits(claim.job_id, 1) is None


# Operators


async def test_a_paused_job_stays_suspended_underneath(harness: StoreHarness) -> None:
    """Paused while it ran or while it slept: a signal makes it due, and it runs when it is resumed."""
    claim = await harness.claimed()
    await harness.record(claim, waiting())
    assert await harness.store.pause_job(claim.job_id)
    assert await harness.suspend(claim)
    assert (await harness.job(claim.job_id)).state is State.PAUSED
    await harness.send(claim.job_id)
    await harness.store.fold_marks()
    assert (await harness.claim()).claims == []
    assert await harness.store.resume_job(claim.job_id)
    assert (await harness.job(claim.job_id)).state is State.SUSPENDED
    assert (await harness.claim_one()).job_id == claim.job_id


async def test_run_now_wakes_it(harness: StoreHarness) -> None:
    """It looks again at what it waits for."""
    claim = await harness.suspended(waiting())
    assert await harness.store.run_job_now(claim.job_id)
    assert (await harness.claim_one()).job_id == claim.job_id


async def test_a_changed_declaration_does_not_move_a_suspended_slot(harness: StoreHarness) -> None:
    """The slot has begun: it keeps its nominal time, and its wake time, and ends by the schedule it is claimed with."""
    claim = await harness.suspended(waiting(), job=recurring(), wake_at=START + DAY)
    changed = recurring(declaration="v2", run_at=START + 7 * DAY, schedule='{"every":"20m"}')
    assert await harness.store.declare_job(changed, seen=seen())
    view = await harness.job(claim.job_id)
    assert (view.schedule, view.next_run_time, view.due_at) == ('{"every":"20m"}', START, START + DAY)


# Seen


async def test_suspended_jobs_are_counted_apart(harness: StoreHarness) -> None:
    """They are neither ready nor due, until their time has come; paused and claimed ones are counted as such."""
    slept = await harness.suspended(waiting(), wake_at=START + SECOND)
    paused = await harness.suspended(waiting(), wake_at=START + SECOND)
    await harness.store.pause_job(paused.job_id)
    status = await harness.store.read_status()
    assert (status.suspended, status.ready, status.due, status.paused, status.failing) == (1, 0, 0, 1, 0)
    assert status.next_due == START + SECOND
    assert [view.id for view in await harness.store.list_jobs(state=State.SUSPENDED)] == [slept.job_id]
    harness.now.advance(seconds=1)
    status = await harness.store.read_status()
    assert (status.suspended, status.due) == (0, 1)
    await harness.claim_one()
    status = await harness.store.read_status()
    assert (status.suspended, status.due, status.running) == (0, 0, 1)


async def test_the_audit_finds_nothing_in_a_suspended_history(harness: StoreHarness) -> None:
    """Each suspended run is one given back, and the slot goes on."""
    claim = await harness.suspended(waiting(), wake_at=START)
    again = await harness.claim_one()
    await harness.suspend(again, wake_at=START)
    assert await harness.complete(await harness.claim_one())
    assert await harness.store.audit_slots(kept_for=DAY) == []
    (count,) = await harness.store.audit_tasks()
    assert (count.ended, count.succeeded, count.given_back) == (1, 1, 2)
    assert [run.outcome for run in await harness.runs(claim.job_id)] == ["suspended", "suspended", "succeeded"]


# Kept


async def test_steps_and_signals_go_with_the_row_that_ended_their_slot(harness: StoreHarness) -> None:
    """As long as the ledger tells of a slot's end, it tells how it got there."""
    claim = await harness.parent(1)
    await harness.complete(await harness.claim_child())
    await harness.store.fold_marks()
    again = await harness.claim_one()
    await harness.send(claim.job_id, sent_as="click")
    await harness.record(again, step("b", kind=StepKind.WAIT, signal="go", signal_id="click"))
    assert await harness.complete(again)
    await prune(harness, older_than=DAY)
    assert set(await harness.steps(claim.job_id)) == {"labels", "b"}
    assert len(await harness.store.list_signals(claim.job_id)) == 1
    assert len(await harness.store.list_children(claim.job_id)) == 1
    await harness.store.fold_marks()
    harness.now.value += DAY + SECOND
    await prune(harness, older_than=DAY)
    assert [table for table, rows in (await harness.snapshot()).items() if rows] == []


async def test_a_discarded_function_leaves_nothing(harness: StoreHarness) -> None:
    """Its last row says how many steps it had, and they go with that."""
    claim = await harness.suspended(step("a"), waiting())
    assert await harness.store.discard_job(claim.job_id)
    assert (await harness.runs(claim.job_id))[-1].steps == 2
    harness.now.value += DAY + SECOND
    await prune(harness, older_than=DAY)
    assert await harness.store.read_steps(claim.job_id) == []


async def test_a_signal_of_a_slot_without_steps_goes_too(harness: StoreHarness) -> None:
    """A plain job may have been sent one."""
    claim = await harness.claimed()
    await harness.send(claim.job_id)
    await harness.complete(claim)
    harness.now.value += DAY + SECOND
    await harness.store.fold_marks()
    await prune(harness, older_than=DAY)
    assert await harness.store.list_signals(claim.job_id) == []


async def test_an_open_slot_keeps_all(harness: StoreHarness) -> None:
    """A function may wait for months: the ledger forgets its earlier runs, and nothing that it needs."""
    claim = await harness.parent(1)
    await harness.complete(await harness.claim_child(), result="7")
    await harness.send(claim.job_id)
    harness.now.value += 90 * DAY
    await prune(harness, older_than=DAY)
    assert await harness.runs(claim.job_id) == []
    assert set(await harness.steps(claim.job_id)) == {"labels"}
    waits = await harness.waits(claim)
    assert (len(waits.signals), [end.value for end in waits.ends]) == (1, ["7"])
    await harness.store.fold_marks()
    assert (await harness.claim_one()).steps == 1


async def test_the_next_slot_keeps_its_own(harness: StoreHarness) -> None:
    """Only what belongs to the pruned slot goes."""
    claim = await harness.claimed(recurring())
    await harness.record(claim, step("a"))
    await harness.complete(claim, next_run_time=START + DAY)
    harness.now.value += DAY + SECOND
    again = await harness.claim_one()
    await harness.record(again, step("a"))
    await harness.send(claim.job_id)
    await prune(harness, older_than=DAY)
    assert await harness.store.read_steps(claim.job_id, 1) == []
    assert set(await harness.steps(claim.job_id, 2)) == {"a"}
    assert len(await harness.store.list_signals(claim.job_id)) == 1


async def test_only_the_leader_removes_steps(harness: StoreHarness) -> None:
    """With an old term nothing is removed, not even the steps of a row that stays."""
    claim = await harness.claimed()
    await harness.record(claim, step())
    await harness.complete(claim)
    harness.now.value += DAY + SECOND
    before = await harness.snapshot()
    old = Term("reltask:maintenance", 7)
    assert await harness.store.prune_runs(older_than=DAY, most=1_000, leader=old) == 0
    assert await harness.snapshot() == before


async def prune(harness: StoreHarness, *, older_than: timedelta) -> None:
    """Both verbs that remove history; how they share the work is a store's own affair."""
    await harness.store.prune_runs(older_than=older_than, most=1_000_000, leader=None)
    await harness.store.prune_records(workers=older_than, metrics=older_than, leader=None)


@pytest.mark.parametrize("ago", [timedelta(0), DAY])
async def test_a_wake_time_that_has_passed_is_due_at_once(harness: StoreHarness, ago: timedelta) -> None:
    """A short sleep may be over before the run is suspended."""
    claim = await harness.claimed()
    await harness.suspend(claim, wake_at=START - ago)
    assert (await harness.claim_one()).job_id == claim.job_id
