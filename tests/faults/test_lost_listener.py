"""A listening connection that is dropped silently: the worker notices, reports it and listens again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator

import asyncpg
import pytest

from reltask import App
from reltask.events import Idle, ListenerLost, RunSucceeded
from reltask.stores.postgres import listening
from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.store import PostgresStore
from tests.faults.proxy import Proxy
from tests.postgres_server import PostgresServer
from tests.worker.worker_harness import Recorder

pytestmark = pytest.mark.slow
PATIENCE = 30.0
"""Seconds: generous, and less than a poll."""
NO_LEADER = {"worker.poll": "60s", "maintenance.coordination": "off", "database.command_timeout": "5s"}
"""A leader's beats use the worker's connections, and would notice the loss at their own timeout."""
LISTENERS = "select count(*) from pg_stat_activity where query ilike 'listen%' and state = 'idle'"


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tenths of a second instead of the usual seconds."""
    monkeypatch.setattr(listening, "SILENCE", (0.3, 0.4))
    monkeypatch.setattr(listening, "EVERY", 0.1)
    monkeypatch.setattr(listening, "ANSWER_WITHIN", 1.0)


@pytest.fixture
def proxy(postgres_server: PostgresServer) -> Iterator[Proxy]:
    with Proxy(postgres_server.port) as proxy:
        yield proxy


@pytest.fixture
async def watcher(postgres_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(postgres_url)
    yield connection
    await connection.close()


async def test_job_after_a_silent_drop_does_not_wait_for_the_poll(proxy: Proxy, postgres_url: str) -> None:
    """A job that another process enqueues is run within seconds, although no answer says that the signal was lost."""
    app, elsewhere = App(proxy.url(postgres_url), settings=NO_LEADER), App(postgres_url)
    log = Recorder()
    app.subscribe(log)

    async def note() -> None: ...

    app.task(note)
    elsewhere.task(note)
    async with app.worker(), asyncio.timeout(PATIENCE):
        await log.wait(Idle)
        proxy.forget()
        await elsewhere.get_task("note").enqueue()
        await log.wait(RunSucceeded)
        assert [lost.reason for lost in log.of(ListenerLost)] == [listening.UNANSWERED]
    app.close()
    elsewhere.close()


async def test_a_listener_that_sends_nothing_listens_again_by_itself(
    postgres_url: str, watcher: asyncpg.Connection
) -> None:
    """A connection that the server closed is replaced without a statement of the worker's."""
    heard, losses = asyncio.Event(), list[str]()
    store = PostgresStore(postgres_url)
    async with store.listen(lambda _: heard.set(), lost=losses.append), asyncio.timeout(PATIENCE):
        await watcher.execute("select pg_terminate_backend(pid) from pg_stat_activity where query ilike 'listen%'")
        while not losses or not await watcher.fetchval(LISTENERS):
            await watcher.execute("select pg_stat_clear_snapshot()")
        heard.clear()
        await watcher.execute("select pg_notify('reltask', '')")
        await heard.wait()
    assert losses == [listening.CLOSED]
    await store.close()


async def test_one_listener_of_many_sends_the_signs_of_life(postgres_url: str, watcher: asyncpg.Connection) -> None:
    """Every listener hears it, none is woken by it, and none but the sender has to send."""
    senders: list[int] = []
    enough = asyncio.Event()

    def note(_connection: object, pid: int, _channel: str, payload: str) -> None:
        assert payload == listening.ALIVE
        senders.append(pid)
        if len(senders) >= 20:
            enough.set()

    woken: list[object] = []
    stores = [PostgresStore(postgres_url) for _ in range(5)]
    for store in stores:
        await store.open()
    await watcher.add_listener("reltask", note)
    async with asyncio.timeout(PATIENCE):
        blocks = [store.listen(woken.append) for store in stores]
        for block in blocks:
            assert await block.__aenter__()
        started = len(woken)
        await enough.wait()
        for block in blocks:
            await block.__aexit__(None, None, None)
    for store in stores:
        await store.close()
    assert len(set(senders[10:])) == 1
    assert len(woken) == started


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="an option of Linux")
async def test_the_operating_system_watches_the_sockets(postgres_url: str) -> None:
    """A peer that acknowledges nothing is gone after half a minute, not after the hours of the system's defaults."""
    connection = await connect(postgres_url, PostgresOptions())
    sock = connection._transport.get_extra_info("socket")
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 10
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
    await connection.close()
