"""The test kit, as users' tests use it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reltask import App, Context, JobFailed, ProcessContext, Retry, Signal, SyncContext, UsageError, WaitTimeout
from reltask.testing import TaskFailed, TestKit

approved: Signal[bool] = Signal("approved", bool)
START = datetime(2026, 3, 1, 12, tzinfo=UTC)


class Shop:
    """An app as users have one: at the top of a module, with a database that tests must not touch."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "production.db"
        self.app = app = App(f"sqlite:///{self.file}")
        self.sent: list[object] = []
        self.threads: list[str] = []

        @app.task
        async def send(to: str, copies: int = 1) -> str:
            self.sent.append((to, copies))
            return f"sent to {to}"

        @app.task
        def in_thread(ctx: SyncContext, to: str) -> None:
            self.threads.append(threading.current_thread().name)
            ctx.progress({"to": to})
            with ctx.transaction():
                send.enqueue_sync(to)

        @app.task(max_attempts=3, backoff="10s")
        async def flaky(ctx: Context) -> int:
            if ctx.attempt < 3:
                raise Retry("not yet", delay="10s")
            return ctx.attempt

        @app.task
        async def order(ctx: Context, number: int) -> str:
            await ctx.sleep("cool off", "3d")
            try:
                yes = await ctx.wait_for(approved, timeout="1d")
            except WaitTimeout:
                return "no answer came"
            return await ctx.run("mail", send.call(f"{number}: {yes}"))

        @app.task
        def durable_thread(ctx: SyncContext) -> str:
            ctx.sleep("short", "100ms")
            ctx.sleep("long", "2d")
            self.threads.append(threading.current_thread().name)
            return ctx.step("once", str, ctx.wait_for(approved))

        @app.task(cron="0 9 * * *", timezone="UTC")
        async def daily() -> None:
            self.sent.append("daily")

        self.send, self.in_thread, self.flaky, self.order = send, in_thread, flaky, order
        self.durable_thread = durable_thread


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def kit(shop: Shop) -> Iterator[TestKit]:
    with TestKit(shop.app, start=START) as kit:
        yield kit


def test_what_is_enqueued_can_be_asserted(shop: Shop, kit: TestKit) -> None:
    """By task and by some of its arguments, defaults bound; also after it has run."""
    shop.send.using(queue="mail", headers={"tenant": "a"}).enqueue_sync("ada")
    found = kit.assert_enqueued(shop.send, to="ada", copies=1)
    assert (found.arguments, found.headers, found.queue) == ({"to": "ada", "copies": 1}, {"tenant": "a"}, "mail")
    assert [str(job) for job in kit.enqueued] == ["send(to='ada', copies=1)"]
    kit.run_until_idle()
    assert kit.assert_enqueued(shop.send, to="ada").job.id == found.job.id
    kit.assert_not_enqueued(shop.send, to="bob")
    kit.assert_not_enqueued(shop.flaky)
    with pytest.raises(AssertionError, match=r"send\(to='bob'\) was not enqueued. Enqueued: \[send\(to='ada'"):
        kit.assert_enqueued(shop.send, to="bob")
    with pytest.raises(AssertionError, match="was enqueued"):
        kit.assert_not_enqueued(shop.send, to="ada")
    with pytest.raises(UsageError, match=r"no parameter 'two'\. It has: to, copies"):
        kit.assert_enqueued(shop.send, two="ada")


def test_nothing_runs_before_it_is_asked_for(shop: Shop, kit: TestKit) -> None:
    """And the app's own database is not touched."""
    job = shop.send.enqueue_sync("ada")
    assert shop.sent == []
    runs = kit.run_until_idle()
    assert [(run.task, run.outcome) for run in runs] == [("send", "succeeded")]
    assert shop.sent == [("ada", 1)]
    assert job.result_sync() == "sent to ada"
    assert kit.run_until_idle() == []
    assert not shop.file.exists()


def test_def_bodies_run_in_the_tests_thread(shop: Shop, kit: TestKit) -> None:
    """With progress, a transaction, and a job that the transaction enqueues."""
    shop.in_thread.enqueue_sync("ada")
    kit.run_until_idle()
    assert shop.threads == [threading.current_thread().name]
    assert shop.sent == [("ada", 1)]


async def test_they_do_in_an_asynchronous_test(shop: Shop, kit: TestKit) -> None:
    """There too: a `def` body may call what is synchronous although the test's loop runs."""
    await shop.in_thread.enqueue("ada")
    kit.run_until_idle()
    assert shop.threads == [threading.current_thread().name]
    job = kit.assert_enqueued(shop.send, to="ada").job
    assert await job.result(timeout="5s") == "sent to ada"
    assert asyncio.get_running_loop().is_running()


def test_time_moves_by_advance_alone(shop: Shop, kit: TestKit) -> None:
    """Retries and delayed jobs run at their times; each schedule at each of its slots."""
    later, retried = shop.send.using(delay="1h").enqueue_sync("later"), shop.flaky.enqueue_sync()
    with pytest.raises(TaskFailed, match=r"flaky failed:[\s\S]*not yet"):
        kit.run_until_idle()
    assert kit.now - START < timedelta(seconds=5)
    assert shop.sent == []
    kit.advance("1m", raise_failures=False)
    assert retried.result_sync() == 3
    kit.advance(timedelta(minutes=59))
    assert later.result_sync() == "sent to later"
    kit.advance("3d")
    assert shop.sent == [("later", 1), "daily", "daily", "daily"]
    assert timedelta(days=3, hours=1) <= kit.now - START < timedelta(days=3, hours=1, seconds=30)


