"""Recording the steps of durable functions: once per name, only while the claim holds."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from typing import cast
from uuid import uuid4

import msgspec
import pytest

from reltask.errors import ConflictError
from reltask.model.durable import Recording, StepKind, StepState
from reltask.model.job import Hold
from tests.store.connections import Undo
from tests.store.store_harness import START, StoreHarness, new_job, recurring, step, waiting

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


async def test_a_recorded_step_is_read_back_as_it_was(harness: StoreHarness) -> None:
    """Every field returns, with the slot, the run's fence, and the database's time of the record."""
    claim = await harness.claimed()
    harness.now.advance(seconds=4)
    record = step(
        "label#2",
        kind=StepKind.RUN,
        state=StepState.WAITING,
        value='{"é": "\\"quoted\\""}',
        error="ValueError: no",
        fingerprint="f00d",
        attempt=3,
        started_at=START + SECOND,
        wake_at=START + DAY,
        signal="go",
        pending=2,
    )
    assert await harness.record(claim, record)
    (view,) = await harness.store.read_steps(claim.job_id, 1)
    assert (view.job_id, view.slot_no, view.fence, view.recorded_at) == (claim.job_id, 1, 1, harness.now())
    assert {name: getattr(view, name) for name in record.__struct_fields__ if name != "signal_id"} == {
        name: getattr(record, name) for name in record.__struct_fields__ if name != "signal_id"
    }


async def test_null_is_a_value(harness: StoreHarness) -> None:
    """A step that returned nothing has recorded JSON's null; a step without a value has none."""
    claim = await harness.claimed()
    await harness.record(claim, step("returned", value="null"), step("has none"))
    steps = await harness.steps(claim.job_id)
    assert (steps["returned"].value, steps["has none"].value) == ("null", None)


async def test_the_claim_says_how_many_steps_there_are(harness: StoreHarness) -> None:
    """None at first, so that a plain job reads nothing; afterwards each name counts once."""
    claim = await harness.claimed()
    assert claim.steps == 0
    await harness.record(claim, step("a"), waiting("b"))
    await harness.record(claim, step("b"), step("c"))
    assert (await harness.job(claim.job_id)).steps == 3
    await harness.fail(claim)
    assert (await harness.claim_one()).steps == 3


async def test_steps_are_read_in_the_order_of_their_start(harness: StoreHarness) -> None:
    """Not in the order in which they were recorded."""
    claim = await harness.claimed()
    await harness.record(claim, step("b", started_at=START + 2 * SECOND))
    await harness.record(claim, step("c", started_at=START + 3 * SECOND), step("z", started_at=START + SECOND))
    assert [view.name for view in await harness.store.read_steps(claim.job_id)] == ["z", "b", "c"]


# Once


@pytest.mark.parametrize("state", [StepState.DONE, StepState.FAILED])
async def test_a_final_step_is_never_written_again(harness: StoreHarness, state: StepState) -> None:
    """Not by the run that wrote it, and not by a later one, whatever it found."""
    claim = await harness.claimed()
    await harness.record(claim, step("a", state=state, value="1"))
    first = await harness.steps(claim.job_id)
    harness.now.advance(seconds=1)
    assert await harness.record(claim, step("a", value="2"))
    await harness.fail(claim)
    again = await harness.claim_one()
    assert await harness.record(again, step("a", value="3"), waiting("b"))
    assert {"a": (await harness.steps(claim.job_id))["a"]} == first
    assert (await harness.job(claim.job_id)).steps == 2


async def test_a_recording_may_be_sent_twice(harness: StoreHarness) -> None:
    """Its answer was lost: the second one is accepted too, and changes nothing."""
    claim = await harness.claimed()
    await harness.send(claim.job_id, sent_as="click")
    recording = [step("a", value="1"), step("b", kind=StepKind.WAIT, value="1", signal="go", signal_id="click")]
    assert await harness.record(claim, *recording)
    before = await harness.snapshot()
    harness.now.advance(seconds=1)
    assert await harness.record(claim, *recording)
    assert await harness.snapshot() == before


async def test_a_waiting_step_is_replaced(harness: StoreHarness) -> None:
    """By its end, or by its next attempt; its start stays, the other values are the new ones."""
    claim = await harness.claimed()
    await harness.record(claim, waiting("a", attempt=1, wake_at=START + DAY))
    harness.now.advance(seconds=1)
    await harness.record(claim, waiting("a", attempt=2, wake_at=START + 2 * DAY, started_at=START + DAY))
    view = (await harness.steps(claim.job_id))["a"]
    assert (view.attempt, view.wake_at, view.started_at) == (2, START + 2 * DAY, START)
    await harness.fail(claim)
    again = await harness.claim_one()
    await harness.record(again, step("a", value="7", started_at=START + DAY))
    view = (await harness.steps(claim.job_id))["a"]
    assert (view.state, view.value, view.wake_at, view.signal) == (StepState.DONE, "7", None, None)
    assert (view.started_at, view.recorded_at, view.fence) == (START, harness.now(), 2)
    assert (await harness.job(claim.job_id)).steps == 1


