"""`ctx.run`, `ctx.run_all`, `ctx.start`: children are ordinary jobs, and their parent never waits in a place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from reltask import Cancel, Context, events
from reltask.errors import ChildFailed, UsageError
from reltask.model.job import State
from tests.worker.durable_helpers import at, away, result_of, send, sound, steps_of
from tests.worker.worker_harness import HarnessApp, WorkerHarness

LEASE: dict[str, object] = {"maintenance.coordination": "lease"}


def with_label(app: HarnessApp, calls: list[int] | None = None) -> Any:
    """A child task that ends as its number says: negative ones die, zero cancels itself."""

    @app.task(max_attempts=1)
    async def label(number: int, pause: float = 0) -> str:
        if calls is not None:
            calls.append(number)
        await asyncio.sleep(pause)
        if number == 0:
            raise Cancel("nothing to do")
        if number < 0:
            raise ValueError(f"no {number}")
        return f"L{number}"

    return label


async def finish(app: HarnessApp, task: str = "parent") -> None:
    async with app.worker():
        await app.log.wait(events.RunSucceeded, task=task)


@pytest.mark.parametrize("concurrency", [1, 10])
def test_results_come_in_the_order_of_the_calls(harness: WorkerHarness, concurrency: int) -> None:
    """Whatever order the children end in. With one place parents and children do not starve each other."""
    app = harness.app(settings={"worker.concurrency": concurrency})
    calls: list[Any] = []
    label = with_label(app, calls)

    @app.task
    async def parent(ctx: Context) -> list[str]:
        return await ctx.run_all("labels", [label.call(n, pause=10 - n) for n in range(1, 6)])

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        assert await result_of(app, "parent") == '["L1","L2","L3","L4","L5"]'
        assert await app.outcomes("parent") == ["suspended", "succeeded"]

    harness.run(scenario())
    assert sorted(calls) == [1, 2, 3, 4, 5]


def test_nested_parents_with_one_place(harness: WorkerHarness) -> None:
    """Children may have children; three generations share one place."""
    app = harness.app(settings={"worker.concurrency": 1})

    @app.task
    async def node(ctx: Context, depth: int) -> int:
        if depth == 0:
            return 1
        return int(sum(await ctx.run_all("below", [node.call(depth - 1) for _ in range(2)])))

    async def scenario() -> None:
        job = await node.enqueue(3)
        async with app.worker():
            await app.log.wait(events.RunSucceeded, job_id=job.id)
        (newest, *_) = await job.runs()
        assert newest.result == "8"

    harness.run(scenario())
    assert harness.seconds() < 60


def test_both_of_a_gather_start_before_the_parent_suspends(harness: WorkerHarness) -> None:
    """Two waits for children are one suspension, and both sets run meanwhile."""
    app = harness.app()
    label = with_label(app)

    @app.task
    async def parent(ctx: Context) -> list[str]:
        return list(
            await asyncio.gather(ctx.run("one", label.call(1, pause=60)), ctx.run("two", label.call(2, pause=60)))
        )

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        assert await result_of(app, "parent") == '["L1","L2"]'

    harness.run(scenario())
    assert harness.seconds() < 62


def test_the_parent_goes_on_as_soon_as_the_last_child_has_ended(harness: WorkerHarness) -> None:
    """Without waiting for a poll, and without being woken by those before."""
    app = harness.app()
    label = with_label(app)

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.run_all("labels", [label.call(n, pause=10 * n) for n in (1, 2, 3)])

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        assert await app.outcomes("parent") == ["suspended", "succeeded"]

    harness.run(scenario())
    assert 30 <= harness.seconds() < 30.5


def test_a_parent_that_wakes_for_something_else_waits_on_for_its_children(harness: WorkerHarness) -> None:
    """One of two has ended when a signal comes: the other one is still waited for."""
    app = harness.app()
    label = with_label(app)

    @app.task
    async def parent(ctx: Context) -> list[Any]:
        calls = [label.call(1), label.call(2, pause=600)]
        return list(await asyncio.gather(ctx.wait_for("go"), ctx.run_all("labels", calls)))

    async def scenario() -> None:
        job = await parent.enqueue()
        async with app.worker() as worker:
            await asyncio.sleep(300)
            await send(app, job, "go", wake=worker)
            await app.log.wait(events.RunSucceeded, task="parent")
        assert await result_of(app, "parent") == '[null,["L1","L2"]]'
        assert await app.outcomes("parent") == ["suspended", "suspended", "succeeded"]

    harness.run(scenario())


def test_a_failed_child_raises_with_all_outcomes(harness: WorkerHarness) -> None:
    """One that died or was cancelled raises ChildFailed, with all results; replays raise it again."""
    app = harness.app()
    seen: list[Any] = []
    label = with_label(app)

    @app.task
    async def parent(ctx: Context) -> str:
        try:
            await ctx.run_all("labels", [label.call(n) for n in (1, -2, 0)])
        except ChildFailed as error:
            seen.append((error.outcomes[0], [str(outcome) for outcome in error.outcomes[1:]]))
        await ctx.sleep("pause", "1h")
        return "caught"

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)

    harness.run(scenario())
    assert seen[0] == seen[1]
    first, (dead, cancelled) = seen[0]
    assert first == "L1"
    assert "failed: ValueError: no -2" in dead
    assert "cancelled: nothing to do" in cancelled


def test_results_that_are_too_large_together_make_the_parent_dead(
    harness: WorkerHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are recorded together with the step, and a record has a limit: to run again would meet the same results."""
    monkeypatch.setattr("reltask.worker.durable.LARGEST_TEXT", 1000)
    app = harness.app()

    @app.task
    async def chapter() -> str:
        return "x" * 400

    @app.task
    async def parent(ctx: Context) -> int:
        return len(await ctx.run_all("book", [chapter.call() for _ in range(3)]))

    async def scenario() -> None:
        await parent.enqueue()
        async with app.worker():
            failed = await app.log.wait(events.RunFailed)
        assert "results of the 3 children of 'book'" in failed.error
        assert "limit of 1,000" in failed.error
        assert (await app.one_job()).state is State.DEAD

    harness.run(scenario())


