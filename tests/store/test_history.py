"""The ledger keeps what a job was given, so that it can be run again."""

from __future__ import annotations

from typing import Any

import pytest

from reltask.model.job import Completion, Outcome
from reltask.model.screens import Payload
from tests.store.store_harness import StoreHarness, child, new_job, recurring

GIVEN: dict[str, Any] = {
    "args": '{"to":"naïve ☃ \\"x\\""}',
    "headers": '{"tenant":"a"}',
    "queue": "mail",
    "priority": 2,
}


@pytest.mark.parametrize("count", [1, 3])
async def test_a_job_that_ended_is_known_by_what_it_was_given(harness: StoreHarness, count: int) -> None:
    """Arguments, headers, queue and priority, whatever its outcome."""
    for _ in range(count):
        await harness.add(new_job(**GIVEN))
    claims = (await harness.claim(limit=count, queues=["mail"])).claims
    ends = [Completion(claim.hold, Outcome.CANCELLED if nth else Outcome.SUCCEEDED) for nth, claim in enumerate(claims)]
    assert len(await harness.store.complete_jobs("alice", ends)) == count
    for claim in claims:
        assert await harness.store.read_payload(claim.job_id) == Payload(
            GIVEN["args"], GIVEN["headers"], "greet", "mail", 2
        )


@pytest.mark.parametrize("count", [1, 2])
async def test_nothing_is_kept_if_so_asked(harness: StoreHarness, count: int) -> None:
    """Of some jobs of a batch; queue and task are known all the same."""
    jobs = [job for _ in range(count) for job in await harness.add(new_job(**GIVEN))]
    claims = (await harness.claim(limit=count, queues=["mail"])).claims
    ends = [Completion(claim.hold, keeps_args=claim.job_id != jobs[0]) for claim in claims]
    assert len(await harness.store.complete_jobs("alice", ends)) == count
    for job in jobs:
        payload = await harness.store.read_payload(job)
        assert payload is not None
        assert (payload.args, payload.headers) == (
            (None, None) if job == jobs[0] else (GIVEN["args"], GIVEN["headers"])
        )


async def test_a_child_keeps_it_as_well(harness: StoreHarness) -> None:
    """It is completed by another statement, together with others."""
    parent = await harness.claimed()
    await harness.add(child(parent, 0, **{**GIVEN, "queue": "default"}))
    claim = await harness.claim_child()
    assert await harness.complete(claim, next_run_time=None, has_parent=True)
    payload = await harness.store.read_payload(claim.job_id)
    assert payload == Payload(GIVEN["args"], GIVEN["headers"], claim.task, "default", 2)


async def test_a_slot_of_a_job_that_goes_on_keeps_nothing(harness: StoreHarness) -> None:
    """The row has it: also after Again, with the arguments of the next slot."""
    claim = await harness.claimed(recurring(args='{"page":1}', headers='{"tenant":"a"}'))
    assert await harness.complete(claim, next_run_time=harness.now.advance(minutes=1), args='{"page":2}')
    payload = await harness.store.read_payload(claim.job_id)
    assert payload is not None
    assert (payload.args, payload.headers) == ('{"page":2}', '{"tenant":"a"}')


async def test_a_transaction_keeps_it(harness: StoreHarness) -> None:
    """A completion in the task's own transaction."""
    claim = await harness.claimed(new_job(**{**GIVEN, "queue": "default"}))
    async with harness.store.transaction(timeout=claim.lock_timeout) as transaction:
        assert await transaction.complete_job("alice", Completion(claim.hold))
    payload = await harness.store.read_payload(claim.job_id)
    assert payload is not None
    assert payload.args == GIVEN["args"]


async def test_a_discarded_job_keeps_nothing(harness: StoreHarness) -> None:
    """An operator's entry in the ledger holds no payload: its role could write any."""
    (job,) = await harness.add(new_job(**GIVEN))
    assert await harness.store.discard_job(job)
    payload = await harness.store.read_payload(job)
    assert payload is not None
    assert (payload.args, payload.task) == (None, "greet")
