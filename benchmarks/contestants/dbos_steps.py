"""dbos: each job is a workflow of STEPS steps, started from a queue that is polled."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# dbos lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from dbos import DBOS, DBOSClient

from benchmarks.contestants.process import Producer, Ran, main

QUEUE = "touches"
STEPS = 20


class Contestant:
    """One workflow."""

    async def prepare(self, url: str) -> None:
        await asyncio.to_thread(launch, url, print, 1)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        client = DBOSClient(system_database_url=url)
        options = {"queue_name": QUEUE, "workflow_name": "touch"}

        async def one(number: int) -> None:
            await client.enqueue_async(options, number)

        async def many(numbers: Sequence[int]) -> None:
            for number in numbers:
                await one(number)

        yield Producer(one, many)
        client.destroy()

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        await asyncio.to_thread(launch, url, ran, concurrency)
        await asyncio.Event().wait()


def launch(url: str, ran: Ran, concurrency: int) -> None:
    """Start DBOS, which makes its tables, in this process."""
    DBOS(config={"name": "bench", "system_database_url": url, "console_log_level": "ERROR"})

    @DBOS.step()
    def step(number: int) -> int:
        ran(number)
        return number

    @DBOS.workflow(name="touch")
    def touch(number: int) -> None:
        for nth in range(STEPS):
            step(number * STEPS + nth)

    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=concurrency, polling_interval_sec=0.1)


if __name__ == "__main__":
    main(Contestant())
