"""Pausing queues and tasks: nothing of them is claimed, what runs goes on, and enqueueing goes on."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from reltask.errors import ReltaskError
from reltask.model.control import Pause, PauseKind, PauseView
from tests.store.store_harness import LOCK, StoreHarness, new_job, recurring

SECOND = timedelta(seconds=1)
MAIL = Pause(kind=PauseKind.QUEUE, name="mail", reason="the provider is down", paused_by="ada")
GREET = Pause(kind=PauseKind.TASK, name="greet", paused_by="ada")
BOTH: dict[str, Any] = {"queues": ["default", "mail"], "tasks": ["greet", "label"]}


@pytest.mark.parametrize("pause", [MAIL, GREET], ids=["queue", "task"])
async def test_nothing_of_it_is_claimed(harness: StoreHarness, pause: Pause) -> None:
    """Other queues and tasks are claimed as before; a paused head is not reported as due."""
    other = new_job(task="label")
    await harness.add(new_job(queue="mail"), new_job(queue="mail", delay=SECOND), other)
    assert await harness.store.add_pause(pause)
    answer = await harness.claim(**BOTH, limit=10)
    assert [claim.job_id for claim in answer.claims] == [other.id]
    assert answer.next_due is None


async def test_every_worker_that_asks_later_leaves_it_out(harness: StoreHarness) -> None:
    """A worker that knows the due time already is refused by the database, not by its own memory."""
    await harness.add(new_job(queue="mail", delay=SECOND))
    assert (await harness.claim("bob", **BOTH)).next_due == harness.now() + SECOND
    await harness.store.add_pause(MAIL)
    harness.now.advance(seconds=2)
    answer = await harness.claim("bob", **BOTH)
    assert (answer.claims, answer.next_due) == ([], None)


async def test_what_runs_goes_on(harness: StoreHarness) -> None:
    """A claim that exists is renewed and completed; a recurring job's next slot waits."""
    claim = await harness.claimed(recurring(queue="mail"))
    await harness.store.add_pause(MAIL)
    beat = await harness.store.heartbeat_jobs("alice", [claim.hold], alive_for=60 * SECOND)
    assert beat.renewed == {claim.hold}
    assert await harness.complete(claim, next_run_time=harness.now() + SECOND)
    harness.now.advance(seconds=2)
    assert (await harness.claim(**BOTH)).claims == []


async def test_enqueueing_goes_on_and_resuming_lets_it_run(harness: StoreHarness) -> None:
    """What was enqueued meanwhile is claimed after the pause, in its order."""
    await harness.store.add_pause(MAIL)
    first = await harness.add(new_job(queue="mail"))
    second = await harness.add(new_job(queue="mail", delay=SECOND))
    harness.now.advance(seconds=2)
    assert await harness.store.end_pause(PauseKind.QUEUE, "mail")
    answer = await harness.claim(**BOTH, limit=10)
    assert [claim.job_id for claim in answer.claims] == first + second


async def test_a_lost_claim_is_reclaimed_and_waits(harness: StoreHarness) -> None:
    """A worker that dies while its queue is paused leaves a slot that waits for the end of the pause."""
    claim = await harness.claimed(new_job(queue="mail"))
    await harness.store.add_pause(MAIL)
    await harness.lose(claim)
    assert (await harness.claim(**BOTH)).claims == []
    await harness.store.end_pause(PauseKind.QUEUE, "mail")
    assert (await harness.claim_one(**BOTH)).job_id == claim.job_id


async def test_two_pauses_are_two(harness: StoreHarness) -> None:
    """A queue and a task of one name are paused each by itself; both must end."""
    job = new_job(task="mail", queue="mail")
    await harness.add(job)
    asked: dict[str, Any] = {"queues": ["mail"], "tasks": ["mail"]}
    await harness.store.add_pause(MAIL)
    await harness.store.add_pause(Pause(kind=PauseKind.TASK, name="mail", paused_by="bob"))
    await harness.store.end_pause(PauseKind.QUEUE, "mail")
    assert (await harness.claim(**asked)).claims == []
    await harness.store.end_pause(PauseKind.TASK, "mail")
    assert (await harness.claim_one(**asked)).job_id == job.id


async def test_an_isolated_job_is_paused_with_its_queue(harness: StoreHarness) -> None:
    """Lanes of isolated jobs are lanes of the queue as well."""
    claim = await harness.claimed(new_job(queue="mail"))
    await harness.lose(claim)
    await harness.lose(await harness.claim_one(**BOTH))
    await harness.store.add_pause(MAIL)
    answer = await harness.claim(**BOTH)
    assert (answer.claims, answer.next_due) == ([], None)


async def test_names_around_a_paused_task_are_claimed(harness: StoreHarness) -> None:
    """The walk over the lanes goes from the name before the paused one to the name after it."""
    jobs = [new_job(task=name, priority=priority) for name in ("a", "b", "c") for priority in (0, 9)]
    await harness.add(*jobs)
    for name in ("a", "b", "c"):
        await harness.store.add_pause(Pause(kind=PauseKind.TASK, name=name, paused_by="ada"))
        before = await harness.claim(queues=["default"], tasks=["a", "b", "c"], limit=0)
        assert before.claims == []
        answer = await harness.claim(queues=["default"], tasks=["a", "b", "c"], limit=10)
        assert {claim.task for claim in answer.claims} == {"a", "b", "c"} - {name}
        for claim in answer.claims:
            await harness.release(claim)
        await harness.store.end_pause(PauseKind.TASK, name)