@pytest.mark.parametrize("annotated", [True, False])
def test_a_child_whose_result_was_not_stored_has_failed(harness: WorkerHarness, *, annotated: bool) -> None:
    """It has done its work, but its parent would get None for what it returned. The error says why."""
    app = harness.app(settings={"limits.result": 10})

    async def long():  # type: ignore[no-untyped-def]  # noqa: ANN202 - annotated below
        return "x" * 100

    if annotated:
        long.__annotations__["return"] = str
    child = app.task(long)
    raised: list[str] = []

    @app.task
    async def parent(ctx: Context) -> str:
        try:
            return repr(await ctx.run("child", child.call()))
        except ChildFailed as error:
            raised.append(str(error))
            return "bad"

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        (run,) = await app.ledger("long")
        assert (run.outcome, run.error) == ("succeeded", "Its result was not stored: 102 bytes exceed the limit of 10")

    harness.run(scenario())
    assert "succeeded: Its result was not stored: 102 bytes" in "".join(raised)


def test_return_exceptions_puts_failures_in_their_places(harness: WorkerHarness) -> None:
    """As `asyncio.gather` does."""
    app = harness.app()
    label = with_label(app)

    @app.task
    async def parent(ctx: Context) -> list[str]:
        outcomes = await ctx.run_all("labels", [label.call(n) for n in (-1, 2)], return_exceptions=True)
        return [type(outcome).__name__ for outcome in outcomes]

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        assert await result_of(app, "parent") == '["ChildFailed","str"]'

    harness.run(scenario())


def test_the_calls_may_come_from_a_generator(harness: WorkerHarness) -> None:
    """They are read once. One call alone is no list, and is refused by a clear error."""
    app = harness.app()
    label = with_label(app, [])

    @app.task
    async def parent(ctx: Context) -> list[str]:
        with pytest.raises(UsageError, match="takes a list of calls, not Call"):
            await ctx.run_all("one", label.call(7))
        return await ctx.run_all("labels", (label.call(n) for n in range(1, 4)))

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        assert await result_of(app, "parent") == '["L1","L2","L3"]'

    harness.run(scenario())


def test_no_calls_are_no_children(harness: WorkerHarness) -> None:
    """`run_all` of an empty list returns an empty list, at once, and at replays."""
    app = harness.app()

    @app.task(backoff="1s")
    async def parent(ctx: Context) -> list[Any]:
        none: list[Any] = await ctx.run_all("labels", [])
        if ctx.fence == 1:
            raise ValueError
        return none

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        assert (await app.outcomes(), await result_of(app)) == (["failed", "succeeded"], "[]")

    harness.run(scenario())


