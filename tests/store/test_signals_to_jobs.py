"""Signals to jobs: stored once, in order, with a mark that wakes who waits, and without a lock on any job."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from uuid import uuid4

import pytest

from reltask.model.durable import NewSignal, StepKind, StepRecord
from reltask.model.job import Outcome, State
from reltask.stores.store import Store
from tests.store.connections import Undo
from tests.store.store_harness import START, StoreHarness, new_job, recurring, step, waiting

SECOND = timedelta(seconds=1)
DAY = timedelta(days=1)


def consuming(name: str, signal_id: str) -> StepRecord:
    """A wait that ends with this signal."""
    return step(name, kind=StepKind.WAIT, signal="go", signal_id=signal_id, value="1")


# Sending


async def test_a_signal_is_stored_with_a_mark(harness: StoreHarness) -> None:
    """The row of the job is not touched; the next claim says that there are marks."""
    claim = await harness.suspended(waiting())
    jobs = (await harness.snapshot())["jobs"]
    assert not (await harness.claim()).marked
    harness.now.advance(seconds=1)
    assert await harness.send(claim.job_id, sent_as="click", value='{"ok": true}')
    (signal,) = await harness.store.list_signals(claim.job_id)
    assert (signal.job_id, signal.slot_no, signal.name, signal.id) == (claim.job_id, 1, "go", "click")
    assert (signal.value, signal.sent_at, signal.consumed_by) == ('{"ok": true}', harness.now(), None)
    assert (await harness.snapshot())["jobs"] == jobs
    answer = await harness.claim()
    assert (answer.marked, answer.claims) == (True, [])


async def test_the_same_signal_counts_once(harness: StoreHarness) -> None:
    """By its id: sent again it is taken by the same job, and neither stored nor marked."""
    claim = await harness.suspended(waiting())
    assert await harness.send(claim.job_id, sent_as="click", value="1")
    before = await harness.snapshot()
    harness.now.advance(seconds=1)
    assert await harness.send(claim.job_id, sent_as="click", value="2")
    assert await harness.snapshot() == before
    assert await harness.send(claim.job_id, "other name", sent_as="click")
    assert len(await harness.store.list_signals(claim.job_id)) == 2


async def test_a_consumed_signal_is_not_stored_again(harness: StoreHarness) -> None:
    """Its id stays until the slot ends, so a late repetition answers no second wait."""
    claim = await harness.claimed()
    await harness.send(claim.job_id, sent_as="click")
    await harness.record(claim, consuming("a", "click"))
    assert await harness.send(claim.job_id, sent_as="click")
    assert (await harness.waits(claim)).signals == []


async def test_signals_are_found_by_task_and_key(harness: StoreHarness) -> None:
    """A one-off with a key, a schedule with one, a schedule without; a plain one-off only by its id."""
    keyed, timed, daily, plain = new_job(key="order-1"), recurring(key="eu"), recurring(task="daily"), new_job()
    await harness.add(keyed, timed, daily, plain)
    sent = await harness.store.send_signals(
        [
            NewSignal(id="1", name="go", value="1", task="greet", key="order-1"),
            NewSignal(id="2", name="go", value="1", task="greet", key="eu"),
            NewSignal(id="3", name="go", value="1", task="daily"),
            NewSignal(id="4", name="go", value="1", job_id=plain.id),
            NewSignal(id="5", name="go", value="1", task="greet", key="order-2"),
            NewSignal(id="6", name="go", value="1", task="greet"),
            NewSignal(id="7", name="go", value="1", task="weekly"),
        ]
    )
    assert sent == {"1": keyed.id, "2": timed.id, "3": daily.id, "4": plain.id}


async def test_a_job_that_has_ended_takes_none(harness: StoreHarness) -> None:
    """Nor does one that never existed, or whose key was another job's: nothing is stored."""
    claim = await harness.claimed(new_job(key="order-1"))
    await harness.complete(claim)
    before = await harness.snapshot()
    assert not await harness.send(claim.job_id)
    assert not await harness.send(uuid4())
    by_key = NewSignal(id="1", name="go", value="1", task="greet", key="order-1")
    assert await harness.store.send_signals([by_key]) == {}
    assert await harness.snapshot() == before


async def test_dead_and_paused_jobs_take_signals(harness: StoreHarness) -> None:
    """They may run again, and find what came."""
    dead = await harness.claimed(new_job(max_attempts=1))
    await harness.fail(dead)
    assert await harness.send(dead.job_id)
    await harness.store.fold_marks()
    assert (await harness.job(dead.job_id)).state is State.DEAD
    await harness.store.retry_job(dead.job_id)
    assert len((await harness.waits(await harness.claim_one())).signals) == 1
    (paused,) = await harness.add(new_job())
    await harness.store.pause_job(paused)
    assert await harness.send(paused)


async def test_nothing_to_send(harness: StoreHarness) -> None:
    """An empty batch is no error."""
    assert await harness.store.send_signals([]) == {}


# Waking


