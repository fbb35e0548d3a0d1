"""The audit of durable functions: what the verbs write is sound, and each kind of damage is found and named."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest

from reltask.model.audit import KEPT_FOR, Break, BreakKind
from reltask.model.durable import StepKind, StepState
from reltask.model.job import Claim, State
from tests.store.store_harness import (
    START,
    PostgresBackend,
    SqliteBackend,
    StoreHarness,
    child,
    new_job,
    recurring,
    step,
    waiting,
)
from tests.store.test_audit import damage

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)


async def findings(harness: StoreHarness) -> list[tuple[BreakKind, int, str | None]]:
    found = await harness.store.audit_durable(kept_for=KEPT_FOR)
    assert all(one.first_no == one.last_no for one in found)
    return [(one.kind, one.first_no, one.name) for one in found]


async def answered(harness: StoreHarness) -> Claim:
    """A run that has consumed a signal in the step "approval"."""
    claim = await harness.claimed()
    assert await harness.send(claim.job_id, sent_as="first")
    assert await harness.record(claim, step("approval", kind=StepKind.WAIT, signal="go", signal_id="first"))
    return claim


# Sound records


async def test_a_database_without_steps_is_sound(harness: StoreHarness) -> None:
    """Plain jobs are not looked at."""
    assert await findings(harness) == []
    await harness.claimed()
    assert await harness.complete(await harness.claimed(recurring()), next_run_time=START + DAY)
    assert await findings(harness) == []


async def test_what_durable_functions_record_is_sound(harness: StoreHarness) -> None:
    """At every moment: running, suspended, waiting for children, ended, in the next slot, discarded."""
    claim = await harness.claimed(recurring())
    assert await harness.send(claim.job_id, sent_as="first")
    for slot in (1, 2):
        assert await harness.record(claim, step("charge"), waiting())
        assert await findings(harness) == []
        assert await harness.suspend(claim, wake_at=harness.now() + DAY)
        assert await findings(harness) == []
        await harness.store.fold_marks()
        harness.now.value += DAY
        claim = await harness.claim_one()
        signal_id = "first" if slot == 1 else None
        assert await harness.record(claim, step("approval", kind=StepKind.WAIT, signal="go", signal_id=signal_id))
        assert await harness.complete(claim, next_run_time=harness.now() + SECOND)
        harness.now.advance(seconds=1)
        assert await findings(harness) == []
        claim = await harness.claim_one()
    assert await harness.release(claim)
    assert await harness.store.discard_job(claim.job_id)
    assert await findings(harness) == []


async def test_a_parent_and_its_children_are_sound(harness: StoreHarness) -> None:
    """Whether an end is not folded yet, is folded, or was seen by the run before it was folded."""
    parent = await harness.parent(3)
    assert await findings(harness) == []
    assert await harness.complete(await harness.claim_child())
    assert await findings(harness) == []
    await harness.store.fold_marks()
    assert await findings(harness) == []
    assert await harness.fail(await harness.claim_child(), final=True)
    (last,) = await harness.store.list_jobs(task="label", state=State.READY)
    assert await harness.store.discard_job(last.id)
    assert await findings(harness) == []
    await harness.store.fold_marks()
    again = await harness.claim_one()
    await harness.add(child(again, 0, of="more"))
    assert await harness.record(again, step("more", kind=StepKind.RUN, state=StepState.WAITING, pending=1))
    assert await harness.complete(await harness.claim_child())
    assert await harness.record(again, step("labels", kind=StepKind.RUN), step("more", kind=StepKind.RUN))
    assert await findings(harness) == []
    assert again.job_id == parent.job_id


async def test_a_wait_that_the_body_gave_up_is_no_violation(harness: StoreHarness) -> None:
    """A race leaves steps that wait for ever; the job needs one that can wake it, not all of them."""
    late = step("remind", kind=StepKind.SLEEP, state=StepState.WAITING, wake_at=START + SECOND)
    claim = await harness.claimed()
    assert await harness.send(claim.job_id)
    assert await harness.record(claim, late, waiting(), waiting("other", signal="other", wake_at=START + 2 * DAY))
    await harness.store.fold_marks()
    assert await harness.suspend(claim, seen=1, wake_at=START + 2 * DAY)
    harness.now.value += DAY
    assert await findings(harness) == []


async def test_a_job_with_a_mark_is_going_to_be_looked_at(harness: StoreHarness) -> None:
    """Its signal has come, and the next fold wakes it."""
    claim = await harness.suspended(waiting())
    assert await harness.send(claim.job_id)
    assert await findings(harness) == []
    await harness.store.fold_marks()
    assert await findings(harness) == []


async def test_a_signal_may_be_waited_for_again(harness: StoreHarness) -> None:
    """The one that was consumed wakes nothing any more."""
    claim = await answered(harness)
    await harness.store.fold_marks()
    assert await harness.record(claim, waiting("approval#2"))
    assert await harness.suspend(claim, seen=1)
    assert await findings(harness) == []


async def test_children_of_an_ended_slot_are_no_violation(harness: StoreHarness) -> None:
    """They are to be cancelled, and no step counts them."""
    claim = await harness.claimed(recurring())
    await harness.add(child(claim, 0))
    assert await harness.record(claim, step("labels", kind=StepKind.RUN, state=StepState.WAITING, pending=1))
    assert await harness.complete(claim, next_run_time=START + DAY)
    assert await findings(harness) == []
    assert await harness.sweep() == 1
    assert await findings(harness) == []


@pytest.mark.parametrize("next_run_time", [None, START + DAY])
async def test_records_of_a_pruned_slot_are_no_violation(harness: StoreHarness, next_run_time: datetime | None) -> None:
    """The ledger row of their slot's end is gone, and so may be a part of them."""
    claim = await answered(harness)
    assert await harness.complete(claim, next_run_time=next_run_time)
    harness.now.value += KEPT_FOR
    await damage(harness, "delete from @runs")
    await damage(harness, "update @signals set consumed_by = 'gone'")
    assert await findings(harness) == []


