"""Connections to SQL Server: threads, timeouts, and what happens to a connection whose answer is overdue."""

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
TARGET = Target(connection_string="", login="sql")


class Wire:
    """The driver's connection, replaced."""

    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


class Lines(Connections):
    """Connections without a server."""

    def __init__(self, pool_size: int = 4, target: Target = TARGET) -> None:
        super().__init__(target, None, MssqlOptions(pool_size=pool_size))
        self.made: list[Wire] = []

    def _open(self) -> Wire:
        self.made.append(Wire())
        return self.made[-1]

    async def ask(self, work: Any = lambda wire: wire) -> Any:
        async with self.take() as line:
            return await line.call(work, PATIENT)

    async def wait_in_vain(self, work: Any) -> None:
        """Send, and time out once the thread has begun: what has not begun is never overdue."""
        begun = threading.Event()

        def begin(wire: Wire) -> Any:
            begun.set()
            return work(wire)

        async def ask() -> None:
            async with self.take() as line:
                # blocks the loop, and with it the timeout
                asyncio.get_running_loop().call_soon(begun.wait, PATIENT)
                await line.call(begin, SOON)

        with pytest.raises(TimeoutError):
            await ask()


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """A statement that takes too long waits for this."""
    opened = threading.Event()
    yield opened
    opened.set()


def fails(error: Exception) -> Any:
    def work(_wire: Wire) -> None:
        raise error

    return work


async def arrival(lines: Lines) -> None:
    """Wait until nothing is overdue."""
    while lines._late:  # noqa: ASYNC110 - the store sends no event
        await asyncio.sleep(0)


async def closed(wire: Wire) -> bool:
    return await asyncio.to_thread(wire.closed.wait, PATIENT)


async def test_a_connection_is_used_again() -> None:
    """The connection returned last is used next."""
    lines = Lines()
    assert await lines.ask() is await lines.ask()
    await lines.close()
    assert lines.made[0].closed.is_set(), "a process may end now"


async def test_an_error_that_the_server_has_answered_costs_no_connection() -> None:
    """A deadlock or a constraint means that the connection is good; a lost one does not."""
    lines = Lines()
    with pytest.raises(AnsweredError):
        await lines.ask(fails(AnsweredError(1205, "deadlocked")))
    assert await lines.ask() is lines.made[0]
    with pytest.raises(AnsweredError):
        await lines.ask(fails(AnsweredError(RESET, "reset")))
    assert await lines.ask() is lines.made[1]
    assert await closed(lines.made[0])


async def test_anything_else_costs_the_connection() -> None:
    """The state of the connection is unknown."""
    lines = Lines()
    with pytest.raises(RuntimeError):
        await lines.ask(fails(RuntimeError()))
    assert await closed(lines.made[0])
    assert await lines.ask() is lines.made[1]


async def test_an_overdue_answer_is_not_waited_for_and_its_connection_returns(gate: threading.Event) -> None:
    """The caller continues; the connection is used again when its thread returns it, and not before."""
    lines = Lines()
    await lines.wait_in_vain(lambda _: gate.wait())
    assert await lines.ask() is lines.made[1]
    gate.set()
    async with lines.take() as other:
        await arrival(lines)
        assert await lines.ask() is lines.made[0]
        assert await other.call(lambda wire: wire, PATIENT) is lines.made[1]


async def test_an_overdue_answer_that_ends_badly_costs_its_connection(gate: threading.Event) -> None:
    """Late or not: a broken connection is closed."""
    lines = Lines()

    def breaks(_wire: Wire) -> None:
        gate.wait()
        raise RuntimeError

    await lines.wait_in_vain(breaks)
    gate.set()
    await arrival(lines)
    assert await closed(lines.made[0])


async def test_a_stopped_body_leaves_no_connection_in_a_transaction(gate: threading.Event) -> None:
    """A body is stopped while its BEGIN is under way: the next transaction must not begin inside that one."""
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


async def test_no_more_connections_to_a_silent_server(gate: threading.Event) -> None:
    """While too many answers are overdue no connections are made: nothing was applied."""
    lines = Lines(pool_size=1)
    for _ in range(LATE):
        await lines.wait_in_vain(lambda _: gate.wait())
    with pytest.raises(TransientError, match="overdue"):
        await lines.ask()
    assert len(lines.made) == LATE


async def test_a_cancelled_caller_leaves_no_connection_in_use(gate: threading.Event) -> None:
    """Cancelling ends the wait; the connection goes to the next caller when it is free."""
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
    """It is closed when it returns."""
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
    """Idle ones are closed; one whose answer is overdue is waited for, and closed by the thread that uses it."""
    monkeypatch.setattr(connections, "_connections", WeakSet())  # only those of this test
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


async def test_a_driver_that_ignores_its_time_to_connect_is_not_waited_for(
    gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The URL's connect_timeout wins over the setting: with encrypt=strict the driver itself knows no timeout."""

    class Silent(Lines):
        def _open(self) -> Wire:
            gate.wait()
            return super()._open()

    monkeypatch.setattr(connections, "OVERTIME", SOON)
    lines = Silent(target=Target(connection_string="", login="sql", connect_timeout=SOON))
    with pytest.raises(TransientError, match="did not answer in time"):
        await asyncio.wait_for(lines.ask(), PATIENT / 2)


async def test_a_refused_login_says_so() -> None:
    """An error while connecting is raised as it is, and nothing stays open."""

    class Refused(Lines):
        def _open(self) -> Wire:
            raise PermanentError("login failed")

    lines = Refused()
    with pytest.raises(PermanentError, match="login failed"):
        await lines.ask()
    assert not lines._idle
    assert not lines._late


async def test_a_connection_that_has_idled_for_long_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure drops it without a word, and the first write on it would be ambiguous."""
    lines = Lines()
    first = await lines.ask()
    monkeypatch.setattr(connections, "IDLE", -1.0)
    assert await lines.ask() is not first
    assert await closed(first)
    await lines.close()


@pytest.mark.parametrize("number", [3906, 978, 40613])
async def test_a_connection_to_an_old_primary_is_closed(number: int) -> None:
    """After a failover it answers as a replica, for as long as it lives."""
    lines = Lines()
    with pytest.raises(AnsweredError):
        await lines.ask(fails(AnsweredError(number, "read-only")))
    assert await lines.ask() is lines.made[1]
    await lines.close()