# While the claim holds


async def test_a_lost_claim_records_nothing(harness: StoreHarness) -> None:
    """Neither under an old fence nor for another worker's claim: nothing is written, and no signal is consumed."""
    claim = await harness.claimed()
    await harness.send(claim.job_id, sent_as="click")
    await harness.lose(claim)
    again = await harness.claim_one("bob")
    before = await harness.snapshot()
    consuming = step("a", kind=StepKind.WAIT, signal="go", signal_id="click")
    assert not await harness.record(claim, consuming)
    assert not await harness.record(claim, consuming, worker="bob")
    assert not await harness.record(again, consuming)
    assert await harness.snapshot() == before
    assert await harness.record(again, consuming, worker="bob")


async def test_an_ended_run_records_nothing(harness: StoreHarness) -> None:
    """Once it is suspended, failed or completed, its fence is worth nothing."""
    claim = await harness.suspended(waiting())
    before = await harness.snapshot()
    assert not await harness.record(claim, step("late"))
    assert not await harness.record(msgspec.structs.replace(claim, job_id=uuid4()), step("unknown"))
    assert await harness.snapshot() == before


async def test_a_batch_records_what_matches(harness: StoreHarness) -> None:
    """One lost claim does not keep the recordings beside it."""
    await harness.add(new_job(), new_job())
    mine, other = (await harness.claim(limit=2)).claims
    lost = Hold(other.job_id, other.fence - 1)
    accepted = await harness.store.record_steps(
        "alice", [Recording(hold=lost, steps=(step("a"),)), Recording(hold=mine.hold, steps=(step("a"), step("b")))]
    )
    assert [settled.hold for settled in accepted] == [mine.hold]
    assert await harness.store.read_steps(other.job_id) == []
    assert set(await harness.steps(mine.job_id)) == {"a", "b"}


async def test_a_recording_that_a_constraint_refuses_is_an_error(harness: StoreHarness) -> None:
    """It is not taken for one whose row is locked, or whose claim is lost. Beside others it is left out."""
    await harness.add(new_job(), new_job())
    one, other = (await harness.claim(limit=2)).claims
    bad = Recording(hold=other.hold, steps=(step("x", kind=cast("StepKind", "dance")),))
    with pytest.raises(ConflictError):
        await harness.store.record_steps("alice", [bad])
    accepted = await harness.store.record_steps("alice", [Recording(hold=one.hold, steps=(step("a"),)), bad])
    assert [settled.hold for settled in accepted] == [one.hold]
    assert await harness.store.read_steps(other.job_id) == []


async def test_steps_of_an_earlier_claim_in_the_batch_are_not_counted(harness: StoreHarness) -> None:
    """A worker that has the job again may still send what its lost run wanted to record."""
    lost = await harness.claimed()
    await harness.fail(lost)
    claim = await harness.claim_one()
    batch = [Recording(hold=lost.hold, steps=(step("a"), step("b"))), Recording(hold=claim.hold, steps=(step("c"),))]
    assert [one.hold for one in await harness.store.record_steps("alice", batch)] == [claim.hold]
    assert list(await harness.steps(claim.job_id)) == ["c"]
    assert (await harness.job(claim.job_id)).steps == 1


async def test_a_recording_waits_for_its_row_if_asked(harness: StoreHarness) -> None:
    """The answer is the same, by the rule of the settlements."""
    claim = await harness.claimed()
    recording = Recording(hold=claim.hold, steps=(step("a"),))
    (accepted,) = await harness.store.record_steps("alice", [recording], wait=True)
    assert accepted.hold == claim.hold
    assert await harness.store.record_steps("bob", [recording], wait=True) == []


# Progress


async def test_progress_counts_attempts_anew(harness: StoreHarness) -> None:
    """The limit counts from the last recorded step: the third attempt becomes the first, and one more is allowed."""
    await harness.add(new_job(max_attempts=3))
    await harness.fail(await harness.claim_one())
    await harness.fail(await harness.claim_one())
    claim = await harness.claim_one()
    assert claim.attempt == 3
    await harness.record(claim, step())
    assert (await harness.job(claim.job_id)).attempt == 1
    await harness.fail(claim)
    assert (await harness.claim_one()).attempt == 2


async def test_a_failed_attempt_of_a_step_is_no_progress(harness: StoreHarness) -> None:
    """It is recorded, and the run's attempts count on."""
    await harness.add(new_job())
    await harness.fail(await harness.claim_one())
    claim = await harness.claim_one()
    await harness.record(claim, waiting(attempt=2), progress=False)
    assert (await harness.job(claim.job_id)).attempt == 2


