"""Children of durable functions: each end counts once, and the last one wakes the parent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from reltask.model.durable import ChildEnd, Recording, StepKind, StepRecord, StepState
from reltask.model.job import Claim, Completion, Failure, Outcome, Release, State
from reltask.stores.store import Store
from tests.store.connections import Undo
from tests.store.store_harness import DURABLE, START, StoreHarness, child, new_job, recurring, step, waiting

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


def running(pending: int, name: str = "labels") -> StepRecord:
    """A step that waits for this many children."""
    return step(name, kind=StepKind.RUN, state=StepState.WAITING, pending=pending)


async def ends(harness: StoreHarness, parent: Claim) -> list[ChildEnd]:
    return (await harness.waits(parent)).ends


async def is_awake(harness: StoreHarness, parent: Claim) -> bool:
    """Fold all marks; whether the parent is due then."""
    await harness.store.fold_marks()
    return (await harness.job(parent.job_id)).due_at <= harness.now()


async def pending(harness: StoreHarness, parent: Claim) -> int:
    return (await harness.steps(parent.job_id))["labels"].pending


# A child


async def test_a_child_names_its_parent(harness: StoreHarness) -> None:
    """In its row and in its claim; other jobs name none."""
    parent = await harness.parent(1)
    claim = await harness.claim_child()
    assert claim.has_parent
    assert (await harness.job(claim.job_id)).parent_id == parent.job_id
    assert (parent.has_parent, (await harness.job(parent.job_id)).parent_id) == (False, None)


async def test_children_are_listed_by_place(harness: StoreHarness) -> None:
    """Those that have ended by their outcome, the others by their state."""
    parent = await harness.parent(4)
    done = await harness.claim_child()
    await harness.complete(done)
    await harness.suspend(await harness.claim_child())
    claimed = await harness.claim_child("bob")
    listed = await harness.store.list_children(parent.job_id)
    assert [(view.step, view.nth) for view in listed] == [("labels", nth) for nth in range(4)]
    by_id = {view.job_id: view for view in listed}
    assert (by_id[done.job_id].task, by_id[done.job_id].state) == (None, "succeeded")
    assert (by_id[claimed.job_id].task, by_id[claimed.job_id].state) == ("label", "claimed")
    assert sorted(view.state for view in listed) == ["claimed", "ready", "succeeded", "suspended"]
    assert await harness.store.list_children(done.job_id) == []


async def test_children_start_in_the_commit_that_records_the_wait(harness: StoreHarness) -> None:
    """Rolled back, there are neither children nor a step that waits for them."""
    parent = await harness.claimed()
    children = [child(parent, nth) for nth in range(2)]
    recording = Recording(hold=parent.hold, steps=(running(2),))
    with suppress(Undo):
        async with harness.store.transaction(timeout=10 * SECOND) as transaction:
            await transaction.enqueue_jobs(children)
            assert await transaction.record_steps("alice", recording)
            raise Undo
    assert await harness.store.list_children(parent.job_id) == []
    assert await harness.store.read_steps(parent.job_id) == []
    async with harness.store.transaction(timeout=10 * SECOND) as transaction:
        assert await transaction.enqueue_jobs(children) == {job.id for job in children}
        assert await transaction.record_steps("alice", recording)
    assert [view.job_id for view in await harness.store.list_children(parent.job_id)] == [job.id for job in children]
    assert await pending(harness, parent) == 2


async def test_a_child_whose_key_is_taken_is_not_started(harness: StoreHarness) -> None:
    """The answer names those that were, so that the parent does not wait for the other one for ever."""
    parent = await harness.claimed()
    await harness.add(new_job(task="label", key="7"))
    taken, free = child(parent, 0, key="7"), child(parent, 1, key="8")
    assert await harness.store.enqueue_jobs([taken, free]) == {free.id}
    assert [view.nth for view in await harness.store.list_children(parent.job_id)] == [1]


# Its end


@pytest.mark.parametrize("outcome", [Outcome.SUCCEEDED, Outcome.CANCELLED])
async def test_the_end_of_a_child_is_kept_for_its_parent(harness: StoreHarness, outcome: Outcome) -> None:
    """With its outcome, value and error, and a mark; the parent's row is not touched before that is folded."""
    parent = await harness.parent(1)
    claim = await harness.claim_child()
    before = await harness.job(parent.job_id)
    harness.now.advance(seconds=1)
    assert await harness.complete(claim, outcome=outcome, result='"x"', error="why")
    assert await ends(harness, parent) == [
        ChildEnd(step="labels", nth=0, job_id=claim.job_id, outcome=outcome, value='"x"', error="why")
    ]
    assert await harness.job(parent.job_id) == before
    assert (await harness.claim()).marked
    assert await is_awake(harness, parent)
    assert (await harness.job(parent.job_id)).due_at == harness.now()


