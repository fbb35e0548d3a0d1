"""`app.lease(…)` in real time: threads, loops, processes, and the user's own transactions."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from reltask import App, Context, Lease, LeaseLost, LeaseTaken, SyncContext, events
from reltask.errors import ReltaskError, TransientError, UsageError
from reltask.leases.holding import LONGEST_TRY, lease_options
from reltask.model.lease import Term
from reltask.model.views import LeaseView, WorkerView
from reltask.stores.sqlite.connections import FileTransaction, Session
from reltask.stores.sqlite.store import SqliteStore
from reltask.testing import drain

pytestmark = pytest.mark.slow

ROOMY = "5s"
"""A TTL that outlasts a pause of three seconds; a heartbeat every second."""
ROOMY_TRY = timedelta(seconds=5) / 3
"""How long a try for such a lease may take."""


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    """An app on a fresh file, closed afterwards."""
    app = App(f"sqlite:///{tmp_path}/reltask.db", settings={"maintenance.coordination": "off"})
    yield app
    app.close()


@pytest.fixture
def rival(tmp_path: Path) -> Iterator[App]:
    """A second app on the file: another process, as far as leases are concerned."""
    app = App(f"sqlite:///{tmp_path}/reltask.db")
    yield app
    app.close()


def test_synchronous_code(app: App, rival: App) -> None:
    """One thread of one process holds it; another gets it when the block ends, also by an error."""
    leases: list[Lease] = []

    def lead() -> None:
        with app.lease_sync("reports") as lease:
            leases.append(lease)
            assert (lease.held, lease.term, lease.name, lease.lost.wait(0)) == (True, 1, "reports", None)
            with pytest.raises(LeaseTaken), rival.lease_sync("reports", wait=False):
                pass
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lead()
    (left,) = leases
    assert (left.held, left.lost.wait(0), left.lost.is_set()) == (False, "resigned", True)
    with rival.lease_sync("reports", wait=False) as lease:
        assert lease.term == 2


def wait_for_a_beat(lease: Lease, app: App) -> None:
    """Wait until the row is renewed, or the lease is lost."""
    before = app.leases_sync()[0].expires_at
    while lease.held and app.leases_sync()[0].expires_at == before:
        time.sleep(0.01)


async def test_code_that_blocks_its_loop_keeps_its_lease(app: App, rival: App) -> None:
    """Heartbeats are sent from a private loop: a blocked loop keeps its lease."""
    async with app.lease("reports", ttl=ROOMY) as lease:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(wait_for_a_beat, lease, rival).result()  # the loop is blocked on purpose
        assert lease.held
        with pytest.raises(LeaseTaken):
            async with rival.lease("reports", wait=False):
                pass


def test_a_long_client_call_delays_no_heartbeat(app: App, rival: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite a client's call, such as a long audit, blocks the client's loop: leases have a loop of their own."""
    began, ended, ask = threading.Event(), threading.Event(), SqliteStore.list_workers

    async def long(store: SqliteStore) -> list[WorkerView]:
        began.set()
        ended.wait(30)  # blocks its loop on purpose
        return await ask(store)

    monkeypatch.setattr(SqliteStore, "list_workers", long)
    with ThreadPoolExecutor(1) as pool, app.lease_sync("reports", ttl=ROOMY) as lease:
        calling = pool.submit(app.workers_sync)
        began.wait()
        wait_for_a_beat(lease, rival)
        assert lease.held
        ended.set()
        assert calling.result() == []


