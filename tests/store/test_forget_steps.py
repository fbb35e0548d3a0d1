"""Forgetting steps on an operator's order: they run again, and nothing else does."""

from __future__ import annotations

from datetime import timedelta

from reltask.model.durable import StepKind
from reltask.model.job import Claim
from tests.store.store_harness import START, StoreHarness, child, new_job, recurring, step, waiting

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


async def after_three_steps(harness: StoreHarness) -> Claim:
    """A failed run that had recorded a, b and c, in this order."""
    claim = await harness.claimed()
    steps = [step(name, started_at=START + n * SECOND) for n, name in enumerate("abc")]
    await harness.record(claim, *steps)
    await harness.fail(claim, delay=DAY)
    return claim


async def test_a_forgotten_step_runs_again(harness: StoreHarness) -> None:
    """Its record is gone, the others stay, and the count of the next claim is right."""
    claim = await after_three_steps(harness)
    assert await harness.store.forget_steps(claim.job_id, "b") == 1
    assert list(await harness.steps(claim.job_id)) == ["a", "c"]
    harness.now.value += DAY
    again = await harness.claim_one()
    assert again.steps == 2
    assert await harness.record(again, step("b", value="2"))
    assert (await harness.steps(claim.job_id))["b"].value == "2"


async def test_all_that_was_started_after_it_may_be_forgotten(harness: StoreHarness) -> None:
    """What came before stays."""
    claim = await after_three_steps(harness)
    assert await harness.store.forget_steps(claim.job_id, "b", and_after=True) == 2
    assert list(await harness.steps(claim.job_id)) == ["a"]
    assert (await harness.job(claim.job_id)).steps == 1


async def test_an_unknown_step_changes_nothing(harness: StoreHarness) -> None:
    """Nor does a job that has no row."""
    claim = await after_three_steps(harness)
    before = await harness.snapshot()
    assert await harness.store.forget_steps(claim.job_id, "d", and_after=True) == 0
    assert await harness.snapshot() == before
    await harness.store.discard_job(claim.job_id)
    assert await harness.store.forget_steps(claim.job_id, "a") == 0


async def test_a_running_job_keeps_its_steps(harness: StoreHarness) -> None:
    """Its run has read them already."""
    await after_three_steps(harness)
    harness.now.value += DAY
    claim = await harness.claim_one()
    before = await harness.snapshot()
    assert await harness.store.forget_steps(claim.job_id, "a") == 0
    assert await harness.snapshot() == before


async def test_earlier_slots_keep_their_steps(harness: StoreHarness) -> None:
    """They are history, also where the current slot has a step of the same name."""
    claim = await harness.claimed(recurring())
    await harness.record(claim, step("a"))
    await harness.complete(claim, next_run_time=START + SECOND)
    assert await harness.store.forget_steps(claim.job_id, "a") == 0
    harness.now.advance(seconds=1)
    again = await harness.claim_one()
    await harness.record(again, step("a", started_at=START + SECOND), step("b", started_at=START + SECOND))
    await harness.fail(again)
    assert await harness.store.forget_steps(claim.job_id, "a", and_after=True) == 1
    assert list(await harness.steps(claim.job_id, 1)) == ["a"]
    assert (list(await harness.steps(claim.job_id, 2)), (await harness.job(claim.job_id)).steps) == (["b"], 1)


async def test_a_suspended_job_becomes_due(harness: StoreHarness) -> None:
    """It may wait for something that it would not wait for now."""
    claim = await harness.suspended(step("a"), waiting())
    assert await harness.store.forget_steps(claim.job_id, "a") == 1
    assert (await harness.claim_one()).job_id == claim.job_id


async def test_another_job_keeps_its_due_time(harness: StoreHarness) -> None:
    """A backoff goes on."""
    claim = await after_three_steps(harness)
    await harness.store.forget_steps(claim.job_id, "a")
    assert (await harness.job(claim.job_id)).due_at == START + DAY


async def test_its_signal_waits_again(harness: StoreHarness) -> None:
    """The wait that consumed it is gone; a signal that another step consumed stays consumed."""
    claim = await harness.claimed()
    for id_ in ("first", "second"):
        await harness.send(claim.job_id, sent_as=id_)
        await harness.record(claim, step(f"wait for {id_}", kind=StepKind.WAIT, signal="go", signal_id=id_))
    await harness.fail(claim)
    await harness.store.forget_steps(claim.job_id, "wait for first")
    assert {signal.id: signal.consumed_by for signal in await harness.store.list_signals(claim.job_id)} == {
        "first": None,
        "second": "wait for second",
    }


async def test_the_ends_of_its_children_are_forgotten(harness: StoreHarness) -> None:
    """The step starts its children anew, and their ends count."""
    claim = await harness.parent(1)
    await harness.complete(await harness.claim_child())
    assert await harness.store.forget_steps(claim.job_id, "labels") == 1
    assert (await harness.waits(claim)).ends == []
    again = await harness.claim_one()
    await harness.add(child(again, 0))
    await harness.complete(await harness.claim_child(), result="2")
    assert [end.value for end in (await harness.waits(claim)).ends] == ["2"]


async def test_a_dead_job_may_forget(harness: StoreHarness) -> None:
    """The usual reason to forget a step: it recorded something that the rest cannot use."""
    claim = await harness.claimed(new_job(max_attempts=1))
    await harness.record(claim, step("a"))
    await harness.fail(claim)
    assert await harness.store.forget_steps(claim.job_id, "a") == 1
    await harness.store.retry_job(claim.job_id)
    assert (await harness.claim_one()).steps == 0
