"""A signal that cannot be sent: its change is done nevertheless, and no error is raised."""

from __future__ import annotations

import asyncio
import threading

import pytest

from reltask import App, Context
from reltask.model.job import State
from reltask.worker.poller import Poller
from tests.postgres_server import PostgresServer
from tests.worker.worker_harness import LIVE_PATIENCE

PLAIN_USER = """
do $$ begin
    if not exists (select from pg_roles where rolname = 'quiet') then create role quiet login; end if;
end $$
"""
ALL = "grant all on all tables in schema reltask to quiet"
MUTE = "revoke execute on function pg_notify(text, text) from public"


@pytest.fixture
def quiet_url(postgres_server: PostgresServer, postgres_url: str) -> str:
    """The database, with a login that may do everything but send signals."""
    name = postgres_url.rpartition("/")[2]
    grants = [
        "grant usage on schema reltask to quiet",
        ALL,
        "create table effects (n int)",
        "grant all on effects to quiet",
    ]
    postgres_server.execute(PLAIN_USER, *grants, MUTE, database=name)
    return postgres_server.url(name, user="quiet")


async def test_committed_block_is_done_although_its_signal_is_lost(quiet_url: str) -> None:
    """A body whose block was committed does not fail: a retry would write everything again."""
    app = App(quiet_url)

    @app.task
    async def child() -> None: ...

    @app.task(backoff="1ms")
    async def parent(ctx: Context) -> None:
        async with ctx.transaction(complete=False) as transaction:
            await transaction.execute("insert into effects values (1)")
            await child.enqueue()

    async with app.worker() as worker:
        await parent.enqueue()
        await worker.drained()
        assert sorted((run.task, run.outcome) for run in await app.runs()) == [
            ("child", "succeeded"),
            ("parent", "succeeded"),
        ]


def test_last_signal_of_a_burst_is_sent_when_the_app_is_closed(postgres_url: str) -> None:
    """Closing neither raises nor leaves a thread running while a signal is pending."""
    app = App(postgres_url)

    @app.task
    async def quick() -> None: ...

    before = set(threading.enumerate())  # other tests' apps may be open still
    for _ in range(4):
        quick.enqueue_sync()
    app.close()
    assert not any(thread.name == "reltask-client" for thread in set(threading.enumerate()) - before)


async def test_change_is_done_although_its_signal_is_lost(quiet_url: str) -> None:
    """A `resume` or `run_now` that was applied does not raise: a repetition would report that nothing changed."""
    app = App(quiet_url)

    @app.task
    async def later() -> None: ...

    async with app.producer():
        job = await later.using(delay="1h").enqueue()
        await job.pause()
    for change in (job.resume, job.run_now):
        async with app.producer():  # another store: its first signal is sent at once
            await change()
            view = await job.view()
            assert view is not None
            assert view.state is not State.PAUSED


async def test_a_worker_without_signals_finds_jobs_at_its_polls(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind PgBouncer no connection listens: another process's job is found by a poll."""
    signals: list[object] = []
    monkeypatch.setattr(Poller, "signalled", lambda _, news: signals.append(news))
    producer, app = App(postgres_url), App(f"{postgres_url}?pgbouncer=true", settings={"worker.poll": "50ms"})
    done = asyncio.Event()
    for one in (producer, app):

        @one.task(name="work")
        async def work() -> None:
            done.set()

    async with app.worker(), asyncio.timeout(LIVE_PATIENCE):
        await producer.get_task("work").enqueue()
        await done.wait()
    assert signals == []
    for one in (producer, app):
        await asyncio.to_thread(one.close)
