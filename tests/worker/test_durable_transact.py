"""`ctx.transact`: a step's writes and its record are one commit, whatever fails."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from typing import Any

from reltask import Context, current_step, events
from reltask.errors import StepFailed
from reltask.producer.transaction import TaskTransaction
from tests.worker.durable_helpers import away, result_of, steps_of
from tests.worker.worker_harness import WorkerHarness


def create_effects(harness: WorkerHarness) -> None:
    with closing(sqlite3.connect(harness.path)) as connection:
        connection.execute("create table effects (note)")
        connection.commit()


def effects(harness: WorkerHarness) -> list[Any]:
    with closing(sqlite3.connect(harness.path)) as connection:
        return [note for (note,) in connection.execute("select note from effects order by rowid")]


async def book(tx: TaskTransaction, note: str) -> int:
    await tx.execute("insert into effects (note) values (:note)", note=note)
    return 7


def test_the_effect_and_its_record_are_one_commit(harness: WorkerHarness) -> None:
    """The next attempt reads the record: the effect is there once."""
    create_effects(harness)
    app = harness.app()

    @app.task(backoff="1s")
    async def order(ctx: Context) -> int:
        number = await ctx.transact("book", book, "a")
        if ctx.fence == 1:
            raise ValueError
        return number

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == "7"

    harness.run(scenario())
    assert effects(harness) == ["a"]


def test_a_failure_rolls_back(harness: WorkerHarness) -> None:
    """The function raised after its write: neither is there. Caught, the failure is recorded as any step's."""
    create_effects(harness)
    app = harness.app()
    keys: list[Any] = []

    async def bad(tx: TaskTransaction) -> None:
        keys.append((current_step().attempt, current_step().idempotency_key[-8:]))
        await book(tx, "bad")
        raise ValueError("no")

    @app.task
    async def order(ctx: Context) -> str:
        try:
            await ctx.using(attempts=2, backoff="0s").transact("bad", bad)
        except StepFailed as error:
            await ctx.transact("refund", book, "refund")
            await ctx.sleep("nap", "1h")
            return f"{error.kind} {error.error}"
        return "booked"

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await result_of(app) == '"ValueError no"'
        assert {name: step.state for name, step in (await steps_of(app, job)).items()} == {
            "bad": "failed",
            "refund": "done",
            "nap": "waiting",
        }

    harness.run(scenario())
    assert effects(harness) == ["refund"]
    assert [attempt for attempt, _ in keys] == [1, 2]
    assert len({key for _, key in keys}) == 1


def test_a_refused_commit_leaves_neither(harness: WorkerHarness) -> None:
    """Neither the effect nor the record; the next attempt does both."""
    create_effects(harness)
    app = harness.app()

    @app.task(backoff="1s")
    async def order(ctx: Context) -> int:
        return await ctx.transact("book", book, f"run {ctx.fence}")

    async def scenario() -> None:
        await order.enqueue()
        app.faults.error, app.faults.verbs = away, {"commit"}
        async with app.worker():
            await app.log.wait(events.RunFailed)
            app.faults.error = None
            assert effects(harness) == []
            await app.log.wait(events.RunSucceeded)

    harness.run(scenario())
    assert effects(harness) == ["run 2"]


def test_a_lost_answer_to_the_commit_ends_the_run(harness: WorkerHarness) -> None:
    """Whether it was committed is unknown, but the next run reads it: the effect is there once."""
    create_effects(harness)
    app = harness.app()
    went_on: list[Any] = []

    @app.task(max_attempts=1)
    async def order(ctx: Context) -> int:
        try:
            return await ctx.using(attempts=5, backoff="0s").transact("book", book, f"run {ctx.fence}")
        except Exception as error:
            went_on.append(type(error).__name__)
            raise

    async def scenario() -> None:
        await order.enqueue()
        app.faults.losing["commit"] = 1
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert (await app.outcomes(), await result_of(app)) == (["abandoned", "succeeded"], "7")

    harness.run(scenario())
    assert effects(harness) == ["run 1"]
    assert went_on == ["LockLost"]


def test_a_run_that_has_lost_its_claim_commits_nothing(harness: WorkerHarness) -> None:
    """Record and fence are one statement, the last before the commit: if it is refused, all is rolled back."""
    create_effects(harness)
    app = harness.app()

    async def lose(tx: TaskTransaction) -> int:
        await tx.execute("update reltask_jobs set fence = fence + 1")
        return await book(tx, "lost")

    @app.task
    async def order(ctx: Context) -> None:
        await (ctx.transact("book", lose) if ctx.fence == 1 else ctx.transact("book", book, "kept"))

    async def scenario() -> None:
        await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert await app.outcomes() == ["abandoned", "succeeded"]

    harness.run(scenario())
    assert effects(harness) == ["kept"]


def test_steps_beside_a_transaction_are_recorded_too(harness: WorkerHarness) -> None:
    """Both ways of recording may be under way at once."""
    create_effects(harness)
    app = harness.app()

    @app.task
    async def order(ctx: Context) -> list[int]:
        return list(await asyncio.gather(ctx.transact("book", book, "a"), ctx.step("one", lambda: 1)))

    async def scenario() -> None:
        job = await order.enqueue()
        async with app.worker():
            await app.log.wait(events.RunSucceeded)
        assert sorted(await steps_of(app, job)) == ["book", "one"]
        assert await result_of(app) == "[7,1]"

    harness.run(scenario())
