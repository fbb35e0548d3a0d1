"""The floor: what the same driver does without any semantics. No fence, no ledger, no heartbeat, no retry, no types.

    claim    update … returning, up to BATCH rows at once, skipping what others hold
    body     called in a loop
    done     delete by id, the whole batch at once

It enqueues by a bare INSERT, and in bulk by COPY. It sends NOTIFY after the INSERT has committed, because NOTIFY in
the transaction would serialize the server's commits, and only if a worker is to be woken.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import asyncpg

from benchmarks.contestants.process import Producer, Ran, main

TABLE = """
    create table floor_jobs (id bigint generated always as identity primary key, number integer not null,
                             taken boolean not null default false)
        with (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_cost_delay = 0);
    create index floor_free on floor_jobs (id) where not taken;
"""
CLAIM = """
    update floor_jobs set taken = true
    where id = any (array(select id from floor_jobs where not taken order by id limit $1 for update skip locked))
    returning id, number
"""
DONE = "delete from floor_jobs where id = any ($1::bigint[])"
INSERT = "insert into floor_jobs (number) values ($1)"
SESSION = {"jit": "off", "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off"}


class Floor:
    """Claim, delete, and nothing else."""

    async def prepare(self, url: str) -> None:
        connection = await asyncpg.connect(url)
        await connection.execute(TABLE)
        await connection.close()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        connection = await asyncpg.connect(url)

        async def one(number: int) -> None:
            await connection.execute(INSERT, number)
            await connection.execute("notify floor")

        async def many(numbers: Sequence[int]) -> None:
            await connection.copy_records_to_table("floor_jobs", records=[(n,) for n in numbers], columns=["number"])

        yield Producer(one, many)
        await connection.close()

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        connection, woken = await asyncpg.connect(url, server_settings=SESSION), asyncio.Event()
        await connection.add_listener("floor", lambda *_: woken.set())
        while True:
            woken.clear()
            batch = await connection.fetch(CLAIM, concurrency)
            for _, number in batch:
                ran(number)
            if batch:
                await connection.execute(DONE, [job_id for job_id, _ in batch])
            else:
                await woken.wait()


if __name__ == "__main__":
    main(Floor())
