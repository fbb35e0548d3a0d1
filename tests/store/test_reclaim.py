"""Reclaiming: a dead worker's slot can be claimed again, and a ledger row says what happened."""

from __future__ import annotations

from datetime import timedelta

from reltask.model.job import Outcome, Reclaimed, State
from tests.store.store_harness import LOCK, START, StoreHarness, new_job, recurring

MICRO = timedelta(microseconds=1)


async def test_reclaim_takes_expired_claims_only(harness: StoreHarness) -> None:
    """Expired means heartbeat + copied timeout < now, to the microsecond."""
    claim = await harness.claimed()
    harness.now.value = START + LOCK
    assert await harness.store.reclaim_jobs() == []
    harness.now.value = START + LOCK + MICRO
    assert await harness.store.reclaim_jobs() == [
        Reclaimed(job_id=claim.job_id, fence=1, task="greet", slot_no=1, worker="alice", dead=False)
    ]


async def test_reclaimed_slot_is_kept(harness: StoreHarness) -> None:
    """Slot, nominal time, due time and attempt stay; the next claim has a new fence. One loss does not isolate."""
    claim = await harness.claimed(recurring())
    await harness.lose(claim)
    view = await harness.job(claim.job_id)
    assert (view.locked_by, view.locked_at, view.heartbeat_at, view.lock_expires_at) == (None,) * 4
    assert (view.state, view.slot_no, view.attempt, view.fence) == (State.READY, 1, 1, 1)
    assert (view.next_run_time, view.due_at, view.isolated) == (claim.nominal, claim.due_at, False)
    again = await harness.claim_one("bob")
    assert (again.fence, again.attempt, again.slot_no, again.slot_started_at) == (2, 2, 1, claim.locked_at)


async def test_lost_run_has_a_ledger_row(harness: StoreHarness) -> None:
    """It names the old owner, and its last heartbeat."""
    claim = await harness.claimed()
    await harness.lose(claim)
    (run,) = await harness.runs(claim.job_id)
    assert (run.outcome, run.worker, run.fence, run.attempt) == (Outcome.LOST, "alice", 1, 1)
    assert (run.claimed_at, run.finished_at) == (claim.locked_at, harness.now())
    assert (run.error or "").startswith("no heartbeat since 2025-03-30")


async def test_heartbeat_keeps_the_claim_from_being_reclaimed(harness: StoreHarness) -> None:
    """A living worker's claim lasts for any number of lock timeouts."""
    claim = await harness.claimed()
    for _ in range(5):
        harness.now.value += LOCK
        await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
        assert await harness.store.reclaim_jobs() == []
    assert (await harness.job(claim.job_id)).locked_by == "alice"


async def test_reclaim_goes_by_the_copied_timeout(harness: StoreHarness) -> None:
    """A claim has the lock timeout copied when it was made, whatever other workers' settings."""
    await harness.add(recurring())
    claim = await harness.claim_one(lock_timeout=timedelta(hours=1))
    await harness.add(new_job())
    await harness.claim_one(lock_timeout=timedelta(hours=2))
    harness.now.advance(minutes=30)
    assert await harness.store.reclaim_jobs() == []
    await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    assert (await harness.job(claim.job_id)).lock_expires_at == harness.now() + timedelta(hours=1)


async def test_second_loss_in_a_row_isolates(harness: StoreHarness) -> None:
    """From then on the job is one of which a worker runs one at a time."""
    claim = await harness.claimed()
    for isolated in (False, True, True):
        await harness.lose(claim)
        assert (await harness.job(claim.job_id)).isolated is isolated
        claim = await harness.claim_one()
        assert claim.isolated is isolated


async def test_reclaim_at_the_last_attempt_is_dead(harness: StoreHarness) -> None:
    """A job that kills its worker each time still reaches its limit."""
    await harness.add(new_job(max_attempts=2))
    deaths = []
    for _ in range(2):
        claim = await harness.claim_one()
        harness.now.value += LOCK + MICRO
        deaths += [reclaimed.dead for reclaimed in await harness.store.reclaim_jobs()]
    assert deaths == [False, True]
    assert (await harness.job(claim.job_id)).state is State.DEAD


async def test_reclaim_is_done_once(harness: StoreHarness) -> None:
    """The second reclaim finds nothing, and changes nothing."""
    await harness.lose(await harness.claimed())
    before = await harness.snapshot()
    assert await harness.store.reclaim_jobs() == []
    assert await harness.snapshot() == before


async def test_reclaim_limit(harness: StoreHarness) -> None:
    """At most `limit` at once, the longest expired first."""
    first = await harness.claimed()
    harness.now.advance(seconds=1)
    await harness.claimed()
    harness.now.advance(hours=1)
    assert [lost.job_id for lost in await harness.store.reclaim_jobs(limit=1)] == [first.job_id]
    assert len(await harness.store.reclaim_jobs(limit=1)) == 1
    assert await harness.store.reclaim_jobs(limit=1) == []


async def test_paused_while_claimed_is_paused_after_reclaim(harness: StoreHarness) -> None:
    """Pausing does not end a claim, and losing the claim does not end the pause."""
    claim = await harness.claimed()
    assert await harness.store.pause_job(claim.job_id)
    await harness.lose(claim)
    assert (await harness.job(claim.job_id)).state is State.PAUSED
