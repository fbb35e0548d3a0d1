"""`job.result()`: waits for a job's end, and returns or raises what became of it."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID, uuid4

import pytest

from reltask import (
    AccessRefused,
    App,
    ArgumentsError,
    Cancel,
    Context,
    Hidden,
    Job,
    JobCancelled,
    JobFailed,
    ResultGone,
    Signal,
    UnknownJob,
    UsageError,
)
from reltask.producer.result import LONGEST_PAUSE
from tests.worker.worker_harness import HarnessApp, WorkerHarness, working


@dataclass
class Receipt:
    """What a task returns."""

    number: int
    at: datetime


def test_the_result_is_what_the_task_returned(harness: WorkerHarness) -> None:
    """It is decoded by the return annotation; a handle that knows the id only returns plain JSON."""
    app = harness.app()

    @app.task
    async def pay(number: int) -> Receipt:
        return Receipt(number, harness.now())

    @app.task
    async def nothing() -> None: ...

    async def scenario() -> None:
        async with app.worker():
            job, other = await pay.using(key="one").enqueue(7), await nothing.enqueue()
            receipt = await job.result(timeout="30s")
            assert receipt == Receipt(7, receipt.at)
            assert await pay.job(id=job.id).result() == receipt
            assert (await app.job(job.id).result())["number"] == 7
            assert (await asyncio.gather(other.result()))[0] is None

    harness.run(scenario())


def test_a_hidden_result_is_returned(harness: WorkerHarness) -> None:
    """`Annotated[…, Hidden]` hides it from views, not from who waits for it; so with fields, items and signals."""
    app = harness.app()
    code: Signal[str] = Signal("code", Annotated[str, Hidden])  # type: ignore[arg-type] # no class, but a type

    @app.task
    async def login(ctx: Context, user: str) -> Annotated[str, Hidden]:
        number = await ctx.wait_for(code)
        return f"token of {user} {number}"

    @app.task
    async def keys(count: int) -> list[Annotated[str, Hidden]]:
        return ["key"] * count

    async def scenario() -> None:
        async with app.worker():
            job, many = await login.enqueue("ada"), await keys.enqueue(2)
            await job.signal(code, "1234")
            assert await job.result(timeout="30s") == "token of ada 1234"
            assert await many.result(timeout="30s") == ["key", "key"]
            assert {run.result for run in await job.runs() if run.result} == {'"***"'}

    harness.run(scenario())


def test_a_result_is_found_by_key_while_the_job_is_there(harness: WorkerHarness) -> None:
    """A handle made by key finds the id before it waits; without such a job it is an UnknownJob."""
    app = harness.app()

    @app.task
    async def pay(number: int) -> int:
        return number

    async def scenario() -> None:
        await pay.using(key="order-7", delay="1m").enqueue(7)
        waiting = asyncio.create_task(pay.job(key="order-7").result())
        async with app.worker():
            assert await waiting == 7
        with pytest.raises(UnknownJob, match="Task pay has no job with key 'order-7'"):
            await pay.job(key="order-7").result()

    harness.run(scenario())


def test_other_ends_are_errors(harness: WorkerHarness) -> None:
    """Dead: JobFailed with the last error; cancelled and discarded: JobCancelled with the reason."""
    app = harness.app()

    @app.task(max_attempts=1)
    async def fragile() -> int:
        raise ValueError("it broke")

    @app.task
    async def needless() -> int:
        raise Cancel("it is not wanted")

    async def scenario() -> None:
        broken, needless_job = await fragile.enqueue(), await needless.enqueue()
        discarded = await needless.using(delay="1h").enqueue()
        await discarded.discard()
        async with app.worker():
            with pytest.raises(JobFailed, match=r"is dead\. (?s:.*)ValueError: it broke"):
                await broken.result()
            with pytest.raises(JobCancelled, match=r"was cancelled\. it is not wanted"):
                await needless_job.result()
            with pytest.raises(JobCancelled, match="was discarded"):
                await discarded.result()

    harness.run(scenario())


def test_a_result_that_is_gone_says_so(harness: WorkerHarness) -> None:
    """Pruned, never there, or not stored: no wait, and no None in place of a value, with or without an annotation."""
    app = harness.app(settings={"limits.result": 10})

    @app.task
    async def long() -> str:
        return "x" * 100

    @app.task
    async def unreadable():  # type: ignore[no-untyped-def]  # noqa: ANN202 - the point of it
        return object()

    async def scenario() -> None:
        with pytest.raises(ResultGone, match="no run of it"):
            await app.job(uuid4()).result()
        async with app.worker():
            with pytest.raises(ResultGone, match=r"could not be stored.* 102 bytes exceed the limit of 10"):
                await (await long.enqueue()).result()
            with pytest.raises(ResultGone, match="object cannot be stored as JSON"):
                await (await unreadable.enqueue()).result()

    harness.run(scenario())


def test_a_stored_result_that_no_longer_fits_is_an_error(harness: WorkerHarness) -> None:
    """The annotation was changed after the job ran; the value is not quoted."""
    old, new = harness.app(), harness.app()

    @old.task(name="count")
    async def before() -> str:
        return "secret"

    @new.task(name="count")
    async def after() -> int:
        return 1

    async def scenario() -> None:
        async with old.worker():
            job = await before.enqueue()
            await job.result()
        with pytest.raises(ArgumentsError, match="does not fit: Expected `int`, got `str`") as caught:
            await after.job(id=job.id).result()
        assert "secret" not in str(caught.value)

    harness.run(scenario())


def test_a_wait_ends_with_its_timeout(harness: WorkerHarness) -> None:
    """The job is not touched, and can be waited for again."""
    app = harness.app()

    @app.task
    async def later() -> int:
        return 7

    async def scenario() -> None:
        job = await later.using(delay="1m").enqueue()
        started = harness.seconds()
        with pytest.raises(TimeoutError, match="has not ended within 30s"):
            await job.result(timeout="30s")
        assert harness.seconds() - started == 30
        async with app.worker():
            assert await job.result(timeout="1m") == 7

    harness.run(scenario())


def test_the_result_comes_soon_after_the_end(harness: WorkerHarness) -> None:
    """Young waits look often, old ones once a second: so an end is found at most a second later."""
    app = harness.app()
    ended: dict[int, float] = {}

    @app.task
    async def work(seconds: int) -> int:
        await asyncio.sleep(seconds)
        ended[seconds] = harness.seconds()
        return seconds

    async def found(job: Job[int]) -> None:
        seconds = await job.result()
        assert harness.seconds() - ended[seconds] <= LONGEST_PAUSE + 0.1

    async def scenario() -> None:
        async with app.worker():
            jobs = [await work.enqueue(seconds) for seconds in (0, 1, 60)]
            await asyncio.gather(*map(found, jobs))
        assert app.faults.calls["read_results"] < 100

    harness.run(scenario())


@pytest.mark.slow
def test_a_thousand_waits_are_one_statement_at_a_time(harness: WorkerHarness) -> None:
    """Waits that begin together are looked for together: their number does not multiply the statements."""
    app = harness.app()

    @app.task
    async def later() -> int:
        return 7

    async def scenario() -> None:
        jobs = await app.enqueue_many(later.using(delay="10s").call() for _ in range(1_000))
        async with app.worker():
            assert await asyncio.gather(*(job.result() for job in jobs)) == [7] * 1_000
        assert app.faults.calls["read_results"] < 60

    harness.run(scenario())


def test_nothing_is_read_when_nothing_is_waited_for(harness: WorkerHarness) -> None:
    """The poller ends with the last wait, also one that was given up, and begins again with the next."""
    app = harness.app()

    @app.task
    async def later() -> int:
        return 7

    async def scenario() -> None:
        job = await later.using(delay="1h").enqueue()
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await job.result(timeout="10s")
            await asyncio.sleep(2 * LONGEST_PAUSE)
            looks = app.faults.calls["read_results"]
            await asyncio.sleep(60)
            assert app.faults.calls["read_results"] == looks > 0

    harness.run(scenario())


def test_a_notice_makes_the_next_look_now(harness: WorkerHarness) -> None:
    """An old wait does not wait for its next look, if this process knows that the job may have ended."""
    app, other = harness.app(), harness.app()

    @app.task
    async def later() -> int:
        return 7

    async def scenario() -> None:
        job = await later.using(delay="1h").enqueue()
        waiting = asyncio.create_task(job.result())
        await asyncio.sleep(30.5)
        looks = app.faults.calls["read_results"]
        await other.job(job.id).discard()  # in another process
        app._results.look([uuid4()])
        await asyncio.sleep(0.05)
        assert app.faults.calls["read_results"] == looks
        app._results.look([job.id])
        await asyncio.sleep(0.05)
        assert waiting.done()
        with pytest.raises(JobCancelled):
            await waiting


def test_a_discard_in_this_process_ends_its_waits_at_once(harness: WorkerHarness) -> None:
    """The handle that discards a job gives notice."""
    app = harness.app()

    @app.task
    async def later() -> int:
        return 7

    async def scenario() -> None:
        job = await later.using(delay="1h").enqueue()
        waiting = asyncio.create_task(job.result())
        await asyncio.sleep(30.5)
        await job.discard()
        await asyncio.sleep(0.05)
        assert waiting.done()
        with pytest.raises(JobCancelled):
            await waiting

    harness.run(scenario())


def test_waits_that_could_never_end_are_refused(harness: WorkerHarness) -> None:
    """For a recurring job, and with a wrong timeout."""
    app = harness.app()

    @app.task
    async def one() -> int:
        return 1

    @app.task(every="1h")
    async def tick() -> None: ...

    async def scenario() -> None:
        async with app.worker():
            recurring = await app.one_job("tick")
            with pytest.raises(UsageError, match="recurs"):
                await app.job(recurring.id).result()
        job = await one.enqueue()
        with pytest.raises(UsageError, match="timeout"):
            await job.result(timeout="soon")

    harness.run(scenario())


@pytest.mark.parametrize("name", ["waits", "waits_in_thread"])
async def test_a_wait_inside_a_task_is_refused(name: str, live: WorkerHarness) -> None:
    """It would keep its place while it waits, and all places could wait for each other."""
    app = live.app()

    @app.task
    async def one() -> int:
        return 1

    @app.task(max_attempts=1)
    async def waits() -> int:
        return await (await one.enqueue()).result()

    @app.task(max_attempts=1)
    def waits_in_thread() -> int:
        return one.enqueue_sync().result_sync()

    async with working(app):
        with pytest.raises(JobFailed, match=r"inside a task would keep its place.*Use ctx\.run"):
            await (await app.get_task(name).enqueue()).result()


def test_a_job_of_an_open_transaction_is_refused_until_the_commit(live: WorkerHarness) -> None:
    """No run can end before the commit; after a rollback none ever will."""
    app = App(f"sqlite:///{live.path}")

    @app.task
    async def one() -> int:
        return 1

    app.status_sync()  # makes the tables
    with closing(sqlite3.connect(live.path)) as connection:
        job = one.using(connection=connection).enqueue_sync()
        with pytest.raises(UsageError, match="not committed, or was rolled back"):
            job.result_sync()
        connection.commit()
    with pytest.raises(TimeoutError):
        job.result_sync(timeout="50ms")
    app.close()


def test_an_outage_reaches_those_who_wait(harness: WorkerHarness) -> None:
    """The error is the caller's to handle; the next wait works again."""
    app = harness.app()
    app.faults.verbs = {"read_results"}

    @app.task
    async def one() -> int:
        return 1

    async def scenario() -> None:
        job = await one.enqueue()
        app.faults.error = lambda: AccessRefused("permission denied for table runs")
        with pytest.raises(AccessRefused, match=r"may not read results\. permission denied.*reltask_read"):
            await job.result()
        app.faults.error = None
        async with app.worker():
            assert await job.result() == 1

    harness.run(scenario())


