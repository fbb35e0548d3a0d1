"""Who looks at marks, and when: a function must not wait because the wrong worker has folded its mark."""

from __future__ import annotations

import asyncio

from reltask import Context, events
from tests.worker.durable_helpers import at, send, sound
from tests.worker.worker_harness import HarnessApp, WorkerHarness


def with_order(app: HarnessApp) -> None:
    """A function that waits for a signal, in a queue and of a priority of its own."""

    @app.task(queue="orders", priority=1)
    async def order(ctx: Context) -> None:
        await ctx.wait_for("go")


def test_a_fold_tells_the_workers_that_can_run_the_function(harness: WorkerHarness) -> None:
    """The worker that folds serves another queue: it asks the others to look, because its own look takes nothing."""
    server = harness.app(settings={"worker.queues": ["orders"]})
    other = harness.app(settings={"worker.queues": ["default"]})
    with_order(server)
    with_order(other)

    async def scenario() -> None:
        job = await server.get_task("order").enqueue()
        async with server.worker(), other.worker() as folder:
            await server.log.wait(events.RunEnded)
            await asyncio.sleep(20)  # both count the idle workers
            await send(server, job, "go")
            before = len(other.faults.sent)
            folder.wake()
            await asyncio.sleep(0.01)
            assert other.faults.sent[before:] == ["claim_jobs", "fold_marks", "claim_jobs", "signal"]

    harness.run(scenario())


def test_a_worker_that_takes_what_it_has_woken_tells_nobody(harness: WorkerHarness) -> None:
    """A signal between workers costs all of them a look or a draw."""
    first, second = harness.app(), harness.app()

    for app in (first, second):

        @app.task
        async def order(ctx: Context) -> None:
            await ctx.wait_for("go")

    async def scenario() -> None:
        async with first.worker() as one, second.worker():
            await asyncio.sleep(20)
            job = await first.get_task("order").enqueue()
            await first.log.wait(events.RunEnded)
            first.faults.calls.clear()
            await send(first, job, "go", wake=one)
            await first.log.wait(events.RunSucceeded)
            assert (first.faults.calls["fold_marks"], first.faults.calls["signal"]) == (1, 0)

    harness.run(scenario())


def test_a_full_worker_that_has_folded_tells_the_others(harness: WorkerHarness) -> None:
    """Its look has filled its last place: it cannot take what it has woken."""
    full = harness.app(settings={"worker.concurrency": 1})
    idle = harness.app()

    for app in (full, idle):

        @app.task
        async def order(ctx: Context) -> None:
            await ctx.wait_for("go")

    @full.task
    async def busy() -> None:
        await asyncio.sleep(0.5)

    async def scenario() -> None:
        async with full.worker(), idle.worker():
            job = await full.get_task("order").enqueue()
            await asyncio.sleep(20)
            for _ in range(3):
                await busy.enqueue()
            await full.log.wait(events.RunStarted, task="busy")
            await send(full, job, "go")
            before = len(full.faults.sent)
            await full.log.wait(events.RunStarted, count=2, task="busy")
            await asyncio.sleep(0.01)
            sent = full.faults.sent[before:]
            assert sent[sent.index("fold_marks") :][:2] == ["fold_marks", "signal"]

    harness.run(scenario())


def test_what_another_worker_folds_is_looked_at_soon(harness: WorkerHarness) -> None:
    """Two workers meet at one mark: the one that comes too late does not wait a second for the job that is due."""
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> None:
        await ctx.wait_for("go")

    async def fold_elsewhere() -> None:
        async with sound(app) as store:
            assert await store.fold_marks() == 1

    async def scenario() -> None:
        async with app.worker() as worker:
            job = await order.enqueue()
            await app.log.wait(events.RunEnded)
            at(app, "fold_marks", fold_elsewhere)
            sent_at = harness.seconds()
            await send(app, job, "go", wake=worker)
            await app.log.wait(events.RunSucceeded)
            assert harness.seconds() - sent_at < 0.1

    harness.run(scenario())


def test_what_comes_while_the_worker_is_full_keeps_its_priority(harness: WorkerHarness) -> None:
    """A worker that was full for long folds before it claims: the urgent function goes on before jobs that can wait."""
    app = harness.app(settings={"worker.concurrency": 1})
    ran: list[str] = []

    @app.task(priority=1)
    async def order(ctx: Context) -> None:
        await ctx.wait_for("go")
        ran.append("order")

    @app.task(priority=9)
    async def busy(number: int) -> None:
        await asyncio.sleep(60)
        ran.append(f"busy {number}")

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunEnded, task="order")
            for number in (1, 2):
                await busy.enqueue(number)
            await asyncio.sleep(30)
            await send(app, job, "go")
            await app.log.wait(events.RunSucceeded, count=2, task="busy")

    harness.run(scenario())
    assert ran == ["busy 1", "order", "busy 2"]
