"""huey on SQLite, with one thread. It removes a job before it runs it: a crash loses what ran."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# huey lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from huey import SqliteHuey

from benchmarks.contestants.process import Producer, Ran, main


class Contestant:
    """One task."""

    async def prepare(self, url: str) -> None:
        make_huey(url, print)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        _, touch = make_huey(url, print)

        async def one(number: int) -> None:
            touch(number)

        async def many(numbers: Sequence[int]) -> None:
            for number in numbers:
                touch(number)

        yield Producer(one, many)

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        huey, _ = make_huey(url, ran)
        huey.create_consumer(workers=concurrency, periodic=False).run()


def make_huey(url: str, ran: Ran) -> tuple[Any, Any]:
    """The queue, and its task."""
    huey = SqliteHuey(filename=url.removeprefix("sqlite:///"))

    @huey.task(name="touch")
    def touch(number: int) -> None:
        ran(number)

    return huey, touch


if __name__ == "__main__":
    main(Contestant())