# Threads and loops


def worked(live: WorkerHarness) -> tuple[HarnessApp, Any]:
    app = live.app()

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    return app, double


async def test_results_in_threads_and_loops_share_one_poller(live: WorkerHarness) -> None:
    """A synchronous wait in many threads, and one on another loop, while the worker runs on this one."""
    app, double = worked(live)
    jobs = [await double.enqueue(number) for number in range(8)]
    before = threading.active_count()
    results = [asyncio.to_thread(job.result_sync, timeout="20s") for job in jobs]
    other_loop = asyncio.to_thread(asyncio.run, _awaited(jobs[0]))
    async with app.worker():
        assert await asyncio.gather(*results, other_loop) == [*(2 * number for number in range(8)), 0]
    assert before <= threading.active_count()
    with pytest.raises(UsageError, match="would block the running event loop"):
        jobs[0].result_sync()
    await asyncio.to_thread(app.close)


async def _awaited(job: Job[int]) -> int:
    return await job.result(timeout="20s")


def test_result_needs_a_loop(live: WorkerHarness) -> None:
    """The remedy names the synchronous twin."""
    app, double = worked(live)
    job = double.enqueue_sync(1)
    with pytest.raises(UsageError, match=r"call result_sync\(\)"):
        job.result()
    app.close()


