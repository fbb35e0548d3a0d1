"""The throttle of PostgreSQL's signals, and what one carries."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from reltask.stores.postgres.connections import Signals
from reltask.stores.postgres.values import from_payload, to_payload
from reltask.stores.waking import News
from reltask.testing import virtual_time


def recorded() -> tuple[Signals, list[News]]:
    """Signals, and what they sent."""
    sent: list[News] = []

    async def send(news: News) -> None:
        sent.append(news)

    return Signals(send), sent


def run_virtually(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario in virtual time, where a pause of the machine does not count."""
    with virtual_time() as time:
        time.run(scenario)


def test_burst_of_signals_is_two_and_the_last_is_not_dropped() -> None:
    """The first signal of a burst is sent at once; all others become one more, with the earliest time."""
    signals, sent = recorded()
    start = datetime(2026, 1, 1, tzinfo=UTC)

    async def scenario() -> None:
        for minutes in (9, 3, 2, 7):
            await signals.signal(start + timedelta(minutes=minutes))
        assert sent == [start + timedelta(minutes=9)]
        await signals.close()

    run_virtually(scenario())
    assert sent == [start + timedelta(minutes=9), start + timedelta(minutes=2)]


def test_a_signal_for_now_replaces_one_for_later() -> None:
    """Signals that wait for the throttle are merged, and "now" is the earliest."""
    signals, sent = recorded()
    later = datetime(2026, 1, 1, tzinfo=UTC)

    async def scenario() -> None:
        for due_at in (None, later, None, later):
            await signals.signal(due_at)
        await signals.close()

    run_virtually(scenario())
    assert sent == [None, None]


def test_cancelling_a_close_leaves_the_planned_signal() -> None:
    """Another caller's signal is still sent, and closing again waits for it."""
    signals, sent = recorded()

    async def scenario() -> None:
        await signals.signal(None)
        await signals.signal(None)
        closing = asyncio.create_task(signals.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        await signals.close()

    run_virtually(scenario())
    assert sent == [None, None]


def test_closing_waits_for_the_signal_that_is_being_sent() -> None:
    """It uses a connection that could not be closed: its loop would end under it."""
    sent: list[str] = []

    async def send(_: News) -> None:
        sent.append("begun")
        await asyncio.sleep(1)
        sent.append("ended")

    async def scenario() -> None:
        signals = Signals(send)
        first = asyncio.create_task(signals.signal(None))
        await asyncio.sleep(0)
        await signals.signal(None)
        await first
        assert sent == ["begun", "begun", "ended"]
        await signals.close()

    run_virtually(scenario())
    assert sent == ["begun", "begun", "ended", "ended"]


def test_a_cancelled_planned_signal_makes_room_for_the_next() -> None:
    """If every task of the loop is cancelled, closing does not raise, and later signals are sent."""
    signals, sent = recorded()

    async def scenario() -> None:
        await signals.signal(None)
        await signals.signal(None)
        (planned,) = asyncio.all_tasks() - {asyncio.current_task()}
        planned.cancel()
        await signals.close()
        await signals.signal(None)
        await signals.close()

    run_virtually(scenario())
    assert sent == [None, None]


@pytest.mark.parametrize("due_at", [None, datetime(2026, 1, 1, 12, 30, 0, 123456, tzinfo=UTC)])
def test_a_signal_carries_its_time(due_at: datetime | None) -> None:
    """A time arrives as it was sent; an unreadable one means now."""
    assert from_payload(to_payload(due_at)) == due_at
    assert from_payload("yesterday") is None
