"""`job.run_again()`: another job with what the first was given."""

from __future__ import annotations

import pytest

from reltask import Context, UnknownJob
from tests.worker.worker_harness import WorkerHarness


def test_a_job_that_ended_is_run_again(harness: WorkerHarness) -> None:
    """With its arguments, headers, queue and priority; without its key, and with the attempts of its task."""
    app = harness.app()
    seen: list[object] = []

    @app.task(max_attempts=2)
    async def greet(ctx: Context, name: str) -> str:
        seen.append((name, ctx.headers["tenant"], ctx.key))
        return f"hello {name}"

    async def scenario() -> None:
        first = await greet.using(key="ada", priority=3, headers={"tenant": "a"}).enqueue("Ada")
        await app.drain()
        again = await first.run_again()
        view = await again.view()
        assert view is not None
        assert (view.priority, view.key, view.max_attempts) == (3, None, 2)
        assert await again.arguments() == {"name": "Ada"}
        await app.drain()
        assert await again.result() == "hello Ada"
        assert again.id != first.id

    harness.run(scenario())
    assert seen == [("Ada", "a", "ada"), ("Ada", "a", None)]


@pytest.mark.parametrize("setting", ["on", "off"])
def test_what_is_not_kept_cannot_be_run_again(harness: WorkerHarness, setting: str) -> None:
    """A task overrides the setting, either way."""
    app = harness.app(settings={"history.arguments": setting})

    @app.task
    async def plain(secret: str) -> None: ...

    @app.task(keep_arguments=setting == "off")
    async def other(secret: str) -> None: ...

    async def scenario() -> None:
        jobs = [await plain.enqueue("x"), await other.enqueue("x")]
        await app.drain()
        kept, lost = jobs if setting == "on" else reversed(jobs)
        assert await (await kept.run_again()).arguments() == {"secret": "x"}
        assert await lost.arguments() is None
        with pytest.raises(UnknownJob, match="has not kept its arguments; nothing was enqueued"):
            await lost.run_again()

    harness.run(scenario())


def test_a_job_of_an_unknown_task_is_run_again_as_it_is(harness: WorkerHarness) -> None:
    """An operator's process need not know the task; its arguments are not shown there."""
    app, operator = harness.app(), harness.app()

    @app.task
    async def greet(name: str) -> str:
        return f"hello {name}"

    async def scenario() -> None:
        job = await greet.enqueue("Ada")
        await app.drain()
        handle = operator.job(job.id)
        assert await handle.arguments() == {"name": "***"}
        again = await handle.run_again()
        await app.drain()
        assert await app.job(again.id).result() == "hello Ada"

    harness.run(scenario())


def test_a_waiting_job_can_be_doubled(harness: WorkerHarness) -> None:
    """The row is read while it exists."""
    app = harness.app()

    @app.task
    async def greet(name: str) -> None: ...

    async def scenario() -> None:
        job = await greet.using(delay="1d").enqueue("Ada")
        await job.run_again()
        await app.drain()
        assert await app.outcomes() == ["succeeded"]
        assert await job.view() is not None

    harness.run(scenario())
