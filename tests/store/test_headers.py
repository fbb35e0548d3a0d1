"""Headers: what travels with a job beside its arguments."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from tests.store.store_harness import StoreHarness, child, new_job, recurring, seen

HEADERS = json.dumps({"tenant": 'naïve ☃ "quoted" back\\slash', "depth": [1, {"a": None}]}, ensure_ascii=False)


@pytest.mark.parametrize("count", [1, 2, 150])
async def test_headers_reach_the_claim(harness: StoreHarness, count: int) -> None:
    """However many jobs are inserted at once; a job without headers has none."""
    jobs = [new_job(headers=HEADERS), *(new_job() for _ in range(count - 1))]
    await harness.store.enqueue_jobs(jobs)
    claims = (await harness.claim(limit=count)).claims
    assert {claim.job_id: claim.headers for claim in claims if claim.headers is not None} == {jobs[0].id: HEADERS}
    assert len(claims) == count


async def test_headers_stay_for_the_next_attempt_and_the_next_slot(harness: StoreHarness) -> None:
    """They belong to the job."""
    claim = await harness.claimed(recurring(headers=HEADERS))
    assert claim.headers == HEADERS
    assert await harness.fail(claim)
    harness.now.advance(minutes=1)
    again = await harness.claim_one()
    assert again.headers == HEADERS
    assert await harness.complete(again, next_run_time=harness.now.advance(minutes=1))
    assert (await harness.claim_one()).headers == HEADERS


async def test_a_declaration_replaces_the_headers(harness: StoreHarness) -> None:
    """Headers are a part of a recurring job's definition."""
    job = recurring(headers=HEADERS)
    await harness.add(job)
    changed = replace(job, headers='{"tenant":"b"}', declaration="v2")
    assert await harness.store.declare_job(changed, seen=seen())
    assert (await harness.claim_one()).headers == '{"tenant":"b"}'


async def test_a_child_has_headers_of_its_own(harness: StoreHarness) -> None:
    """They are stored with the other columns of a job that has a parent."""
    parent = await harness.claimed()
    await harness.add(child(parent, 0, headers=HEADERS))
    assert (await harness.claim_child()).headers == HEADERS
