"""Heartbeats: renewing claims, showing life, and finding claims whose answer was lost."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

from reltask.model.job import Hold, Outcome, Release
from tests.store.store_harness import LOCK, START, StoreHarness, new_job, recurring, worker_record

SECOND = timedelta(seconds=1)


async def test_heartbeat_extends_the_lock(harness: StoreHarness) -> None:
    """`heartbeat_at` is the database's time and the lock ends one copied timeout later; `locked_at` stays."""
    claim = await harness.claimed(new_job(lock_timeout=10 * SECOND))
    harness.now.advance(seconds=7)
    answer = await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    assert (answer.renewed, answer.strays) == (frozenset({claim.hold}), [])
    view = await harness.job(claim.job_id)
    assert (view.locked_at, view.heartbeat_at) == (START, harness.now())
    assert view.lock_expires_at == harness.now() + 10 * SECOND


async def test_heartbeat_changes_nothing_else(harness: StoreHarness) -> None:
    """Neither the slot, nor the counters, nor what the schedule counts from."""
    claim = await harness.claimed()
    before = await harness.job(claim.job_id)
    harness.now.advance(seconds=7)
    await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)
    after = await harness.job(claim.job_id)
    changed = {name for name in before.__struct_fields__ if getattr(before, name) != getattr(after, name)}
    assert changed == {"heartbeat_at", "lock_expires_at"}


async def test_heartbeat_renews_its_own_among_others(harness: StoreHarness) -> None:
    """Of a batch only claims still held are renewed; the others are missing from the answer, and unchanged."""
    await harness.add(new_job(), new_job())
    kept, gone = (await harness.claim(limit=2)).claims
    await harness.fail(gone, delay=timedelta(hours=1))
    theirs = await harness.claimed(worker="bob")
    wrong = Hold(kept.job_id, kept.fence + 1)
    harness.now.advance(seconds=1)
    answer = await harness.store.heartbeat_jobs("alice", [gone.hold, wrong, kept.hold, theirs.hold], alive_for=LOCK)
    assert answer.renewed == {kept.hold}
    assert (await harness.job(theirs.job_id)).heartbeat_at == START


async def test_expired_claim_not_yet_reclaimed_can_be_renewed(harness: StoreHarness) -> None:
    """A claim is lost when it is reclaimed, not when its time ends: until then its fence is the newest."""
    claim = await harness.claimed()
    harness.now.advance(hours=1)
    assert (await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)).renewed == {claim.hold}
    assert await harness.store.reclaim_jobs() == []


async def test_claim_that_waits_for_its_answer_is_renewed_by_its_token(harness: StoreHarness) -> None:
    """Its rows are renewed and named, although the worker does not know them yet; no other row is touched."""
    token = uuid4()
    mine = await harness.claimed(token=token)
    other = await harness.claimed(token=uuid4())
    theirs = await harness.claimed(worker="bob")
    harness.now.advance(seconds=7)
    answer = await harness.store.heartbeat_jobs("alice", [], alive_for=LOCK, pending=[token])
    assert (answer.renewed, answer.strays) == (frozenset({mine.hold}), [])
    assert (await harness.job(mine.job_id)).lock_expires_at == harness.now() + LOCK
    assert {(await harness.job(claim.job_id)).heartbeat_at for claim in (other, theirs)} == {START}
    answer = await harness.store.heartbeat_jobs("bob", [], alive_for=LOCK, pending=[token])
    assert answer.renewed == frozenset(), "a token is its owner's"
    both = await harness.store.heartbeat_jobs("alice", [mine.hold, other.hold], alive_for=LOCK, pending=[token])
    assert both.renewed == {mine.hold, other.hold}, "known meanwhile: renewed once"