# Steps


async def test_a_step_of_a_slot_that_never_existed_is_found(harness: StoreHarness) -> None:
    """Its slot is later than the job's, or its fence was never issued; also if the job has no trace."""
    claim = await harness.claimed()
    assert await harness.record(claim, step())
    await damage(harness, "update @steps set fence = 7")
    assert await findings(harness) == [(BreakKind.STEP_STRAY, 1, "charge")]
    await damage(harness, "update @steps set fence = 1, slot_no = 2")
    await damage(harness, "update @jobs set steps = 0")
    assert await findings(harness) == [(BreakKind.STEP_STRAY, 2, "charge")]
    await damage(harness, "delete from @jobs")
    (found,) = await harness.store.audit_durable(kept_for=KEPT_FOR)
    assert (found.kind, found.task, found.job_id) == (BreakKind.STEP_STRAY, "?", claim.job_id)
    harness.now.value += KEPT_FOR
    assert await findings(harness) == []


async def test_a_step_that_was_recorded_after_its_slots_end_is_found(harness: StoreHarness) -> None:
    """By its fence: no clock is asked. It is the same for a job that has gone on, and for one that is gone."""
    recurs, once = await harness.claimed(recurring(key="k")), await harness.claimed()
    for claim in (recurs, once):
        assert await harness.record(claim, step())
    assert await harness.complete(recurs, next_run_time=START + DAY)
    assert await harness.complete(once)
    assert await findings(harness) == []
    await damage(harness, "update @steps set fence = 2")
    found = await harness.store.audit_durable(kept_for=KEPT_FOR)
    assert {(one.kind, one.job_id, one.key) for one in found} == {
        (BreakKind.STEP_STRAY, recurs.job_id, "k"),
        (BreakKind.STEP_STRAY, once.job_id, None),
    }
    assert await harness.store.audit_durable(kept_for=KEPT_FOR, task="other") == []
    assert len(await harness.store.audit_durable(kept_for=KEPT_FOR, limit=1)) == 1
    only = await harness.store.audit_durable(kept_for=KEPT_FOR, upto=min(recurs.job_id, once.job_id))
    assert [one.job_id for one in only] == [min(recurs.job_id, once.job_id)]


@pytest.mark.parametrize("steps", [0, 2])
async def test_a_wrong_number_of_steps_is_found(harness: StoreHarness, steps: int) -> None:
    """With 0 the next run would read none, and run all of them again."""
    claim = await harness.claimed()
    assert await harness.record(claim, step())
    await damage(harness, f"update @jobs set steps = {steps}")
    assert await findings(harness) == [(BreakKind.STEPS_MISCOUNTED, 1, None)]


# Signals


async def test_a_signal_that_no_step_has_recorded_is_found(harness: StoreHarness) -> None:
    """It is consumed, so no wait will get it; also after the slot's end."""
    claim = await answered(harness)
    assert await findings(harness) == []
    await damage(harness, "update @signals set consumed_by = 'other'")
    assert await findings(harness) == [(BreakKind.SIGNAL_LOST, 1, "go")]
    assert await harness.complete(claim)
    assert await findings(harness) == [(BreakKind.SIGNAL_LOST, 1, "go")]


async def test_a_signal_whose_step_still_waits_is_found(harness: StoreHarness) -> None:
    """The signal is consumed in the commit that records the wait as done."""
    await answered(harness)
    await damage(harness, "update @steps set state = 'waiting'")
    assert await findings(harness) == [(BreakKind.SIGNAL_LOST, 1, "go")]