async def test_the_last_child_wakes_the_parent(harness: StoreHarness) -> None:
    """Not the first of two."""
    parent = await harness.parent(2)
    await harness.complete(await harness.claim_child())
    assert not await is_awake(harness, parent)
    assert await pending(harness, parent) == 1
    await harness.complete(await harness.claim_child())
    assert await is_awake(harness, parent)
    assert [end.nth for end in await ends(harness, parent)] == [0, 1]


async def test_a_child_wakes_no_other_step(harness: StoreHarness) -> None:
    """The parent waits for a signal as well: the first of two children is no reason to wake for that."""
    parent = await harness.claimed()
    await harness.add(child(parent, 0), child(parent, 1))
    await harness.record(parent, running(2), waiting())
    await harness.suspend(parent)
    await harness.complete(await harness.claim_child())
    assert not await is_awake(harness, parent)


async def test_two_children_that_end_at_once_both_count(harness: StoreHarness) -> None:
    """In one batch, folded by one statement."""
    parent = await harness.parent(2)
    claims = (await harness.claim(tasks=["label"], limit=2)).claims
    completions = [Completion(hold=claim.hold, has_parent=claim.has_parent) for claim in claims]
    assert len(await harness.store.complete_jobs("alice", completions)) == 2
    assert await harness.store.fold_marks() == 2
    assert (await pending(harness, parent), await is_awake(harness, parent)) == (0, True)


async def test_two_marks_folded_one_by_one_both_count(harness: StoreHarness, rival: Store) -> None:
    """By two workers, each with one mark."""
    parent = await harness.parent(2)
    for _ in range(2):
        await harness.complete(await harness.claim_child())
    assert [await harness.store.fold_marks(limit=1), await rival.fold_marks(limit=1)] == [1, 1]
    assert (await harness.job(parent.job_id)).due_at <= harness.now()


async def test_a_child_that_ends_while_the_parent_runs_is_not_missed(harness: StoreHarness) -> None:
    """The parent has looked, the child ends and is folded, the parent suspends: it is due at once."""
    parent = await harness.claimed()
    await harness.add(child(parent, 0))
    await harness.record(parent, running(1))
    looked = await harness.waits(parent)
    await harness.complete(await harness.claim_child("bob"), "bob")
    await harness.store.fold_marks()
    assert await pending(harness, parent) == 0
    assert await harness.suspend(parent, seen=looked.wake_seq)
    assert (await harness.job(parent.job_id)).due_at <= harness.now()


async def test_a_wait_that_is_sent_again_keeps_its_count(harness: StoreHarness) -> None:
    """The answer was lost, and a child ended meanwhile: else the parent would wait for it for ever."""
    parent = await harness.claimed()
    await harness.add(child(parent, 0), child(parent, 1))
    await harness.record(parent, running(2))
    await harness.complete(await harness.claim_child("bob"), "bob")
    await harness.store.fold_marks()
    await harness.record(parent, running(2))
    assert await pending(harness, parent) == 1
    await harness.suspend(parent, seen=(await harness.waits(parent)).wake_seq)
    await harness.complete(await harness.claim_child("bob"), "bob")
    assert await is_awake(harness, parent)


async def test_each_step_has_its_own_children(harness: StoreHarness) -> None:
    """The last child of one step wakes the parent, and the other step waits on."""
    parent = await harness.claimed()
    await harness.add(child(parent, 0, of="a"), child(parent, 0, of="b", priority=9))
    await harness.record(parent, running(1, "a"), running(1, "b"))
    await harness.suspend(parent)
    await harness.complete(await harness.claim_child())
    assert await is_awake(harness, parent)
    assert {name: view.pending for name, view in (await harness.steps(parent.job_id)).items()} == {"a": 0, "b": 1}


