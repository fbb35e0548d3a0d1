"""saq on PostgreSQL through psycopg. It has no way to enqueue many jobs at once without waiting for them."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# saq lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from saq import Queue, Worker

from benchmarks.contestants.process import Producer, Ran, main


class Contestant:
    """One function."""

    async def prepare(self, url: str) -> None:
        queue = Queue.from_url(url)
        await queue.connect()
        await queue.disconnect()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        queue = Queue.from_url(url)
        await queue.connect()

        async def one(number: int) -> None:
            await queue.enqueue("touch", number=number)

        async def many(numbers: Sequence[int]) -> None:
            for number in numbers:
                await one(number)

        yield Producer(one, many)
        await queue.disconnect()

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        async def touch(_context: Any, *, number: int) -> None:
            ran(number)

        queue = Queue.from_url(url)
        await queue.connect()
        await Worker(queue, functions=[("touch", touch)], concurrency=concurrency).start()


if __name__ == "__main__":
    main(Contestant())
