"""What a claim says about the other idle workers, and what the leader's watch sees."""

from __future__ import annotations

from datetime import timedelta

from reltask.model.control import Pause, PauseKind
from reltask.model.job import Fleet, Overdue
from tests.store.store_harness import LOCK, StoreHarness, new_job, worker_record

SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)


async def register(harness: StoreHarness, *names: str, **fields: object) -> None:
    for name in names:
        await harness.store.register_worker(worker_record(name, alive_for=MINUTE, **fields))


async def look(harness: StoreHarness, worker: str, **fields: object) -> Fleet | None:
    return (await harness.claim(worker, **{"counts": True, "alive_for": MINUTE, **fields})).fleet


async def test_a_look_in_vain_says_how_many_are_idle(harness: StoreHarness) -> None:
    """The rank goes by name; a worker that has looked in vain counts, and the one that asks."""
    await register(harness, "a", "b", "c")
    assert await look(harness, "b") == Fleet(0, 1, 1)
    assert await look(harness, "c") == Fleet(1, 2, 2)
    assert await look(harness, "a") == Fleet(0, 3, 3)
    assert await look(harness, "b") == Fleet(1, 3, 3)


async def test_only_workers_that_can_take_the_same_are_peers(harness: StoreHarness) -> None:
    """A worker of other queues or tasks cannot answer for this one: it has no part in the draws and the turns."""
    await register(harness, "a", "c")
    await register(harness, "b", queues=["mail"])
    await register(harness, "d", tasks=["greet", "part"])
    for name in ("a", "b", "c"):
        await look(harness, name)
    assert await look(harness, "d") == Fleet(0, 1, 4)
    assert await look(harness, "b") == Fleet(0, 1, 4)
    assert await look(harness, "c") == Fleet(1, 2, 4)


async def test_a_look_that_does_not_ask_is_not_answered(harness: StoreHarness) -> None:
    """Counting costs something: a worker asks now and then; a worker that did not ask does not count as idle."""
    await register(harness, "a", "b")
    assert await look(harness, "a", counts=False) is None
    assert await look(harness, "b") == Fleet(0, 1, 1)


async def test_a_full_worker_is_not_idle(harness: StoreHarness) -> None:
    """It would not answer a signal. One with room left still would."""
    await register(harness, "a", "b", "c")
    for name in ("a", "b", "c"):
        await look(harness, name)
    await harness.add(new_job(), new_job(), new_job())
    assert await look(harness, "a", limit=2) is None
    assert await look(harness, "b", limit=2) is None
    assert await look(harness, "c") == Fleet(1, 2, 2), "a has filled its places, b has not"
    assert await look(harness, "a") == Fleet(0, 3, 3), "a has room again, and says so"


async def test_workers_that_are_gone_are_not_idle(harness: StoreHarness) -> None:
    """Stopped, marked as dead, silent for longer than promised, or started again and not idle yet."""
    await register(harness, "a", "b", "c", "d", "e")
    for name in ("a", "b", "c", "d", "e"):
        await look(harness, name)
    await harness.store.stop_worker("a")
    await register(harness, "b")
    assert await look(harness, "e") == Fleet(2, 3, 3)
    harness.now.advance(seconds=61)
    assert await look(harness, "e") == Fleet(0, 1, 1)
    await look(harness, "d")
    await harness.store.mark_dead_workers(leader=None)
    harness.now.advance(seconds=1)
    assert await look(harness, "e") == Fleet(1, 2, 2)


async def test_the_watch_sees_what_is_overdue(harness: StoreHarness) -> None:
    """By lane: the first job of each queue, task and priority, whatever task this worker knows."""
    nothing = Overdue(lanes=0, oldest=None, newest=None, marked=False, expired=False)
    assert await harness.store.read_overdue(since=SECOND) == nothing
    began = harness.now()
    await harness.add(new_job(), new_job(), new_job(task="other", priority=1), new_job(queue="mail"))
    await harness.add(new_job(task="later", run_at=began + 5 * SECOND))
    assert await harness.store.read_overdue(since=SECOND) == nothing
    harness.now.advance(seconds=1)
    assert await harness.store.read_overdue(since=SECOND) == Overdue(
        lanes=3, oldest=began, newest=began, marked=False, expired=False
    )
    harness.now.advance(seconds=9)
    seen = await harness.store.read_overdue(since=SECOND)
    assert (seen.lanes, seen.oldest, seen.newest) == (4, began, began + 5 * SECOND)


async def test_the_watch_sees_nothing_that_cannot_be_claimed(harness: StoreHarness) -> None:
    """Claimed, paused and dead jobs are no work; a claim whose lock has ended is."""
    claim = await harness.claimed()
    await harness.add(paused := new_job())
    await harness.store.pause_job(paused.id)
    harness.now.advance(seconds=10)
    assert (await harness.store.read_overdue(since=SECOND)).lanes == 0
    harness.now.value = claim.locked_at + LOCK
    assert not (await harness.store.read_overdue(since=SECOND)).expired
    harness.now.advance(seconds=1)
    assert (await harness.store.read_overdue(since=SECOND)).expired


async def test_the_watch_leaves_out_what_is_paused(harness: StoreHarness) -> None:
    """No worker could take it: a signal would wake them for nothing."""
    await harness.add(new_job(), new_job(task="other", queue="mail"))
    harness.now.advance(seconds=10)
    await harness.store.add_pause(Pause(kind=PauseKind.TASK, name="greet", paused_by="me"))
    assert (await harness.store.read_overdue(since=SECOND)).lanes == 1
    await harness.store.add_pause(Pause(kind=PauseKind.QUEUE, name="mail", paused_by="me"))
    assert (await harness.store.read_overdue(since=SECOND)).lanes == 0