def test_closing_the_app_ends_the_waits(live: WorkerHarness) -> None:
    """They end with an error at once, instead of keeping `close` waiting."""
    app, double = worked(live)
    job = double.using(delay=timedelta(hours=1)).enqueue_sync(1)
    errors: list[UsageError] = []
    looked = threading.Event()

    def wait() -> None:
        try:
            job.result_sync()
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while not app.faults.calls["read_results"]:
        looked.wait(0.005)
    app.close()
    thread.join(5)
    assert not thread.is_alive()
    assert "The app was closed" in str(errors)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # a pre-forking server forks beside threads
def test_a_forked_child_has_a_poller_of_its_own(live: WorkerHarness) -> None:
    """Its parent's does not run there, although the parent waited when it forked."""
    app, double = worked(live)
    waiting, ended = double.using(delay="1h").enqueue_sync(1), double.using(delay="1h").enqueue_sync(2)
    ended.discard_sync()
    pending = app._results.wait(waiting.id)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            ended.result_sync(timeout="10s")
        except JobCancelled:
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not pending.done()
    app.close()


def test_a_handle_says_what_it_knows() -> None:
    """By key it has no id until it is used; a text is no id."""
    app = App("sqlite:///unused.db")

    @app.task
    async def one() -> int:
        return 1

    known = UUID(int=7)
    assert (repr(app.job(known)), app.job(known).id) == (f"<job {known}>", known)
    assert repr(one.job(key="a")) == "<job with key 'a' of one>"
    with pytest.raises(UsageError, match="knows its job by key"):
        one.job(key="a").id  # noqa: B018 - the access is the test
    with pytest.raises(UsageError, match="is a UUID, not str"):
        app.job(str(known))  # type: ignore[arg-type]
    wrong: list[dict[str, Any]] = [{}, {"id": known, "key": "a"}]
    for given in wrong:
        with pytest.raises(UsageError, match="by its id or by its key"):
            one.job(**given)
