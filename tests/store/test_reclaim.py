"""Reclaiming: a dead worker's slot comes back, with a ledger row that says what happened."""

from __future__ import annotations

from datetime import timedelta

from reltask.model.job import Outcome, Reclaimed, State
from tests.store.bench import LOCK, START, Bench, new_job, recurring

MICRO = timedelta(microseconds=1)


async def test_reclaim_takes_expired_claims_only(bench: Bench) -> None:
    """Heartbeat + copied timeout < now, to the microsecond."""
    claim = await bench.claimed()
    bench.now.value = START + LOCK
    assert await bench.store.reclaim_jobs() == []
    bench.now.value = START + LOCK + MICRO
    assert await bench.store.reclaim_jobs() == [
        Reclaimed(job_id=claim.job_id, fence=1, task="greet", slot_no=1, worker="alice", dead=False)
    ]


async def test_reclaimed_slot_is_kept_and_isolated(bench: Bench) -> None:
    """Lock cleared; slot, nominal time, due time and attempt stay; the next claim is another fence and comes alone."""
    claim = await bench.claimed(recurring())
    await bench.store.record_progress("alice", claim.hold, "1")
    await bench.lose(claim)
    view = await bench.job(claim.job_id)
    assert (view.locked_by, view.locked_at, view.heartbeat_at, view.lock_expires_at, view.progress) == (None,) * 5
    assert (view.state, view.slot_no, view.attempt, view.fence) == (State.READY, 1, 1, 1)
    assert (view.next_run_time, view.due_at, view.isolated) == (claim.nominal, claim.due_at, True)
    again = await bench.claim_one("bob")
    assert (again.fence, again.attempt, again.slot_no, again.slot_started_at) == (2, 2, 1, claim.locked_at)


async def test_lost_run_has_a_ledger_row(bench: Bench) -> None:
    """It names the old owner, and since when nothing was heard of it."""
    claim = await bench.claimed()
    await bench.lose(claim)
    (run,) = await bench.runs(claim.job_id)
    assert (run.outcome, run.worker, run.fence, run.attempt) == (Outcome.LOST, "alice", 1, 1)
    assert (run.claimed_at, run.finished_at) == (claim.locked_at, bench.now())
    assert (run.error or "").startswith("no heartbeat since 2025-03-30")


async def test_heartbeat_keeps_the_claim_from_being_reclaimed(bench: Bench) -> None:
    """A living worker's claim outlives any number of lock timeouts."""
    claim = await bench.claimed()
    for _ in range(5):
        bench.now.value += LOCK
        await bench.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
        assert await bench.store.reclaim_jobs() == []
    assert (await bench.job(claim.job_id)).locked_by == "alice"


async def test_reclaim_goes_by_the_copied_timeout(bench: Bench) -> None:
    """A claim lasts as long as was agreed when it was made, whatever other workers' settings are."""
    await bench.add(recurring())
    claim = await bench.claim_one(lock_timeout=timedelta(hours=1))
    await bench.add(new_job())
    await bench.claim_one(lock_timeout=timedelta(hours=2))
    bench.now.advance(minutes=30)
    assert await bench.store.reclaim_jobs() == []
    await bench.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    assert (await bench.job(claim.job_id)).lock_expires_at == bench.now() + timedelta(hours=1)


async def test_reclaim_at_the_last_attempt_is_dead(bench: Bench) -> None:
    """A job that kills its worker each time still reaches its limit."""
    await bench.add(new_job(max_attempts=2))
    deaths = []
    for _ in range(2):
        claim = await bench.claim_one(isolated_after=timedelta(0))
        bench.now.value += LOCK + MICRO
        deaths += [reclaimed.dead for reclaimed in await bench.store.reclaim_jobs()]
    assert deaths == [False, True]
    assert (await bench.job(claim.job_id)).state is State.DEAD


async def test_reclaim_is_done_once(bench: Bench) -> None:
    """The second look finds nothing, and changes nothing."""
    await bench.lose(await bench.claimed())
    before = await bench.snapshot()
    assert await bench.store.reclaim_jobs() == []
    assert await bench.snapshot() == before


async def test_reclaim_limit(bench: Bench) -> None:
    """No more than asked for at once, the longest expired first."""
    first = await bench.claimed()
    bench.now.advance(seconds=1)
    await bench.claimed()
    bench.now.advance(hours=1)
    assert [lost.job_id for lost in await bench.store.reclaim_jobs(limit=1)] == [first.job_id]
    assert len(await bench.store.reclaim_jobs(limit=1)) == 1
    assert await bench.store.reclaim_jobs(limit=1) == []


async def test_paused_while_claimed_is_paused_after_reclaim(bench: Bench) -> None:
    """Pausing does not end a claim, and losing the claim does not end the pause."""
    claim = await bench.claimed()
    assert await bench.store.pause_job(claim.job_id)
    await bench.lose(claim)
    assert (await bench.job(claim.job_id)).state is State.PAUSED
