"""`read_results`: how jobs have ended, for those who wait for them."""

from __future__ import annotations

from uuid import uuid4

import pytest

from reltask.model.job import Outcome
from reltask.model.views import JobEnd
from tests.store.store_harness import StoreHarness, new_job, recurring


async def ends(harness: StoreHarness, *job_ids: object) -> dict[object, JobEnd]:
    return {end.job_id: end for end in await harness.store.read_results(list(job_ids))}  # type: ignore[arg-type]


async def test_a_job_that_has_yet_to_end_is_not_named(harness: StoreHarness) -> None:
    """Waiting, claimed, failed once, paused or suspended: none of them has ended."""
    waiting, paused = await harness.add(new_job(run_at=harness.now()), new_job(task="other"))
    claim = await harness.claim_one()
    await harness.store.pause_job(paused)
    assert await ends(harness, waiting, paused) == {}
    await harness.fail(claim)
    assert await ends(harness, waiting, paused) == {}


async def test_an_ended_job_has_its_last_run(harness: StoreHarness) -> None:
    """The result is that of the run that ended it, not of an earlier one that failed."""
    claim = await harness.claimed()
    await harness.fail(claim)
    await harness.complete(await harness.claim_one(), result='{"sum": 7}')
    (end,) = (await ends(harness, claim.job_id)).values()
    assert (end.outcome, end.dead, end.recurring, end.error) == (Outcome.SUCCEEDED, False, False, None)
    assert end.result is not None
    assert end.result.replace(" ", "") == '{"sum":7}'


async def test_cancelled_and_discarded_jobs_say_so(harness: StoreHarness) -> None:
    """The outcome and the reason come from the ledger."""
    cancelled = await harness.claimed()
    await harness.complete(cancelled, outcome=Outcome.CANCELLED, error="not needed")
    (discarded,) = await harness.add(new_job())
    await harness.store.discard_job(discarded)
    found = await ends(harness, cancelled.job_id, discarded)
    assert (found[cancelled.job_id].outcome, found[cancelled.job_id].error) == (Outcome.CANCELLED, "not needed")
    assert found[discarded].outcome is Outcome.DISCARDED


async def test_a_dead_job_has_its_last_error(harness: StoreHarness) -> None:
    """It is still there, but ends only by a person; one that is tried again has yet to end."""
    claim = await harness.claimed(new_job(max_attempts=1))
    await harness.fail(claim, error="ValueError: boom")
    (end,) = (await ends(harness, claim.job_id)).values()
    assert (end.dead, end.outcome, end.error) == (True, Outcome.FAILED, "ValueError: boom")
    await harness.store.retry_job(claim.job_id)
    assert await ends(harness, claim.job_id) == {}


async def test_a_recurring_job_is_named_at_once(harness: StoreHarness) -> None:
    """Its slots end, but it does not."""
    (job,) = await harness.add(recurring(run_at=harness.now()))
    assert (await ends(harness, job))[job].recurring


async def test_a_job_without_row_and_run_is_named_without_an_outcome(harness: StoreHarness) -> None:
    """It was pruned, is not committed yet, or never existed."""
    missing = uuid4()
    assert await ends(harness, missing) == {
        missing: JobEnd(job_id=missing, recurring=False, dead=False, outcome=None, result=None, error=None)
    }


@pytest.mark.parametrize("count", [0, 1_000])
async def test_many_are_read_at_once(count: int, harness: StoreHarness) -> None:
    """One statement for all who wait; also for none."""
    ids = [uuid4() for _ in range(count)]
    assert set(await ends(harness, *ids)) == set(ids)