async def test_a_signal_wakes_who_waits_for_it(harness: StoreHarness) -> None:
    """The mark is removed, and the job is due at the time of the fold."""
    claim = await harness.suspended(waiting(), wake_at=START + DAY)
    await harness.send(claim.job_id)
    harness.now.advance(seconds=1)
    assert await harness.store.fold_marks() == 1
    assert (await harness.job(claim.job_id)).due_at == harness.now()
    again = await harness.claim_one()
    assert (await harness.waits(again)).wake_seq == 1
    assert await harness.store.fold_marks() == 0
    assert not (await harness.claim()).marked


async def test_a_signal_of_another_name_wakes_no_job(harness: StoreHarness) -> None:
    """It is counted and kept: the function may ask for it later."""
    claim = await harness.suspended(waiting(), wake_at=START + DAY)
    await harness.send(claim.job_id, "other")
    assert await harness.store.fold_marks() == 1
    assert (await harness.job(claim.job_id)).due_at == START + DAY
    waits = await harness.waits(claim)
    assert (waits.wake_seq, [signal.name for signal in waits.signals]) == (1, ["other"])


async def test_a_wait_that_is_over_is_not_woken(harness: StoreHarness) -> None:
    """A second signal of that name stays in the queue while the function sleeps in another step."""
    claim = await harness.claimed()
    await harness.send(claim.job_id, sent_as="first")
    await harness.store.fold_marks()
    await harness.record(claim, consuming("a", "first"))
    await harness.record(claim, waiting("nap", kind=StepKind.SLEEP, signal=None, wake_at=START + DAY))
    await harness.suspend(claim, seen=1, wake_at=START + DAY)
    await harness.send(claim.job_id, sent_as="second")
    await harness.store.fold_marks()
    assert (await harness.job(claim.job_id)).due_at == START + DAY


@pytest.mark.parametrize("why", ["delayed", "backoff", "snoozed"])
async def test_a_job_that_is_not_suspended_keeps_its_due_time(harness: StoreHarness, why: str) -> None:
    """A signal is no reason to run earlier: it waits until the function asks for it."""
    job = new_job(delay=DAY if why == "delayed" else None)
    await harness.add(job)
    if why != "delayed":
        claim = await harness.claim_one()
        await harness.record(claim, waiting())
        await (harness.fail(claim, delay=DAY) if why == "backoff" else harness.release(claim, delay=DAY))
    await harness.send(job.id)
    assert await harness.store.fold_marks() == 1
    assert (await harness.job(job.id)).due_at == START + DAY
    harness.now.value += DAY
    waits = await harness.waits(await harness.claim_one())
    assert (waits.wake_seq, len(waits.signals)) == (1, 1)


async def test_a_running_job_is_only_counted(harness: StoreHarness) -> None:
    """Its claim, its lock and its due time stay."""
    claim = await harness.claimed()
    before = await harness.job(claim.job_id)
    await harness.send(claim.job_id)
    harness.now.advance(seconds=1)
    assert await harness.store.fold_marks() == 1
    assert await harness.job(claim.job_id) == before
    assert (await harness.waits(claim)).wake_seq == 1
    assert await harness.complete(claim)


async def test_a_job_that_is_due_already_keeps_its_place(harness: StoreHarness) -> None:
    """A signal never makes a job due later than it was."""
    claim = await harness.suspended(waiting(), wake_at=START + SECOND)
    await harness.send(claim.job_id)
    harness.now.advance(seconds=9)
    await harness.store.fold_marks()
    assert (await harness.job(claim.job_id)).due_at == START + SECOND


# Marks


async def test_marks_are_folded_oldest_first(harness: StoreHarness) -> None:
    """Up to the limit; the rest stays for the next call."""
    woken = [await harness.suspended(waiting()) for _ in range(3)]
    for claim in woken:
        harness.now.advance(seconds=1)
        await harness.send(claim.job_id)
    assert await harness.store.fold_marks(limit=2) == 2
    assert [(await harness.job(claim.job_id)).due_at <= harness.now() for claim in woken] == [True, True, False]
    assert (await harness.claim(limit=0)).marked
    assert await harness.store.fold_marks(limit=2) == 1
    assert (await harness.job(woken[2].job_id)).due_at == harness.now()


async def test_many_marks_of_one_job_are_folded_together(harness: StoreHarness) -> None:
    """All are removed, and the count has changed."""
    claim = await harness.suspended(waiting())
    for _ in range(3):
        await harness.send(claim.job_id)
    assert await harness.store.fold_marks() == 3
    assert (await harness.waits(claim)).wake_seq > 0
    assert (await harness.job(claim.job_id)).due_at == START


async def test_a_mark_of_a_job_that_is_gone_is_removed(harness: StoreHarness) -> None:
    """Its job ended before anybody looked."""
    claim = await harness.claimed()
    await harness.send(claim.job_id)
    await harness.complete(claim)
    assert await harness.store.fold_marks() == 1
    assert (await harness.snapshot())["marks"] == []