def test_a_child_whose_key_is_taken_is_refused(harness: WorkerHarness) -> None:
    """Its end would never be reported to this parent. Nothing is inserted, and the run fails; later it can succeed."""
    app = harness.app()
    label = with_label(app)

    @app.task(backoff="1h")
    async def parent(ctx: Context) -> list[str]:
        return await ctx.run_all("labels", [label.call(1), label.using(key="k").call(2)])

    async def scenario() -> None:
        await label.using(key="k", delay="10m").enqueue(7)
        await parent.enqueue()
        async with app.worker():
            failed = await app.log.wait(events.RunFailed, task="parent")
            assert "key 'k' exists already" in failed.error
            assert [job.key for job in await app.jobs(task="label")] == ["k"]
            await app.log.wait(events.RunSucceeded, task="parent")
        assert await result_of(app, "parent") == '["L1","L2"]'

    harness.run(scenario())


def test_a_dead_child_counts_once_whatever_is_retried_later(harness: WorkerHarness) -> None:
    """The operator retries it after the parent was notified: it runs as any job, and the parent stays as it was."""
    app = harness.app()
    attempts: list[Any] = []

    @app.task(max_attempts=1)
    async def child() -> str:
        attempts.append(1)
        if len(attempts) == 1:
            raise ValueError
        return "at last"

    @app.task
    async def parent(ctx: Context) -> list[str]:
        outcomes = await ctx.run_all("two", [child.call(), child.using(delay="2h").call()], return_exceptions=True)
        return [str(outcome)[:7] for outcome in outcomes]

    async def scenario() -> None:
        await parent.enqueue()
        async with app.worker() as worker:
            await app.log.wait(events.RunFailed, task="child", dead=True)
            (dead,) = await app.jobs(task="child", state=State.DEAD)
            async with sound(app) as store:
                assert await store.retry_job(dead.id)
            worker.wake()
            await app.log.wait(events.RunSucceeded, task="child")
            await asyncio.sleep(600)
            assert (await app.one_job("parent")).state is State.SUSPENDED, "the second child has not ended"
            await app.log.wait(events.RunSucceeded, task="parent")
        assert await result_of(app, "parent") == '["child 0","at last"]'

    harness.run(scenario())


@pytest.mark.parametrize("end", ["discarded", "cancelled"])
def test_children_of_an_ended_parent_are_cancelled(harness: WorkerHarness, end: str) -> None:
    """The maintenance ends those that have not begun; no caller waits for them."""
    app = harness.app(settings=LEASE)
    label = with_label(app)

    @app.task
    async def parent(ctx: Context) -> None:
        children = asyncio.create_task(ctx.run("labels", label.using(delay="1d").call(1)))
        await ctx.wait_for("cancel")
        children.cancel()
        raise Cancel("as asked")

    async def scenario() -> None:
        job = await parent.enqueue()
        async with app.worker() as worker:
            await app.log.wait(events.RunEnded, outcome="suspended")
            assert len(await app.jobs(task="label")) == 1
            if end == "discarded":
                async with sound(app) as store:
                    assert await store.discard_job(job.id)
            else:
                await send(app, job, "cancel", wake=worker)
            await asyncio.sleep(300)
        assert (await app.jobs(), await app.outcomes("label")) == ([], ["cancelled"])
        assert (await app.outcomes("parent"))[-1] == end

    harness.run(scenario())