async def test_an_end_does_not_reach_a_step_that_is_done(harness: StoreHarness) -> None:
    """The function gave up waiting: its record is final, and what it waits for now is another thing."""
    parent = await harness.parent(1)
    await harness.store.run_job_now(parent.job_id)
    again = await harness.claim_one()
    gave_up = step("labels", kind=StepKind.RUN, state=StepState.FAILED, error="gave up")
    await harness.record(again, gave_up, waiting())
    await harness.suspend(again)
    before = await harness.steps(parent.job_id)
    await harness.complete(await harness.claim_child())
    assert not await is_awake(harness, parent)
    assert await harness.steps(parent.job_id) == before


async def test_a_lost_claim_ends_no_child(harness: StoreHarness) -> None:
    """A completion that is refused leaves neither an end nor a mark."""
    parent = await harness.parent(1)
    claim = await harness.claim_child()
    await harness.lose(claim)
    assert not await harness.complete(claim)
    assert (await ends(harness, parent), (await harness.snapshot())["marks"]) == ([], [])


async def test_a_child_that_goes_on_has_not_ended(harness: StoreHarness) -> None:
    """It starts a new slot with other arguments; its end comes later."""
    parent = await harness.parent(1)
    claim = await harness.claim_child()
    assert await harness.complete(claim, next_run_time=START + SECOND, args="{}")
    assert (await ends(harness, parent), (await harness.snapshot())["marks"]) == ([], [])
    harness.now.advance(seconds=1)
    again = await harness.claim_child()
    assert again.has_parent
    assert await harness.complete(again, result="2")
    assert [end.value for end in await ends(harness, parent)] == ["2"]


# Its death


async def _fail(store: Store, claim: Claim) -> None:
    failure = Failure(hold=claim.hold, error="boom", delay=timedelta(0))
    assert [settled.dead for settled in await store.fail_jobs("alice", [failure])] == [True]


async def _fail_for_good(store: Store, claim: Claim) -> None:
    failure = Failure(hold=claim.hold, error="boom", delay=timedelta(0), final=True)
    assert [settled.dead for settled in await store.fail_jobs("alice", [failure])] == [True]


async def _release(store: Store, claim: Claim) -> None:
    release = Release(hold=claim.hold, outcome=Outcome.ABANDONED, error="boom", counted=True)
    assert [settled.dead for settled in await store.release_jobs("alice", [release])] == [True]


async def _reclaim(store: Store, _: Claim) -> None:
    assert [lost.dead for lost in await store.reclaim_jobs()] == [True]


DEATHS: list[Callable[[Store, Claim], Awaitable[None]]] = [_fail, _fail_for_good, _release, _reclaim]


@pytest.mark.parametrize("die", DEATHS, ids=lambda die: die.__name__.strip("_"))
async def test_a_child_that_is_dead_has_ended(
    harness: StoreHarness, die: Callable[[Store, Claim], Awaitable[None]]
) -> None:
    """The parent learns that it failed, and why; the job has no parent any more."""
    parent = await harness.parent(1, max_attempts=None if die is _fail_for_good else 1)
    claim = await harness.claim_child()
    harness.now.value += claim.lock_timeout + SECOND if die is _reclaim else timedelta(0)
    await die(harness.store, claim)
    (end,) = await ends(harness, parent)
    assert (end.step, end.nth, end.job_id, end.outcome, end.value) == ("labels", 0, claim.job_id, Outcome.FAILED, None)
    assert end.error == (await harness.runs(claim.job_id))[-1].error
    assert end.error is not None
    view = await harness.job(claim.job_id)
    assert (view.state, view.parent_id) == (State.DEAD, None)
    assert await is_awake(harness, parent)
    assert [child.state for child in await harness.store.list_children(parent.job_id)] == ["failed"]


@pytest.mark.parametrize("die", DEATHS, ids=lambda die: die.__name__.strip("_"))
async def test_a_child_that_is_retried_later_counts_once(
    harness: StoreHarness, die: Callable[[Store, Claim], Awaitable[None]]
) -> None:
    """It is an ordinary job then: its success, or another death, is no news for the parent."""
    parent = await harness.parent(2, max_attempts=1)
    claim = await harness.claim_child()
    harness.now.value += claim.lock_timeout + SECOND if die is _reclaim else timedelta(0)
    await die(harness.store, claim)
    await harness.store.fold_marks()
    assert await harness.store.retry_job(claim.job_id)
    received = await ends(harness, parent)
    retried = {one.job_id: one for one in (await harness.claim(tasks=["label"], limit=2)).claims}[claim.job_id]
    assert not retried.has_parent
    assert await harness.complete(retried, result="1")
    assert (await ends(harness, parent), (await harness.snapshot())["marks"]) == (received, [])
    assert await pending(harness, parent) == 1


