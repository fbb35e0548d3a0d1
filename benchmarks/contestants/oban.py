"""oban on psycopg: claims in batches, completes in batches, wakes by NOTIFY. It needs Python 3.12."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc,attr-defined"
# oban lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from benchmarks.contestants.process import Producer, Ran, main

bodies: list[Ran] = []
"""What `Touch` calls: oban finds workers by their importable names, so they cannot close over anything."""


@worker(queue="default")
class Touch:
    """The job."""

    async def process(self, job: Any) -> None:
        bodies[0](job.args["number"])


class Contestant:
    """One worker class."""

    async def prepare(self, url: str) -> None:
        async with AsyncConnectionPool(url, open=False) as pool:
            await install(pool)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        async with AsyncConnectionPool(url, open=False) as pool, Oban(pool=pool) as oban:

            async def one(number: int) -> None:
                await oban.enqueue(Touch.new({"number": number}))

            async def many(numbers: Sequence[int]) -> None:
                for first in range(0, len(numbers), 1000):
                    await oban.enqueue_many(*(Touch.new({"number": n}) for n in numbers[first : first + 1000]))

            yield Producer(one, many)

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        bodies.append(ran)
        async with AsyncConnectionPool(url, open=False) as pool, Oban(pool=pool, queues={"default": concurrency}):
            await asyncio.Event().wait()


if __name__ == "__main__":
    main(Contestant())