async def test_progress_ends_isolation(harness: StoreHarness) -> None:
    """A job that records a step has not starved its worker: after a further loss it is not isolated at once."""
    await harness.lose(await harness.claimed())
    await harness.lose(await harness.claim_one())
    claim = await harness.claim_one()
    assert claim.isolated
    await harness.record(claim, step(), progress=False)
    assert (await harness.job(claim.job_id)).isolated
    await harness.record(claim, step("next"))
    assert not (await harness.job(claim.job_id)).isolated
    await harness.lose(claim)
    assert not (await harness.job(claim.job_id)).isolated


# Slots


async def test_steps_belong_to_their_slot(harness: StoreHarness) -> None:
    """The next slot starts without any, may use the same names, and those of the last one stay readable."""
    claim = await harness.claimed(recurring())
    await harness.record(claim, step("a", value="1"), step("b"))
    await harness.complete(claim, next_run_time=START + SECOND)
    harness.now.advance(seconds=1)
    again = await harness.claim_one()
    assert again.steps == 0
    assert await harness.store.read_steps(claim.job_id, 2) == []
    assert set(await harness.steps(claim.job_id)) == {"a", "b"}
    await harness.record(again, step("a", value="2"))
    assert {name: view.value for name, view in (await harness.steps(claim.job_id)).items()} == {"a": "2"}
    assert (await harness.steps(claim.job_id, 1))["a"].value == "1"


async def test_the_ledger_says_how_many_steps_a_slot_had(harness: StoreHarness) -> None:
    """In the row that ended it; runs that left it open, and slots without steps, have none."""
    await harness.add(recurring())
    first = await harness.claim_one()
    await harness.record(first, step("a"), step("b"))
    await harness.fail(first)
    await harness.complete(await harness.claim_one(), next_run_time=START + SECOND)
    harness.now.advance(seconds=1)
    await harness.complete(await harness.claim_one(), next_run_time=START + DAY)
    assert [run.steps for run in await harness.runs(first.job_id)] == [None, 2, None]


async def test_the_next_slot_may_have_other_arguments(harness: StoreHarness) -> None:
    """A function that starts anew ends its slot, and the next one has the arguments that it names."""
    claim = await harness.claimed(new_job(args='{"cursor": 1}'))
    await harness.record(claim, step())
    assert await harness.complete(claim, next_run_time=START, args='{"cursor": 2}')
    harness.now.advance(seconds=1)
    again = await harness.claim_one()
    assert (again.slot_no, again.args, again.steps) == (2, '{"cursor": 2}', 0)
    assert await harness.complete(again, next_run_time=harness.now())
    harness.now.advance(seconds=1)
    assert (await harness.claim_one()).args == '{"cursor": 2}'


async def test_a_dead_function_goes_on_where_it_was(harness: StoreHarness) -> None:
    """A retry keeps the steps."""
    claim = await harness.claimed(new_job(max_attempts=1))
    await harness.record(claim, step())
    await harness.fail(claim)
    assert await harness.store.retry_job(claim.job_id)
    assert (await harness.claim_one()).steps == 1
    assert set(await harness.steps(claim.job_id)) == {"charge"}


# Beside other writes


async def test_a_step_commits_with_the_writes_beside_it(harness: StoreHarness) -> None:
    """Both or neither: a step that is rolled back was never recorded."""
    claim = await harness.claimed()
    recording = Recording(hold=claim.hold, steps=(step(),))
    with suppress(Undo):
        async with harness.store.transaction(timeout=10 * SECOND) as transaction:
            await transaction.enqueue_jobs([new_job(task="beside")])
            assert await transaction.record_steps("alice", recording)
            raise Undo
    assert await harness.store.read_steps(claim.job_id) == []
    assert [view.task for view in await harness.store.list_jobs()] == ["greet"]
    async with harness.store.transaction(timeout=10 * SECOND) as transaction:
        await transaction.enqueue_jobs([new_job(task="beside")])
        assert await transaction.record_steps("alice", recording)
    assert set(await harness.steps(claim.job_id)) == {"charge"}
    assert {view.task for view in await harness.store.list_jobs()} == {"greet", "beside"}
    assert (await harness.job(claim.job_id)).steps == 1


async def test_a_lost_claim_is_refused_inside_a_transaction(harness: StoreHarness) -> None:
    """The answer is no, so that the caller rolls back."""
    claim = await harness.claimed()
    await harness.lose(claim)
    before = await harness.snapshot()
    async with harness.store.transaction(timeout=10 * SECOND) as transaction:
        assert not await transaction.record_steps("alice", Recording(hold=claim.hold, steps=(step(),)))
    assert await harness.snapshot() == before