async def test_a_mark_does_not_reach_the_next_slot(harness: StoreHarness) -> None:
    """A signal belongs to the slot that it was sent to: the next one neither counts nor sees it."""
    claim = await harness.claimed(recurring())
    await harness.send(claim.job_id, sent_as="click")
    await harness.complete(claim, next_run_time=START + SECOND)
    harness.now.advance(seconds=1)
    again = await harness.claim_one()
    before = (await harness.waits(again)).wake_seq
    await harness.record(again, waiting())
    await harness.suspend(again, seen=before)
    assert await harness.store.fold_marks() == 1
    waits = await harness.waits(again)
    assert (waits.wake_seq, waits.signals) == (before, [])
    assert (await harness.job(claim.job_id)).state is State.SUSPENDED
    assert (await harness.claim()).claims == []
    assert await harness.send(claim.job_id, sent_as="click")
    assert [signal.slot_no for signal in await harness.store.list_signals(claim.job_id)] == [1, 2]


async def test_a_mark_of_the_future_waits(harness: StoreHarness) -> None:
    """After the clock was set back it is neither reported nor folded, until its time has come."""
    claim = await harness.suspended(waiting())
    await harness.send(claim.job_id)
    harness.now.advance(hours=-1)
    assert not (await harness.claim()).marked
    assert await harness.store.fold_marks() == 0
    harness.now.advance(hours=1)
    assert await harness.store.fold_marks() == 1


async def test_two_workers_fold_a_mark_once(harness: StoreHarness, rival: Store) -> None:
    """One of them finds nothing left."""
    claim = await harness.suspended(waiting())
    await harness.send(claim.job_id)
    assert [await harness.store.fold_marks(), await rival.fold_marks()] == [1, 0]
    assert (await harness.waits(claim)).wake_seq == 1


# Consuming


async def test_signals_are_consumed_in_the_order_of_their_arrival(harness: StoreHarness) -> None:
    """Also those that arrive in the same moment, in one batch or several, and before the wait."""
    claim = await harness.claimed()
    for id_ in ("z", "y"):
        await harness.send(claim.job_id, sent_as=id_)
    batch = [NewSignal(id=id_, name="go", value="1", job_id=claim.job_id) for id_ in ("x", "w", "v")]
    await harness.store.send_signals(batch)
    assert [signal.id for signal in (await harness.waits(claim)).signals] == ["z", "y", "x", "w", "v"]
    await harness.record(claim, consuming("a", "z"))
    assert [signal.id for signal in (await harness.waits(claim)).signals] == ["y", "x", "w", "v"]
    await harness.record(claim, consuming("a#2", "y"))
    assert [(signal.id, signal.consumed_by) for signal in await harness.store.list_signals(claim.job_id)][:3] == [
        ("z", "a"),
        ("y", "a#2"),
        ("x", None),
    ]


async def test_a_consumed_signal_stays_consumed(harness: StoreHarness) -> None:
    """Another step that names it changes nothing about it."""
    claim = await harness.claimed()
    await harness.send(claim.job_id, sent_as="click")
    await harness.record(claim, consuming("a", "click"))
    await harness.record(claim, consuming("b", "click"))
    (signal,) = await harness.store.list_signals(claim.job_id)
    assert signal.consumed_by == "a"


async def test_only_the_named_signal_is_consumed(harness: StoreHarness) -> None:
    """Another job's signal of the same id, and one of another name, stay."""
    claim = await harness.claimed()
    (other,) = await harness.add(new_job())
    for job_id, name in ((claim.job_id, "go"), (claim.job_id, "stop"), (other, "go")):
        await harness.send(job_id, name, sent_as="click")
    await harness.record(claim, consuming("a", "click"))
    assert [signal.name for signal in (await harness.waits(claim)).signals] == ["stop"]
    assert [signal.consumed_by for signal in await harness.store.list_signals(other)] == [None]


# In the sender's transaction


async def test_a_signal_is_sent_when_its_transaction_commits(harness: StoreHarness) -> None:
    """Rolled back it was never sent; committed it wakes the job."""
    claim = await harness.suspended(waiting(), job=new_job(key="order-1"))
    before = await harness.snapshot()
    signal = NewSignal(id="click", name="go", value="1", task="greet", key="order-1")
    with suppress(Undo):
        async with harness.store.transaction(timeout=10 * SECOND) as transaction:
            assert await transaction.send_signals([signal]) == {"click": claim.job_id}
            raise Undo
    assert await harness.snapshot() == before
    async with harness.store.transaction(timeout=10 * SECOND) as transaction:
        assert await transaction.send_signals([signal]) == {"click": claim.job_id}
    assert await harness.store.fold_marks() == 1
    assert (await harness.claim_one()).job_id == claim.job_id


async def test_a_signal_inside_a_transaction_tells_that_the_job_has_ended(harness: StoreHarness) -> None:
    """The answer is empty, so that the sender can roll back."""
    claim = await harness.claimed()
    await harness.complete(claim, outcome=Outcome.CANCELLED)
    async with harness.store.transaction(timeout=10 * SECOND) as transaction:
        assert await transaction.send_signals([NewSignal(id="1", name="go", value="1", job_id=claim.job_id)]) == {}
    assert (await harness.snapshot())["signals"] == []
