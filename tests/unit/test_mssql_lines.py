"""Lines to SQL Server: threads, patience, and what becomes of a connection whose answer is overdue."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any
from weakref import WeakSet

import pytest

from reltask.errors import PermanentError, TransientError
from reltask.stores.mssql import connections
from reltask.stores.mssql.connections import LATE, AnsweredError, Connections, MssqlOptions, close_all
from reltask.stores.mssql.url import Target

SOON = 0.02
PATIENT = 10.0
RESET = 10054


class Wire:
    """What the driver would have made."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Lines(Connections):
    """Connections that lead nowhere."""

    def __init__(self, pool_size: int = 4) -> None:
        super().__init__(Target(connection_string="", login="sql"), None, MssqlOptions(pool_size=pool_size))
        self.made: list[Wire] = []

    def _open(self) -> Wire:
        self.made.append(Wire())
        return self.made[-1]

    async def ask(self, work: Any = lambda wire: wire) -> Any:
        async with self.take() as line:
            return await line.call(work, PATIENT)

    async def wait_in_vain(self, work: Any) -> None:
        """Ask, and lose patience when the thread has begun the work: what has not begun is never overdue."""
        begun = threading.Event()

        def begin(wire: Wire) -> Any:
            begun.set()
            return work(wire)

        async def ask() -> None:
            async with self.take() as line:
                # holds up the loop, and with it the end of the patience
                asyncio.get_running_loop().call_soon(begun.wait, PATIENT)
                await line.call(begin, SOON)

        with pytest.raises(TimeoutError):
            await ask()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """What a statement waits for that takes too long."""
    opened = threading.Event()
    yield opened
    opened.set()


def fails(error: Exception) -> Any:
    def work(_wire: Wire) -> None:
        raise error

    return work


async def arrival(lines: Lines) -> None:
    """Until nothing is overdue any more."""
    while lines._late:  # noqa: ASYNC110 - the store tells nobody
        await asyncio.sleep(0)


async def closed(wire: Wire) -> bool:
    return await asyncio.to_thread(wire.closed.wait, PATIENT)


async def test_a_connection_is_used_again() -> None:
    """The last one given back is the next one taken."""
    lines = Lines()
    assert await lines.ask() is await lines.ask()
    await lines.close()
    assert lines.made[0].closed.is_set(), "a process may end now"


async def test_an_error_that_the_server_has_answered_costs_no_connection() -> None:
    """A deadlock or a constraint says that all is well with the connection; a lost one does not."""
    lines = Lines()
    with pytest.raises(AnsweredError):
        await lines.ask(fails(AnsweredError(1205, "deadlocked")))
    assert await lines.ask() is lines.made[0]
    with pytest.raises(AnsweredError):
        await lines.ask(fails(AnsweredError(RESET, "reset")))
    assert await lines.ask() is lines.made[1]
    assert await closed(lines.made[0])


async def test_anything_else_costs_the_connection() -> None:
    """Nobody knows what is left on it."""
    lines = Lines()
    with pytest.raises(RuntimeError):
        await lines.ask(fails(RuntimeError()))
    assert await closed(lines.made[0])
    assert await lines.ask() is lines.made[1]


async def test_an_overdue_answer_is_not_waited_for_and_its_connection_comes_back(gate: threading.Event) -> None:
    """Whoever asked goes on; the connection is used again when its thread has it back, and not before."""
    lines = Lines()
    await lines.wait_in_vain(lambda _: gate.wait())
    assert await lines.ask() is lines.made[1]
    gate.set()
    async with lines.take() as other:
        await arrival(lines)
        assert await lines.ask() is lines.made[0]
        assert await other.call(lambda wire: wire, PATIENT) is lines.made[1]


async def test_an_overdue_answer_that_ends_badly_costs_its_connection(gate: threading.Event) -> None:
    """Late or not: what broke is closed."""
    lines = Lines()

    def breaks(_wire: Wire) -> None:
        gate.wait()
        raise RuntimeError

    await lines.wait_in_vain(breaks)
    gate.set()
    await arrival(lines)
    assert await closed(lines.made[0])


async def test_whoever_leaves_a_transaction_leaves_no_connection_in_one(gate: threading.Event) -> None:
    """A body that is stopped while its BEGIN is under way: the next transaction must not begin inside that one."""
    lines = Lines()
    begun = threading.Event()

    def work(_wire: Wire) -> None:
        begun.set()
        gate.wait()

    async def begin() -> None:
        async with lines.take(in_transaction=True) as line:
            await line.call(work, PATIENT)

    beginning = asyncio.create_task(begin())
    await asyncio.to_thread(begun.wait, PATIENT)
    beginning.cancel()
    with pytest.raises(asyncio.CancelledError):
        await beginning
    gate.set()
    await arrival(lines)
    assert await closed(lines.made[0])
    assert await lines.ask() is lines.made[1]


async def test_a_silent_server_is_not_stormed(gate: threading.Event) -> None:
    """With so many answers overdue no more connections are made: certainly nothing was applied."""
    lines = Lines(pool_size=1)
    for _ in range(LATE):
        await lines.wait_in_vain(lambda _: gate.wait())
    with pytest.raises(TransientError, match="overdue"):
        await lines.ask()
    assert len(lines.made) == LATE


async def test_who_is_cancelled_leaves_no_connection_in_use(gate: threading.Event) -> None:
    """Cancelling ends the waiting; the connection is the next one's when it is free."""
    lines = Lines()
    begun = threading.Event()

    def work(_wire: Wire) -> None:
        begun.set()
        gate.wait()

    asking = asyncio.ensure_future(lines.ask(work))
    await asyncio.to_thread(begun.wait, PATIENT)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    gate.set()
    await arrival(lines)
    assert await lines.ask() is lines.made[0]


async def test_closing_does_not_wait_for_an_overdue_answer(gate: threading.Event) -> None:
    """It is closed when it comes back."""
    lines = Lines()
    await lines.wait_in_vain(lambda _: gate.wait())
    await lines.close()
    assert not lines.made[0].closed.is_set()
    gate.set()
    await arrival(lines)
    assert await closed(lines.made[0])


async def test_a_process_closes_every_connection_before_the_driver_does(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The idle ones are closed; one whose answer is overdue is waited for, and closed by the thread that uses it."""
    monkeypatch.setattr(connections, "_connections", WeakSet())  # none but those of this test
    lines = Lines()
    await lines.wait_in_vain(lambda _: gate.wait())
    await lines.ask()
    overdue, idle = lines.made
    leaving = asyncio.create_task(asyncio.to_thread(close_all))
    assert await closed(idle)
    assert not overdue.closed.is_set()
    gate.set()
    await leaving
    assert overdue.closed.is_set()


async def test_a_refused_login_says_so() -> None:
    """An error while connecting arrives as it is, and leaves nothing behind."""

    class Refused(Lines):
        def _open(self) -> Wire:
            raise PermanentError("login failed")

    lines = Refused()
    with pytest.raises(PermanentError, match="login failed"):
        await lines.ask()
    assert not lines._idle
    assert not lines._late
