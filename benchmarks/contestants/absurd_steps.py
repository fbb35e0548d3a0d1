"""absurd: each job is a task of STEPS checkpoints. Its tables are in a file of its own sources, which is not on PyPI.

BENCH_ABSURD_SQL names that file: sql/absurd.sql of github.com/earendil-works/absurd, tag 0.4.0.
"""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# absurd lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psycopg
from absurd_sdk import AsyncAbsurd

from benchmarks.contestants.process import Producer, Ran, main

QUEUE = "touches"
STEPS = 20
SCHEMA = "BENCH_ABSURD_SQL"
UUIDS = (
    b'create extension if not exists "uuid-ossp";',
    b"create function uuid_generate_v4() returns uuid language sql as 'select gen_random_uuid()';",
)
"""The server of the benchmarks has no such extension; absurd needs one function of it."""


class Contestant:
    """One task; its worker is the asynchronous one, which has a single connection."""

    async def prepare(self, url: str) -> None:
        if SCHEMA not in os.environ:
            raise SystemExit(f"{SCHEMA} does not name absurd's schema")
        schema = await asyncio.to_thread(Path(os.environ[SCHEMA]).read_bytes)
        schema = schema.replace(*UUIDS)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as connection:
            await connection.execute(schema)
        app = AsyncAbsurd(url, queue_name=QUEUE)
        await app.create_queue()
        await app.close()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        app = AsyncAbsurd(url, queue_name=QUEUE)

        async def one(number: int) -> None:
            await app.spawn("touch", {"number": number}, queue=QUEUE)

        async def many(numbers: Sequence[int]) -> None:
            for number in numbers:
                await one(number)

        yield Producer(one, many)
        await app.close()

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        app = AsyncAbsurd(url, queue_name=QUEUE)

        @app.register_task("touch")
        async def touch(given: dict[str, int], ctx: Any) -> None:
            for nth in range(STEPS):
                number = given["number"] * STEPS + nth

                async def step(number: int = number) -> int:
                    ran(number)
                    return number

                await ctx.step("step", step)

        await app.start_worker(concurrency=concurrency, poll_interval=0.1)


if __name__ == "__main__":
    main(Contestant())
