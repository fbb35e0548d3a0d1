"""chancy on psycopg, with its executor for asyncio and with eager polling."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# chancy lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from chancy import Chancy, Job, Queue, Worker

from benchmarks.contestants.process import Producer, Ran, main

QUEUE = "touches"
bodies: list[Ran] = []
"""What `touch` calls: chancy finds functions by their importable names, so they cannot close over anything."""


async def touch(*, number: int) -> None:
    """The job."""
    bodies[0](number)


class Contestant:
    """One queue."""

    async def prepare(self, url: str) -> None:
        async with Chancy(url, log=logging.getLogger("chancy")) as chancy:
            await chancy.migrate()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        async with Chancy(url, log=logging.getLogger("chancy")) as chancy:

            async def one(number: int) -> None:
                await chancy.push(make_job(number))

            async def many(numbers: Sequence[int]) -> None:
                async for _ in chancy.push_many([make_job(number) for number in numbers]):
                    pass

            yield Producer(one, many)

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        bodies.append(ran)
        queue = Queue(QUEUE, concurrency=concurrency, executor=Chancy.Executor.Async, eager_polling=True)
        async with Chancy(url, log=logging.getLogger("chancy")) as chancy:
            await chancy.declare(queue, upsert=True)
            async with Worker(chancy) as worker:
                await worker.wait_for_shutdown()


def make_job(number: int) -> Job:
    """The job of a number."""
    return Job.from_func(touch, queue=QUEUE, kwargs={"number": number})


if __name__ == "__main__":
    main(Contestant())
