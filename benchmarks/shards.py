"""What does a system of shards cost beside one install? Schemas of one PostgreSQL database, one worker process.

    python -m benchmarks.shards [JOBS]     renews benchmarks/results/shards.json

On one server shards cannot be faster: the question is what each further one costs. `CPU` is the worker's own, for
enqueueing, claiming, running and settling one empty job. The idle cost is the worker's statements per second, measured
over some seconds with nothing due.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from pathlib import Path

import asyncpg
from msgspec import Struct, to_builtins

from reltask import App
from reltask.stores.postgres.schema import migrate_postgres
from tests.postgres_server import PostgresServer

COUNTS = (0, 1, 2, 4, 8)
"""Numbers of shards; 0: an install without shards."""
SETTLE, IDLE = 15.0, 15.0
"""Seconds."""
RESULT = Path(__file__).parent / "results" / "shards.json"
TRANSACTIONS = "select xact_commit from pg_stat_database where datname = current_database()"


class Measured(Struct):
    """One system."""

    jobs_per_second: int
    cpu_us: int
    idle_per_second: float


async def measure(base: str, shards: int, jobs: int) -> Measured:
    """Enqueue, drain, and idle."""
    urls = [f"{base}?schema=shard_{number}" for number in range(shards)] or [base]
    for url in urls:
        await migrate_postgres(url)
    settings = {"worker.concurrency": 100}
    app = App(shards=urls, settings=settings) if shards else App(base, settings=settings)

    @app.task
    async def nothing(_: int) -> None: ...

    async with app.producer():
        started, used = time.perf_counter(), _cpu()
        await app.enqueue_many(nothing.call(number) for number in range(jobs))
        async with app.worker() as worker:
            await worker.drained()
            seconds, spent = time.perf_counter() - started, _cpu() - used
            await asyncio.sleep(SETTLE)
            before = await _transactions(base)
            await asyncio.sleep(IDLE)
            idle = (await _transactions(base) - before) / IDLE
        report = await app.audit()
    app.close()
    if report.violations or report.tasks[0].succeeded != jobs:
        raise RuntimeError("not every job ran once")
    return Measured(round(jobs / seconds), round(spent / jobs * 1e6), round(idle, 1))


def _cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def _transactions(url: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(TRANSACTIONS))
    finally:
        await connection.close()


def main() -> None:
    """Print the table, and keep it."""
    jobs = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    results: dict[str, Measured] = {}
    sys.stdout.write("shards  jobs/s  CPU µs/job  idle transactions/s\n")
    with PostgresServer() as server:
        for shards in COUNTS:
            base = server.create_database(f"shards_{shards}")
            found = asyncio.run(measure(base, shards, jobs))
            name = str(shards) if shards else "none"
            figures = f"{found.jobs_per_second:6.0f}  {found.cpu_us:10.0f}  {found.idle_per_second:19.1f}"
            sys.stdout.write(f"{name:>6}  {figures}\n")
            results[name] = found
    RESULT.write_text(json.dumps(to_builtins(results), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