async def test_the_first_reason_stays(harness: StoreHarness) -> None:
    """Who, when and why are kept; a second pause changes nothing, and says so."""
    at = harness.now()
    assert await harness.store.add_pause(MAIL)
    await harness.add(new_job(queue="mail"), new_job(queue="mail"), new_job(queue="mail", delay=60 * SECOND))
    harness.now.advance(seconds=1)
    again = Pause(kind=PauseKind.QUEUE, name="mail", reason="something else", paused_by="bob")
    assert not await harness.store.add_pause(again)
    assert await harness.store.add_pause(GREET)
    views = await harness.store.list_pauses()
    assert views == [
        PauseView(
            kind=PauseKind.QUEUE, name="mail", reason="the provider is down", paused_by="ada", paused_at=at, due=2
        ),
        PauseView(
            kind=PauseKind.TASK, name="greet", reason=None, paused_by="ada", paused_at=at + SECOND, due=2
        ),
    ]  # fmt: skip
    assert [view.covers(queue="mail", task="label") for view in views] == [True, False]


async def test_resuming_what_is_not_paused(harness: StoreHarness) -> None:
    """It changes nothing, and says so; so does a second resume."""
    await harness.store.add_pause(MAIL)
    assert not await harness.store.end_pause(PauseKind.TASK, "mail")
    assert await harness.store.end_pause(PauseKind.QUEUE, "mail")
    assert not await harness.store.end_pause(PauseKind.QUEUE, "mail")
    assert await harness.store.list_pauses() == []


@pytest.mark.parametrize("fields", [{"name": ""}, {"paused_by": ""}], ids=["no name", "no person"])
async def test_empty_texts_are_refused(harness: StoreHarness, fields: dict[str, str]) -> None:
    """By the table, whatever a client sends."""
    given = {"name": "mail", "paused_by": "ada", **fields}
    with pytest.raises(ReltaskError):
        await harness.store.add_pause(Pause(kind=PauseKind.QUEUE, **given))


# Waiting longest


async def test_the_oldest_place_goes_to_the_job_that_has_waited_longest(harness: StoreHarness) -> None:
    """Whatever its priority; the others go by priority."""
    late = new_job(priority=9)
    await harness.add(late)
    urgent = [new_job(priority=0, delay=SECOND) for _ in range(3)]
    await harness.add(*urgent)
    harness.now.advance(seconds=2)
    assert (await harness.claim_one(oldest=1)).job_id == late.id
    assert (await harness.claim_one(oldest=1)).priority == 0


async def test_the_oldest_places_are_part_of_the_limit(harness: StoreHarness) -> None:
    """Two of five go to the lane that waits longest, three to the most urgent one; none twice."""
    await harness.add(*[new_job(priority=9) for _ in range(10)])
    await harness.add(*[new_job(priority=0, delay=SECOND) for _ in range(10)])
    harness.now.advance(seconds=2)
    answer = await harness.claim(limit=5, oldest=2)
    assert [claim.priority for claim in answer.claims] == [0, 0, 0, 9, 9]
    assert len({claim.job_id for claim in answer.claims}) == 5


async def test_the_oldest_lane_fills_what_the_others_leave(harness: StoreHarness) -> None:
    """It comes again in its order, so that no place stays empty while jobs are due."""
    await harness.add(*[new_job(priority=9) for _ in range(10)])
    await harness.add(new_job(priority=0, delay=SECOND))
    harness.now.advance(seconds=2)
    answer = await harness.claim(limit=6, oldest=2)
    assert [claim.priority for claim in answer.claims] == [0, 9, 9, 9, 9, 9]
    assert len((await harness.claim(limit=10, oldest=2)).claims) == 5


async def test_more_oldest_places_than_jobs(harness: StoreHarness) -> None:
    """The rest goes by priority."""
    await harness.add(new_job(priority=9))
    await harness.add(*[new_job(priority=0, delay=SECOND) for _ in range(3)])
    harness.now.advance(seconds=2)
    assert [claim.priority for claim in (await harness.claim(limit=3, oldest=3)).claims] == [0, 0, 9]


async def test_the_oldest_may_be_isolated_but_only_one(harness: StoreHarness) -> None:
    """A worker runs one isolated job at a time, also if it is claimed because it has waited longest."""
    await harness.add(new_job(priority=9), new_job(priority=8, delay=SECOND))
    harness.now.advance(seconds=2)
    for _ in range(2):
        lost = [await harness.claim_one(), await harness.claim_one()]
        harness.now.value += 2 * LOCK
        assert len(await harness.store.reclaim_jobs()) == len(lost)
    await harness.add(*[new_job(priority=0) for _ in range(3)])
    answer = await harness.claim(limit=5, oldest=2)
    assert [claim.priority for claim in answer.claims if claim.isolated] == [9]
    assert [claim.priority for claim in answer.claims if not claim.isolated] == [0, 0, 0]


async def test_a_paused_lane_is_never_the_oldest(harness: StoreHarness) -> None:
    """A pause holds for the places of those that wait longest, too."""
    await harness.add(new_job(queue="mail", priority=9))
    urgent = new_job(priority=0, delay=SECOND)
    await harness.add(urgent)
    await harness.store.add_pause(MAIL)
    harness.now.advance(seconds=2)
    answer = await harness.claim(**BOTH, limit=5, oldest=5)
    assert [claim.job_id for claim in answer.claims] == [urgent.id]