async def test_a_step_that_consumed_two_signals_is_found(harness: StoreHarness) -> None:
    """One of them was answered by nothing."""
    claim = await answered(harness)
    assert await harness.send(claim.job_id, sent_as="second")
    assert await findings(harness) == []
    await damage(harness, "update @signals set consumed_by = 'approval'")
    assert await findings(harness) == [(BreakKind.SIGNAL_TWICE, 1, "approval")]


# Children


async def test_a_child_that_vanished_is_missed(harness: StoreHarness) -> None:
    """One of two: the step is counted wrong. Both: its parent never wakes either."""
    await harness.parent(2)
    first, _ = await harness.store.list_jobs(task="label")
    await damage(harness, f"delete from @jobs where id = '{first.id}'")
    assert await findings(harness) == [(BreakKind.CHILDREN_MISCOUNTED, 1, "labels")]
    await damage(harness, "delete from @jobs where task = 'label'")
    assert await findings(harness) == [
        (BreakKind.CHILDREN_MISCOUNTED, 1, "labels"),
        (BreakKind.NEVER_WAKES, 1, None),
    ]


async def test_a_mark_that_vanished_is_missed(harness: StoreHarness) -> None:
    """The child has ended, and no one counts it."""
    await harness.parent(1)
    assert await harness.complete(await harness.claim_child())
    await damage(harness, "delete from @marks")
    assert await findings(harness) == [
        (BreakKind.CHILDREN_MISCOUNTED, 1, "labels"),
        (BreakKind.NEVER_WAKES, 1, None),
    ]


async def test_children_that_no_step_waits_for_are_found(harness: StoreHarness) -> None:
    """The step is gone, or has ended before them."""
    await harness.parent(1)
    await damage(harness, "update @steps set state = 'done'")
    found = await findings(harness)
    assert (BreakKind.CHILDREN_MISCOUNTED, 1, "labels") in found
    await damage(harness, "delete from @steps")
    assert (BreakKind.CHILDREN_MISCOUNTED, 1, "labels") in await findings(harness)


# Waking


async def test_a_parent_without_children_left_that_is_not_due_is_found(harness: StoreHarness) -> None:
    """The fold counted the last end, and did not wake it."""
    claim = await harness.parent(1)
    assert await harness.complete(await harness.claim_child())
    await harness.store.fold_marks()
    assert await findings(harness) == []
    await damage(harness, f"update @jobs set not_before = {later(harness)} where id = '{claim.job_id}'")
    assert await findings(harness) == [(BreakKind.NEVER_WAKES, 1, None)]


async def test_a_suspended_job_whose_signal_has_come_is_found(harness: StoreHarness) -> None:
    """Asleep with its signal queued, and no mark that says so."""
    claim = await harness.suspended(waiting(wake_at=START + 7 * DAY), wake_at=START + 7 * DAY)
    assert await harness.send(claim.job_id, name="other")
    await harness.store.fold_marks()
    assert await findings(harness) == []
    assert await harness.send(claim.job_id)
    await damage(harness, "delete from @marks")
    assert await findings(harness) == [(BreakKind.NEVER_WAKES, 1, None)]


async def test_a_suspended_job_whose_time_has_come_is_found(harness: StoreHarness) -> None:
    """Or one that waits for nothing; a paused one as well, for it may be resumed."""
    sleep = step("rest", kind=StepKind.SLEEP, state=StepState.WAITING, wake_at=START + SECOND)
    claim = await harness.suspended(sleep)
    assert await findings(harness) == []
    harness.now.advance(seconds=1)
    assert await findings(harness) == [(BreakKind.NEVER_WAKES, 1, None)]
    assert await harness.store.pause_job(claim.job_id)
    assert await findings(harness) == [(BreakKind.NEVER_WAKES, 1, None)]


async def test_a_backoff_is_no_suspension(harness: StoreHarness) -> None:
    """A job that is not suspended becomes due by its time."""
    claim = await harness.claimed(new_job())
    assert await harness.record(claim, waiting())
    assert await harness.send(claim.job_id)
    await harness.store.fold_marks()
    assert await harness.fail(claim, delay=DAY)
    assert await findings(harness) == []


def later(harness: StoreHarness) -> str:
    """A time that has not come, as this database writes it."""
    at = harness.now() + DAY
    if isinstance(harness.backend, SqliteBackend):
        return str(int(at.timestamp() * 1_000_000))
    return f"'{at.isoformat()}'" if isinstance(harness.backend, PostgresBackend) else f"'{at:%Y-%m-%dT%H:%M:%S.%f}'"


def test_a_finding_names_its_step() -> None:
    """And its slot."""
    found = Break(
        kind=BreakKind.CHILDREN_MISCOUNTED, job_id=new_job().id, task="t", key=None,
        first_no=2, last_no=2, starts_at=1, name="labels",
    )  # fmt: skip
    assert found.text == "step 'labels' of slot 2 waits for another number of children than there are"
    assert found.kind.is_violation