def test_start_enqueues_once_and_does_not_wait(harness: WorkerHarness) -> None:
    """At replays it returns the same job's handle."""
    app = harness.app()
    calls: list[Any] = []
    handles: list[Any] = []
    label = with_label(app, calls)

    @app.task
    async def parent(ctx: Context) -> None:
        handles.append((await ctx.start("label", label.call(1, pause=7200))).id)
        await ctx.sleep("pause", "1h")

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)
        assert [job.id for job in await app.jobs()] == [handles[0]]

    harness.run(scenario())
    assert (len(handles), len(set(handles)), calls) == (2, 1, [1])


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("enqueue", ["enqueued a job"]),
        ("enqueue_many", ["enqueued a job"]),
        ("signal", ["sent a signal without an id"]),
        ("signal with an id", []),
        ("enqueue in a step", []),
    ],
)
def test_what_a_body_sends_outside_of_steps_is_reported(harness: WorkerHarness, what: str, expected: list[str]) -> None:
    """At each resume the body would send it again, also if it does so before its first durable call."""
    app = harness.app()
    label = with_label(app)

    @app.task
    async def parent(ctx: Context) -> None:
        work: dict[str, Callable[[], Coroutine[Any, Any, object]]] = {
            "enqueue": lambda: label.enqueue(1),
            "enqueue_many": lambda: app.enqueue_many([label.call(1)]),
            "signal": lambda: app.job(ctx.job_id).signal("x", 1),
            "signal with an id": lambda: app.job(ctx.job_id).signal("x", 1, id="x"),
            "enqueue in a step": lambda: ctx.step("enqueue", enqueue),
        }
        await work[what]()
        await ctx.sleep("pause", "1h")

    async def enqueue() -> None:
        await label.enqueue(1)

    async def scenario() -> None:
        await parent.enqueue()
        await finish(app)

    harness.run(scenario())
    assert [event.what for event in app.log.of(events.EnqueuedOutsideStep)] == expected


@pytest.mark.parametrize("call", ["run", "start"])
@pytest.mark.parametrize("fault", ["outage", "rollback", "lost answer"])
def test_children_are_inserted_once_whatever_fails(harness: WorkerHarness, call: str, fault: str) -> None:
    """An outage is waited for; after a lost answer the run ends, and the next one reads what was committed."""
    app = harness.app()
    calls: list[Any] = []
    label = with_label(app, calls)

    @app.task
    async def parent(ctx: Context) -> None:
        await getattr(ctx, call)("label", label.call(1))

    async def scenario() -> None:
        await parent.enqueue()
        if fault == "lost answer":
            app.faults.losing["commit"] = 1
        else:
            app.faults.error, app.faults.verbs = away, {"outage": {"begin"}, "rollback": {"commit"}}[fault]
            asyncio.get_running_loop().call_later(20, setattr, app.faults, "error", None)
        async with app.worker():
            await app.log.wait(events.RunSucceeded, task="parent")
            await app.log.wait(events.RunSucceeded, task="label")
        outcomes = [outcome for outcome in await app.outcomes("parent") if outcome != "suspended"]
        assert outcomes == [*(["abandoned"] if fault == "lost answer" else []), "succeeded"]

    harness.run(scenario())
    assert calls == [1]


@pytest.mark.parametrize(
    ("verb", "after"), [("read_waits", False), ("read_waits", True), ("suspend_jobs", False), ("suspend_jobs", True)]
)
def test_a_child_that_ends_during_the_suspension_wakes_the_parent(
    harness: WorkerHarness, verb: str, *, after: bool
) -> None:
    """Its end is seen by the look, by the suspension or by the fold."""
    app, other = (
        harness.app(settings={"worker.queues": ["default"]}),
        harness.app(settings={"worker.queues": ["labels"]}),
    )
    label = with_label(app).using(queue="labels")
    with_label(other)

    @app.task
    async def parent(ctx: Context) -> str:
        return str(await ctx.run("label", label.call(1)))

    async def scenario() -> None:
        await parent.enqueue()
        at(app, verb, other.drain, after=after)
        await finish(app)
        assert len(other.log.of(events.RunSucceeded)) == 1

    harness.run(scenario())
    assert harness.seconds() < 2


def test_children_belong_to_the_slot(harness: WorkerHarness) -> None:
    """A recurring parent waits for the children of its own slot."""
    app = harness.app()
    label = with_label(app)

    @app.task(every="1h")
    async def parent(ctx: Context) -> str:
        return str(await ctx.run("label", label.call(ctx.slot_no)))

    async def scenario() -> None:
        async with app.worker():
            await app.log.wait(events.RunSucceeded, 2, task="parent")
        results = [run.result for run in await app.ledger("parent") if run.outcome == "succeeded"]
        assert results == ['"L1"', '"L2"']
        job = (await app.one_job("parent")).id
        assert [(await steps_of(app, job, slot))["label"].state for slot in (1, 2)] == ["done", "done"]

    harness.run(scenario())