def test_a_durable_function_sleeps_for_days(shop: Shop, kit: TestKit) -> None:
    """Its signal wakes it, and its child runs; without one it gives up."""
    first, second = shop.order.enqueue_sync(1), shop.order.enqueue_sync(2)
    kit.run_until_idle()
    kit.advance("3d")
    first.signal_sync(approved, True)
    kit.run_until_idle()
    assert first.result_sync() == "sent to 1: True"
    kit.advance("1d")
    assert second.result_sync() == "no answer came"
    assert shop.sent[-1] != ("2: True", 1)


def test_a_durable_function_in_a_thread(shop: Shop, kit: TestKit) -> None:
    """A `def` body that is suspended gives the test's thread back."""
    job = shop.durable_thread.enqueue_sync()
    kit.run_until_idle()
    kit.advance("2d")
    job.signal_sync(approved, True)
    kit.run_until_idle()
    assert job.result_sync() == "True"
    assert shop.threads == [threading.current_thread().name] * len(shop.threads) != []


def test_an_async_body_may_wait_for_threads_and_sockets(shop: Shop, kit: TestKit) -> None:
    """Real time passes while one is awaited: a timeout in the body does not fire because the clock jumped."""
    app = shop.app

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.to_thread(threading.Event().wait, 0.05)
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    @app.task
    async def talk() -> str:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
        return line.decode()

    job = talk.enqueue_sync()
    kit.run_until_idle()
    assert job.result_sync() == "hello\n"
    assert kit.now - START < timedelta(seconds=15)


def test_a_failure_can_be_looked_at(shop: Shop, kit: TestKit) -> None:
    """`raise_failures=False` returns the run."""

    @shop.app.task(max_attempts=1)
    async def broken() -> None:
        raise ValueError("no")

    job = broken.enqueue_sync()
    (run,) = kit.run_until_idle(raise_failures=False)
    assert (run.outcome, "ValueError: no" in (run.error or "")) == ("failed", True)
    with pytest.raises(JobFailed):
        job.result_sync()


def test_a_users_connection_is_left_alone(shop: Shop, kit: TestKit) -> None:
    """It belongs to another database: the job is enqueued at once."""
    shop.send.using(connection=object()).enqueue_sync("ada")
    kit.assert_enqueued(shop.send, to="ada")


def test_the_app_is_its_own_again_afterwards(shop: Shop) -> None:
    """Database, clock and schedules; and two kits in a row share nothing."""
    for name in ("first", "second"):
        with TestKit(shop.app) as kit:
            shop.send.enqueue_sync(name)
            assert [job.arguments["to"] for job in kit.enqueued] == [name]
    job = shop.send.enqueue_sync("real")
    assert shop.file.exists()
    assert job.view_sync() is not None
    assert [view.task for view in shop.app.jobs_sync()] == ["send"]
    shop.app.close()


def test_immediate_runs_each_enqueue_at_once(shop: Shop) -> None:
    """With what it enqueues; in this thread. A failure is the job's, not the caller's."""
    with shop.app.immediate() as kit:
        assert shop.send.enqueue_sync("ada").result_sync() == "sent to ada"
        shop.in_thread.enqueue_sync("bob")
        assert shop.sent == [("ada", 1), ("bob", 1)]
        assert shop.threads == [threading.current_thread().name]
        failing = shop.flaky.enqueue_sync()
        view = failing.view_sync()
        assert view is not None
        assert view.attempt == 1
        later = shop.send.using(delay="1d").enqueue_sync("later")
        assert later.view_sync() is not None
        kit.advance("1d", raise_failures=False)
        assert later.result_sync() == "sent to later"
        assert failing.result_sync() == 3
    assert not shop.file.exists()


async def test_immediate_in_asynchronous_code(shop: Shop) -> None:
    """`await enqueue` returns when the job has run."""
    with shop.app.immediate():
        job = await shop.send.enqueue("ada")
        assert shop.sent == [("ada", 1)]
        assert await job.result() == "sent to ada"
        await shop.app.enqueue_many(shop.send.call(name) for name in "bcd")
        assert sorted(map(str, shop.sent[1:])) == ["('b', 1)", "('c', 1)", "('d', 1)"]


def test_a_task_cannot_drive_the_kit(shop: Shop, kit: TestKit) -> None:
    """It would wait for itself."""

    @shop.app.task(max_attempts=1)
    def nested() -> None:
        kit.run_until_idle()

    nested.enqueue_sync()
    with pytest.raises(TaskFailed, match="Call it from the test, not from a task"):
        kit.run_until_idle()


def add(ctx: ProcessContext, a: int, b: int) -> int:
    ctx.check()
    return a + b


@pytest.mark.slow
def test_a_child_process_is_waited_for(shop: Shop, kit: TestKit) -> None:
    """Real time passes meanwhile, and no lock is lost."""
    task = shop.app.task(isolation="process")(add)
    job = task.enqueue_sync(2, 3)
    kit.run_until_idle()
    assert job.result_sync() == 5
