"""What a contestant's process does, the same for all; only the standard library, because each has its own environment.

    python -m benchmarks.contestants.NAME prepare URL
    python -m benchmarks.contestants.NAME one  URL FIRST COUNT PAUSE   enqueues numbers, one call each
    python -m benchmarks.contestants.NAME many URL FIRST COUNT         enqueues them as the contestant does it in bulk
    python -m benchmarks.contestants.NAME work URL EFFECTS CONCURRENCY until standard input ends

The body of every job is `ran(number)`: one write into memory that the parent shares, and one of the time. So the parent
sees what ran, how often and when, without asking the database or the contestant.
"""

# ruff: noqa: T201 - answers go to the parent by standard output

from __future__ import annotations

import asyncio
import json
import mmap
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

Ran = Callable[[int], None]
STAMP = 8
"""Bytes of a time."""
WARM_UP = 10
"""A producer's first calls connect and prepare; they are not timed."""


class Effects:
    """How often each number ran, and when it last began, in a file that parent and child map into memory."""

    def __init__(self, path: str | Path) -> None:
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 0)
        view, size = memoryview(self._map), len(self._map) // (STAMP + 1)
        self.stamps = view[: STAMP * size].cast("q")
        self.counts = view[STAMP * size :]

    @staticmethod
    def create(path: Path, size: int) -> Path:
        """A file for this many numbers."""
        path.write_bytes(bytes(size * (STAMP + 1)))
        return path

    def ran(self, number: int) -> None:
        """The body of every job."""
        self.counts[number] += 1
        self.stamps[number] = time.monotonic_ns()


class Producer(NamedTuple):
    """How jobs are enqueued."""

    one: Callable[[int], Awaitable[object]]
    many: Callable[[Sequence[int]], Awaitable[object]]


class Contestant(Protocol):
    """What each module provides."""

    async def prepare(self, url: str) -> None:
        """Make the tables."""

    def producer(self, url: str) -> AbstractAsyncContextManager[Producer]:
        """Connect, to enqueue."""

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        """Run jobs, for ever."""


def main(contestant: Contestant) -> None:
    """Do what the command line says."""
    verb, url, *rest = sys.argv[1:]
    if verb == "prepare":
        run(contestant.prepare(url))
    elif verb == "work":
        threading.Thread(target=_end_with_parent, daemon=True).start()
        effects, concurrency = rest
        run(contestant.work(url, Effects(effects).ran, int(concurrency)))
    else:
        first, count, *pause = rest
        numbers = range(int(first), int(first) + int(count))
        print(json.dumps(run(_enqueue(contestant, url, verb, numbers, float(*pause)))))


async def _enqueue(
    contestant: Contestant, url: str, verb: str, numbers: Sequence[int], pause: float
) -> dict[str, object]:
    """Enqueue all; of those after the warm-up, how many they were, how long it took, and when each call began."""
    warm, timed, called = numbers[:WARM_UP], numbers[WARM_UP:], []
    async with contestant.producer(url) as producer:
        for number in warm:
            await producer.one(number)
        await asyncio.sleep(pause)
        began = time.perf_counter()
        if verb == "many":
            await producer.many(timed)
        else:
            for number in timed:
                called.append(time.monotonic_ns())
                await producer.one(number)
                if pause:
                    await asyncio.sleep(pause)
        seconds = time.perf_counter() - began
    return {"timed": len(timed), "seconds": seconds, "called": called}


def _end_with_parent() -> None:
    """End this process at once: the parent has seen by then that everything is committed."""
    sys.stdin.read()
    os._exit(0)


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """On uvloop where the environment has it."""
    try:
        import uvloop  # noqa: PLC0415 - not every environment has it
    except ImportError:
        return asyncio.run(coroutine)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(coroutine)