def test_a_lease_that_waits_for_the_file_delays_no_other(app: App, rival: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """On SQLite each lease has a thread that waits for the file's writers."""
    began, ended, write = threading.Event(), threading.Event(), Session.write

    def slow(session: Session, work: Callable[[FileTransaction], object]) -> object:
        if ROOMY_TRY < session._options.command_timeout <= LONGEST_TRY:  # the try for the long lease
            began.set()
            ended.wait(30)
        return write(session, work)

    def take() -> None:
        with app.lease_sync("long", ttl="1d"):
            pass

    with ThreadPoolExecutor(1) as pool, app.lease_sync("reports", ttl=ROOMY) as lease:
        monkeypatch.setattr(Session, "write", slow)
        taking = pool.submit(take)
        began.wait()
        wait_for_a_beat(lease, rival)
        assert lease.held
        ended.set()
        taking.result()


def test_a_subscriber_that_blocks_delays_no_heartbeat(app: App, rival: App) -> None:
    """Subscribers are called on a thread of their own, in order; closing the app waits for them."""
    heard: list[type[events.Event]] = []
    go_on = threading.Event()

    def slow(event: events.Event) -> None:
        go_on.wait(10)
        heard.append(type(event))

    app.subscribe(slow)
    with app.lease_sync("reports", ttl=ROOMY) as lease:
        wait_for_a_beat(lease, rival)
        assert (lease.held, heard) == (True, [])
        go_on.set()
    app.close()
    assert heard == [events.LeaseAcquired, events.LeaseResigned]


def test_a_subscriber_may_close_the_app(app: App) -> None:
    """The thread that closes does not wait for itself."""
    closed = threading.Event()

    def close(event: events.Event) -> None:
        if isinstance(event, events.LeaseResigned):
            app.close()
            closed.set()

    app.subscribe(close)
    with app.lease_sync("reports"):
        pass
    assert closed.wait(30)


async def test_a_released_lease_is_taken_at_once(app: App, rival: App) -> None:
    """A waiter is notified, long before the TTL of a minute has passed."""
    waiting = asyncio.Event()

    async def wait() -> int:
        waiting.set()
        async with rival.lease("reports", ttl="1m") as lease:
            return lease.term

    async with app.lease("reports", ttl="1m"):
        task = asyncio.create_task(wait())
        await waiting.wait()
        while (await app.leases())[0].waiting == 0:  # noqa: ASYNC110 - what is waited for happens in the database
            await asyncio.sleep(0.01)
    async with asyncio.timeout(30):
        assert await task == 2


def test_the_loss_is_reported_in_every_thread_and_loop(app: App) -> None:
    """One announcement reaches all waiters, in threads and in loops."""
    heard: list[str | None] = []

    async def listen() -> None:
        heard.append(await lease.lost)

    with app.lease_sync("reports", ttl=ROOMY) as lease:
        threads = [threading.Thread(target=lambda: heard.append(lease.lost.wait(30))) for _ in range(2)]
        threads += [threading.Thread(target=lambda: asyncio.run(listen())) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert app.release_lease_sync(Term("reports", lease.term))
        for thread in threads:
            thread.join()
        asyncio.run(listen())
    assert heard == ["the database says that this term is over"] * 5


def test_rotation_after_no_time_is_no_rotation() -> None:
    """`0s` means no limit, as in the setting. A max_stall of zero would lose the lease at once."""
    assert lease_options("reports", ttl="10s", wait=True, rotate_after="0s", max_stall=None).rotate_after is None
    with pytest.raises(UsageError, match="max_stall: 0s"):
        lease_options("reports", ttl="10s", wait=True, rotate_after=None, max_stall="0s")


async def test_blocks_of_the_wrong_kind(app: App) -> None:
    """The synchronous form would block the loop."""
    with pytest.raises(UsageError, match=r"async with app\.lease\("), app.lease_sync("reports"):
        pass


def test_closing_the_app_releases(app: App, rival: App) -> None:
    """Held leases are resigned and waits end; leaving the block afterwards does nothing."""
    errors: list[ReltaskError] = []

    def wait() -> None:
        try:
            with app.lease_sync("reports", ttl="1m"):
                pass
        except ReltaskError as error:
            errors.append(error)

    with app.lease_sync("reports", ttl="1m") as lease:
        waiter = threading.Thread(target=wait)
        waiter.start()
        while rival.leases_sync()[0].waiting == 0:
            time.sleep(0.01)
        app.close()
        waiter.join()
        assert lease.lost.reason == "resigned"
        with rival.lease_sync("reports", wait=False) as following:
            assert following.term == 2
    assert [type(error) for error in errors] == [UsageError]


def test_a_lease_won_while_the_app_closes_is_released(app: App, rival: App) -> None:
    """The leases' loop resigns what it holds at its end, including what was won after `close()` had looked."""
    with app.lease_sync("reports") as lease:
        app._lease_client.close()
        assert lease.lost.reason == "resigned"
        with rival.lease_sync("reports", wait=False) as following:
            assert following.term == 2


def test_a_block_left_while_the_app_closes(app: App, monkeypatch: pytest.MonkeyPatch) -> None:
    """The private loop accepts no more work: leaving the block waits until that loop has resigned."""
    asked, answer, ask = threading.Event(), threading.Event(), SqliteStore.list_leases

    async def held(store: SqliteStore) -> list[LeaseView]:
        asked.set()
        await asyncio.to_thread(answer.wait)
        return await ask(store)

    def refused() -> None:
        with pytest.raises(LeaseTaken), app.lease_sync("reports", wait=False):
            pass

    block = app.lease_sync("reports")
    lease = block.__enter__()
    monkeypatch.setattr(SqliteStore, "list_leases", held)
    client = app._lease_client
    first = client._portal
    with ThreadPoolExecutor(3) as pool:
        calling = pool.submit(refused)
        asked.wait()
        closing = pool.submit(client.close)
        while client._portal is first:
            time.sleep(0.001)
        leaving = pool.submit(block.__exit__, None, None, None)
        while client._portal is None:  # the way that it leaves by
            time.sleep(0.001)
        answer.set()
        for ended in (calling, closing, leaving):
            ended.result()
    assert lease.lost.reason == "resigned"
    assert not app.leases_sync()[0].held


async def test_a_caller_interrupted_before_the_try_takes_nothing(app: App) -> None:
    """Ctrl+C can come at any moment, also before the private loop has begun to try."""
    await app.status()
    host = app._lease_host
    holding = host._holding(lease_options("reports", ttl="1m", wait=True, rotate_after=None, max_stall=None))
    await asyncio.wrap_future(host._give_back_privately(holding))
    with pytest.raises(UsageError, match="was cancelled"):
        await app._lease_client.run_private(holding.take, name="lease")
    assert await app.leases() == []


FORK = """
import os, sys, traceback
from reltask import App
from reltask.errors import UsageError

app = App("sqlite:///reltask.db")
parent, status = os.getpid(), 1
try:
    with app.lease_sync("reports") as lease:
        child = os.fork()
        if child == 0:
            assert not lease.held
            try:
                lease.guard_sync(None)
            except UsageError as error:
                assert "belongs to the process that acquired it" in str(error)
        else:
            assert os.waitpid(child, 0)[1] == 0
            assert lease.held and app.leases_sync()[0].held, "the child has given nothing back"
    status = 0
except BaseException:
    traceback.print_exc()
finally:
    if os.getpid() != parent:
        os._exit(status)
assert not app.leases_sync()[0].held
app.close()
sys.exit(status)
"""


def test_a_forked_child_does_not_hold_its_parents_lease(tmp_path: Path) -> None:
    """When the child leaves the block, it resigns nothing."""
    done = subprocess.run([sys.executable, "-c", FORK], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


# The user's own writes


def open_file(app: App) -> sqlite3.Connection:
    connection = sqlite3.connect(app.url.removeprefix("sqlite:///"), isolation_level=None)
    connection.execute("create table if not exists written (term integer)")
    return connection


def test_guard_fences_the_users_transaction(app: App, rival: App) -> None:
    """During the term writes commit; after it the database refuses them, even before the loss is announced."""
    with app.lease_sync("reports") as lease, closing(open_file(app)) as connection:
        connection.execute("begin")
        lease.guard_sync(connection)
        connection.execute("insert into written values (?)", (lease.term,))
        connection.execute("commit")
        assert rival.release_lease_sync(Term("reports", lease.term))
        connection.execute("begin")
        with pytest.raises(LeaseLost, match="Term 1 of lease reports is over"):
            lease.guard_sync(connection)
        connection.execute("rollback")
        assert connection.execute("select * from written").fetchall() == [(1,)]


async def test_guard_needs_the_form_that_fits_the_connection(app: App) -> None:
    """A synchronous connection with the coroutine, or something that is no connection, raises a clear error."""
    async with app.lease("reports") as lease:
        with closing(open_file(app)) as connection:
            with pytest.raises(UsageError, match=r"guard_sync"):
                await lease.guard(connection)
            with pytest.raises(UsageError, match="no open transaction"):
                lease.guard_sync(connection)
        with pytest.raises(UsageError, match="cannot use"):
            await lease.guard(object())


async def test_a_caller_cancelled_during_an_outage() -> None:
    """A cancelled wait ends at once while the database is away, and raises nothing else."""
    app = App("postgresql://127.0.0.1:1/nowhere")  # no server listens there
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1), app.lease("reports"):
            pass
    await asyncio.to_thread(app.close)


def test_a_try_ends_before_a_long_lease_would(app: App, tmp_path: Path) -> None:
    """A try with wait=False fails soon on a busy database, however long the lease would be."""
    app.status_sync()
    with closing(sqlite3.connect(tmp_path / "reltask.db", isolation_level=None)) as writer:
        writer.execute("begin immediate")
        with pytest.raises(TransientError), app.lease_sync("reports", ttl="1d", wait=False):
            pass


async def test_guard_after_the_announcement_sends_nothing(app: App) -> None:
    """A lease that was announced as lost stays lost."""
    async with app.lease("reports") as lease:
        pass
    with pytest.raises(LeaseLost, match="resigned"):
        await lease.guard(object())


async def test_guard_in_a_tasks_transaction(app: App) -> None:
    """A lease can also guard a task's own block, in both kinds of context."""
    guarded: list[str] = []
    leases: dict[str, Lease] = {}

    @app.task
    async def in_loop(ctx: Context) -> None:
        async with ctx.transaction() as tx:
            await leases["it"].guard(tx)
            guarded.append("in_loop")

    @app.task
    def in_thread(ctx: SyncContext) -> None:
        with ctx.transaction() as tx:
            leases["it"].guard_sync(tx)
            guarded.append("in_thread")

    async with app.lease("reports", ttl="1m") as lease:
        leases["it"] = lease
        await in_loop.enqueue()
        await in_thread.enqueue()
        await drain(app)
    assert sorted(guarded) == ["in_loop", "in_thread"]