async def test_a_child_that_is_tried_again_has_not_ended(harness: StoreHarness) -> None:
    """Failed, released, suspended or lost with attempts left, it keeps its parent."""
    parent = await harness.parent(1)
    await harness.fail(await harness.claim_child())
    await harness.release(await harness.claim_child())
    await harness.suspend(await harness.claim_child(), wake_at=START)
    await harness.lose(await harness.claim_child())
    assert (await ends(harness, parent), (await harness.snapshot())["marks"]) == ([], [])
    assert (await harness.claim_child()).has_parent


async def test_a_discarded_child_has_ended(harness: StoreHarness) -> None:
    """The parent learns that an operator removed it; only once, also if it is called twice."""
    parent = await harness.parent(1)
    (view,) = await harness.store.list_children(parent.job_id)
    assert await harness.store.discard_job(view.job_id)
    assert not await harness.store.discard_job(view.job_id)
    (end,) = await ends(harness, parent)
    assert (end.outcome, end.value, end.error) == (Outcome.DISCARDED, None, None)
    assert await is_awake(harness, parent)


async def test_a_batch_of_deaths(harness: StoreHarness) -> None:
    """Children and plain jobs, dead ones and others: each end that happened is reported, no other."""
    parent = await harness.parent(2, max_attempts=1)
    await harness.add(child(parent, 0, of="other"), new_job(task="label", max_attempts=1))
    claims = (await harness.claim(tasks=["label"], limit=9)).claims
    failures = [Failure(hold=claim.hold, error="boom", delay=DAY) for claim in claims]
    assert len(await harness.store.fail_jobs("alice", failures)) == 4
    assert [(end.step, end.nth) for end in await ends(harness, parent)] == [("labels", 0), ("labels", 1)]
    assert await harness.store.fold_marks() == 2


# Slots and plain jobs


async def test_ends_belong_to_their_slot(harness: StoreHarness) -> None:
    """The next slot starts without any, an old mark counts nothing there, and its own children of the step count."""
    parent = await harness.claimed(recurring())
    await harness.add(child(parent, 0))
    await harness.complete(await harness.claim_child(), result="1")
    await harness.complete(parent, next_run_time=START + SECOND)
    harness.now.advance(seconds=1)
    again = await harness.claim_one()
    assert await ends(harness, again) == []
    await harness.add(child(again, 0))
    await harness.record(again, running(1))
    await harness.suspend(again, seen=(await harness.waits(again)).wake_seq)
    assert not await is_awake(harness, again)
    assert await pending(harness, again) == 1
    await harness.complete(await harness.claim_child(), result="2")
    assert [end.value for end in await ends(harness, again)] == ["2"]
    assert await is_awake(harness, again)


async def test_an_end_that_no_job_waits_for_wakes_none(harness: StoreHarness) -> None:
    """The parent has gone on to its next slot, and waits there for children of its own."""
    parent = await harness.claimed(recurring())
    await harness.add(child(parent, 0))
    late = await harness.claim_child()
    await harness.complete(parent, next_run_time=START + SECOND)
    harness.now.advance(seconds=1)
    again = await harness.claim_one()
    await harness.add(child(again, 0))
    await harness.record(again, running(1))
    await harness.suspend(again, seen=(await harness.waits(again)).wake_seq)
    assert await harness.complete(late)
    assert not await is_awake(harness, again)
    assert (await pending(harness, again), await ends(harness, again)) == (1, [])


async def test_plain_jobs_leave_no_trace(harness: StoreHarness) -> None:
    """A job without steps, signals or a parent writes nothing for durable functions, however it ends."""
    for end in (harness.complete, harness.fail, harness.release, harness.lose):
        claim = await harness.claimed(new_job(max_attempts=1))
        await end(claim)
        await harness.store.discard_job(claim.job_id)
    snapshot = await harness.snapshot()
    assert {table: snapshot[table] for table in DURABLE} == {table: [] for table in DURABLE}
