"""How listeners share the signs of life: one sends, whatever their number, and its successor is found."""

from __future__ import annotations

import heapq
import itertools
import random

import pytest

from reltask.stores.postgres.listening import EVERY, SILENCE, Silence

HOUR = 3600.0


def sends(count: int, seed: int, *, latency: float, dies_at: float = HOUR) -> list[tuple[float, int]]:
    """Which of `count` listeners sent when, in an hour. The sender at `dies_at` falls silent."""
    rng = random.Random(seed)
    listeners = [Silence(0.0, rng.uniform) for _ in range(count)]
    sent: list[tuple[float, int]] = []
    wire: list[tuple[float, int]] = []
    dead: set[int] = set()
    now = 0.0
    while now < HOUR:
        number = min((n for n in range(count) if n not in dead), key=lambda n: listeners[n].due_at)
        due = listeners[number].due_at
        if wire and wire[0][0] <= due:
            now, sender = heapq.heappop(wire)
            for n, listener in enumerate(listeners):
                listener.heard(now, yields=sender < n)
            continue
        now = due
        if now >= dies_at and not dead:
            dead.add(sent[-1][1])
            continue
        listeners[number].sent(now)
        sent.append((now, number))
        heapq.heappush(wire, (now + latency, number))
    return sent


@pytest.mark.parametrize("count", [1, 10, 300])
@pytest.mark.parametrize("latency", [0.001, 0.2])
def test_the_cost_does_not_grow_with_the_listeners(count: int, latency: float) -> None:
    """One statement per five seconds in all; a few more only when a sender has to be found."""
    for seed in range(2):
        sent = sends(count, seed, latency=latency)
        assert len(sent) <= HOUR / EVERY + 0.1 * count
        assert len({number for when, number in sent if when > 60}) == 1


@pytest.mark.parametrize("count", [2, 100])
def test_a_sender_that_falls_silent_is_replaced(count: int) -> None:
    """The others hear nothing for at most the longest silence."""
    for seed in range(5):
        times = [when for when, _ in sends(count, seed, latency=0.01, dies_at=HOUR / 2)]
        assert max(later - sooner for sooner, later in itertools.pairwise(times)) <= SILENCE[1] + EVERY


def test_a_listener_that_hears_nothing_becomes_due() -> None:
    """Another's sign of life or an answer postpones it; without either it has to ask."""
    listener = Silence(0.0, random.Random(1).uniform)
    for now in (10.0, 20.0):
        listener.heard(now, yields=True)
        assert SILENCE[0] <= listener.due_at - now <= SILENCE[1]
    listener.answered(30.0)
    assert SILENCE[0] <= listener.due_at - 30.0 <= SILENCE[1]
    listener.sent(50.0)
    listener.answered(52.0)
    assert listener.due_at == 50.0 + EVERY