async def test_strays_are_rows_of_a_claim_whose_answer_was_lost(harness: StoreHarness) -> None:
    """They are found by the claim's token.

    Other claims, of this worker or of others, are no strays.
    """
    known, _unnamed = await harness.claimed(), await harness.claimed()
    token = uuid4()
    await harness.add(new_job(), new_job())
    lost = [claim.hold for claim in (await harness.claim(token=token)).claims]
    await harness.claimed(worker="bob")
    answer = await harness.store.heartbeat_jobs("alice", [known.hold], alive_for=LOCK, tokens=[uuid4(), token])
    assert (set(answer.renewed), sorted(answer.strays)) == ({known.hold}, sorted(lost))


async def test_token_of_another_worker_finds_nothing(harness: StoreHarness) -> None:
    """A token alone is not an owner: another worker's claim is never a stray."""
    token = uuid4()
    await harness.add(new_job())
    await harness.claim_one("bob", token=token)
    assert (await harness.store.heartbeat_jobs("alice", [], alive_for=LOCK, tokens=[token])).strays == []


async def test_stray_can_be_released(harness: StoreHarness) -> None:
    """Then it is due again, with its attempt returned."""
    token = uuid4()
    await harness.add(new_job())
    await harness.claim(token=token)
    (stray,) = (await harness.store.heartbeat_jobs("alice", [], alive_for=LOCK, tokens=[token])).strays
    release = Release(hold=stray, outcome=Outcome.RELEASED)
    assert [settled.hold for settled in await harness.store.release_jobs("alice", [release])] == [stray]
    again = await harness.claim_one("bob")
    assert (again.job_id, again.fence, again.attempt) == (stray.job_id, 2, 1)


async def test_heartbeat_shows_a_sign_of_life(harness: StoreHarness) -> None:
    """A heartbeat without any claim keeps the worker alive for the others."""
    await harness.store.register_worker(worker_record(alive_for=10 * SECOND))
    harness.now.advance(seconds=9)
    await harness.store.heartbeat_jobs("alice", [], alive_for=20 * SECOND)
    harness.now.advance(seconds=20)
    assert [view.state for view in await harness.store.list_workers()] == ["alive"]
    harness.now.advance(microseconds=1)
    assert [view.state for view in await harness.store.list_workers()] == ["dead"]


async def test_read_holds_shows_what_is_committed(harness: StoreHarness) -> None:
    """Only (id, owner, fence) that are in the row now."""
    kept, released = await harness.claimed(), await harness.claimed()
    await harness.release(released, delay=LOCK)
    holds = [kept.hold, released.hold, Hold(kept.job_id, 99), Hold(uuid4(), 1)]
    assert await harness.store.read_holds("alice", holds) == {kept.hold}
    assert await harness.store.read_holds("bob", holds) == set()


async def test_progress_is_shown_until_the_slot_ends(harness: StoreHarness) -> None:
    """Each later run of the slot is given it, however the one before ended; the next slot starts without."""
    claim = await harness.claimed(recurring())
    assert claim.progress is None
    assert await harness.store.record_progress("alice", claim.hold, '{"done": 3}')
    for end in ("release", "fail", "suspend", "lose"):
        fields = {"wake_at": harness.now()} if end == "suspend" else {}
        await getattr(harness, end)(claim, **fields)
        assert (await harness.job(claim.job_id)).progress == '{"done": 3}'
        claim = await harness.claim_one()
        assert claim.progress == '{"done": 3}'
    assert await harness.complete(claim, next_run_time=harness.now() + SECOND)
    assert (await harness.job(claim.job_id)).progress is None
    harness.now.advance(seconds=2)
    assert (await harness.claim_one()).progress is None


async def test_dedicated_store_beats_for_the_same_database(harness: StoreHarness) -> None:
    """The heartbeat's own store sees and renews what the main store claimed."""
    claim = await harness.claimed()
    beating = harness.store.dedicated(timeout=5 * SECOND)
    await beating.open()
    harness.now.advance(seconds=3)
    assert (await beating.heartbeat_jobs("alice", [claim.hold], alive_for=LOCK)).renewed == {claim.hold}
    await beating.close()
    assert (await harness.job(claim.job_id)).heartbeat_at == harness.now()
