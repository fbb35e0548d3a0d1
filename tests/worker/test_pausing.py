"""Pausing queues and tasks through the public API, with a worker that runs; and priorities that do not starve."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from reltask import Limit, PauseKind, UsageError, events
from tests.worker.worker_harness import HarnessApp, WorkerHarness


def started(app: HarnessApp) -> list[str]:
    return [event.task for event in app.log.of(events.RunStarted)]


@pytest.mark.parametrize("by", ["queue", "task"])
def test_a_paused_lane_waits_and_starts_when_it_is_resumed(harness: WorkerHarness, by: str) -> None:
    """The worker sleeps until a due time that it knows; the pause holds all the same, and the resume wakes it."""
    app = harness.app(settings={"worker.poll": "1h", "worker.queues": ["default", "mail"]})

    @app.task(queue="mail")
    async def send() -> None: ...

    @app.task
    async def other() -> None: ...

    async def scenario() -> None:
        async with app.worker():
            await send.using(delay="10s").enqueue()
            await asyncio.sleep(1)
            assert await (app.pause(queue="mail") if by == "queue" else app.pause(task=send))
            await asyncio.sleep(60)
            await other.enqueue()
            await app.log.wait(events.RunSucceeded, task="other")
            assert started(app) == ["other"]
            before = harness.seconds()
            assert await (app.resume(queue="mail") if by == "queue" else app.resume(task=send))
            await app.log.wait(events.RunSucceeded, task="send")
            assert harness.seconds() - before < 1

    harness.run(scenario())


def test_an_idle_worker_does_not_look_at_a_paused_lane_again_and_again(harness: WorkerHarness) -> None:
    """A due job that is paused costs no statement: the worker sleeps until its poll."""
    app = harness.app(settings={"worker.poll": "20s"})

    @app.task
    async def never() -> None: ...

    async def scenario() -> int:
        async with app.worker():
            await app.pause(task=never)
            await never.enqueue()
            await asyncio.sleep(1)
            before = app.faults.calls["claim_jobs"]
            await asyncio.sleep(200)
            return app.faults.calls["claim_jobs"] - before

    assert harness.run(scenario()) <= 11
    assert started(app) == []


def test_what_runs_goes_on(harness: WorkerHarness) -> None:
    """A body that runs when its task is paused ends as if nothing had happened."""
    app = harness.app()

    @app.task
    async def long() -> None:
        await asyncio.sleep(300)

    async def scenario() -> None:
        async with app.worker():
            await long.enqueue()
            await app.log.wait(events.RunStarted)
            await app.pause(task="long", reason="no more of these", by="ada")
            await app.log.wait(events.RunSucceeded)
            (pause,) = await app.pauses()
            assert (pause.kind, pause.name, pause.reason, pause.paused_by, pause.due) == (
                *(PauseKind.TASK, "long", "no more of these", "ada"),
                0,
            )

    harness.run(scenario())


def test_a_renamed_task_is_paused_under_all_its_names(harness: WorkerHarness) -> None:
    """Rows that an older version enqueued under the former name wait as well."""
    app = harness.app()

    @app.task(aliases=["old"])
    async def new() -> None: ...

    async def scenario() -> None:
        await app.pause(task="new", by="ada")
        assert {pause.name for pause in await app.pauses()} == {"new", "old"}
        assert not await app.pause(task=new, by="bob")
        assert await app.resume(task=new)
        assert await app.pauses() == []
        assert not await app.resume(task=new)

    harness.run(scenario())


def test_wrong_pauses_are_refused_at_once(harness: WorkerHarness) -> None:
    """Neither, both, no name, control characters, a text that is too long: the error says which."""
    app = harness.app()
    for given in (
        {},
        {"queue": "a", "task": "b"},
        {"queue": ""},
        {"task": ""},
        {"queue": "a\x1b"},
        {"queue": "a", "reason": "x" * 501},
        {"queue": "a", "by": ""},
    ):
        with pytest.raises(UsageError):
            app.pause_sync(**given)


def test_every_tenth_place_goes_to_the_job_that_has_waited_longest(harness: WorkerHarness) -> None:
    """Under a load of priority 0 that never ends, a job of priority 9 starts within ten places.

    Without that rule it would never start: each urgent job enqueues the next.
    """
    app = harness.app(settings={"worker.concurrency": 1})

    @app.task(priority=0)
    async def urgent() -> None:
        await asyncio.sleep(0.01)
        await urgent.enqueue()
        await urgent.enqueue()

    @app.task(priority=9)
    async def last() -> None: ...

    async def scenario() -> int:
        await urgent.enqueue()
        async with app.worker():
            await app.log.wait(events.RunStarted, 25, task="urgent")
            before = len(started(app))
            backlog = (await app.status()).due
            await last.enqueue()
            async with asyncio.timeout(5):
                await app.log.wait(events.RunStarted, task="last")
            return started(app).index("last") - before - backlog

    assert harness.run(scenario()) <= 10


def test_places_of_limited_queues_have_their_own_tenth(harness: WorkerHarness) -> None:
    """Two queues with limits take turns; each has its own tenth places, so that none misses all of them."""
    app = harness.app(
        settings={"worker.concurrency": 2, "worker.queues": ["a", "b"], "worker.queue_concurrency": {"a": 1, "b": 1}}
    )

    @app.task(priority=0)
    async def urgent(queue: str) -> None:
        await asyncio.sleep(0.01)
        await urgent.using(queue=queue).enqueue(queue)
        await urgent.using(queue=queue).enqueue(queue)

    @app.task(priority=9)
    async def last() -> None: ...

    async def scenario() -> None:
        await urgent.using(queue="a").enqueue("a")
        await urgent.using(queue="b").enqueue("b")
        async with app.worker():
            await app.log.wait(events.RunStarted, 20, task="urgent")
            await last.using(queue="a").enqueue()
            await last.using(queue="b").enqueue()
            async with asyncio.timeout(5):
                await app.log.wait(events.RunStarted, 2, task="last")

    harness.run(scenario())


@pytest.mark.parametrize("limit", [None, Limit("smtp", running=1)])
def test_jobs_with_limits_have_their_own_tenth(harness: WorkerHarness, limit: Limit | None) -> None:
    """A worker with one place takes jobs with and without limits in turns; neither kind misses its tenth places."""
    app = harness.app(settings={"worker.concurrency": 1})

    async def busy(again: Any) -> None:
        await asyncio.sleep(0.01)
        await again.enqueue()
        await again.enqueue()

    @app.task(priority=0)
    async def plain() -> None:
        await busy(plain)

    @app.task(priority=0, limit=Limit("smtp", running=1))
    async def limited() -> None:
        await busy(limited)

    @app.task(priority=9, limit=limit)
    async def last() -> None: ...

    async def scenario() -> None:
        await plain.enqueue()
        await limited.enqueue()
        async with app.worker():
            await app.log.wait(events.RunStarted, 25, task="limited")
            await last.enqueue()
            async with asyncio.timeout(15):
                await app.log.wait(events.RunStarted, task="last")

    harness.run(scenario())


def test_a_limit_of_one_place_keeps_its_priorities(harness: WorkerHarness) -> None:
    """A worker with many free places at a narrow limit: one of ten starts goes by age, the others by priority."""
    app = harness.app(settings={"worker.concurrency": 50})
    smtp = Limit("smtp", running=1)

    @app.task(priority=9, limit=smtp)
    async def last() -> None: ...

    @app.task(priority=0, limit=smtp)
    async def urgent() -> None: ...

    async def scenario() -> list[str]:
        await app.enqueue_many([last.call()] * 10)
        await app.enqueue_many([urgent.call()] * 20)
        async with app.worker():
            await app.log.wait(events.RunStarted, 30)
            return started(app)

    order = harness.run(scenario())
    assert order[:20].count("last") == 2
    assert order[22:] == ["last"] * 8
