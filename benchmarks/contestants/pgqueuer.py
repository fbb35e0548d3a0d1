"""pgqueuer on asyncpg: claims in batches, completes in batches, wakes by a trigger's NOTIFY."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# pgqueuer lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

from benchmarks.contestants.process import Producer, Ran, main


class Contestant:
    """One entrypoint."""

    async def prepare(self, url: str) -> None:
        await Queries(AsyncpgDriver(await asyncpg.connect(url))).install()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        connection = await asyncpg.connect(url)
        queries = Queries(AsyncpgDriver(connection))

        async def one(number: int) -> None:
            await queries.enqueue("touch", b"%d" % number)

        async def many(numbers: Sequence[int]) -> None:
            for first in range(0, len(numbers), 1000):
                batch = numbers[first : first + 1000]
                await queries.enqueue(["touch"] * len(batch), [b"%d" % n for n in batch], [0] * len(batch))

        yield Producer(one, many)
        await connection.close()

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        queue = PgQueuer(AsyncpgDriver(await asyncpg.connect(url)))

        @queue.entrypoint("touch")
        async def touch(job: Any) -> None:
            ran(int(job.payload))

        await queue.run(dequeue_timeout=timedelta(seconds=30), batch_size=concurrency)


if __name__ == "__main__":
    main(Contestant())
