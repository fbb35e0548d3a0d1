"""Real processes on several shards: exactly once while workers are killed."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import asyncpg
import pytest

from reltask.model.shards import shard_of
from reltask.stores.postgres.schema import migrate_postgres
from tests.cluster.shard_workload import make_app
from tests.postgres_server import PostgresServer, run_in_thread

pytestmark = pytest.mark.slow

JOBS = 200
PATIENCE = 120.0


@pytest.fixture(params=[1, 2, 4, 8])
def urls(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[list[str]]:
    """Shards as schemas of one database, with a table for the tasks' own writes."""
    base = postgres_server.create_database("sharded")
    urls = [f"{base}?schema=shard_{n}" for n in range(request.param)]
    for url in urls:
        run_in_thread(lambda url=url: migrate_postgres(url))  # type: ignore[misc] # mypy cannot infer it
    postgres_server.execute("create table public.credits (job uuid, account int)", database="sharded")
    yield urls
    postgres_server.drop_database("sharded")


async def test_exactly_once_while_workers_are_killed(urls: list[str], tmp_path: Path) -> None:
    """Three workers, two of them killed with SIGKILL in the middle and replaced: each job's effect exists once."""
    app = make_app(urls)
    credit = app.get_task("credit")
    log = (tmp_path / "log").open("w")

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.cluster.shard_workload", *urls]
        return subprocess.Popen(command, stdout=log, stderr=log)

    async with app.producer():
        jobs = await app.enqueue_many(credit.using(key=f"account-{n}").call(n) for n in range(JOBS))
        workers = [start() for _ in range(3)]
        try:
            async with asyncio.timeout(PATIENCE):
                for killed in (0, 1):
                    while len(await app.runs(limit=JOBS)) < JOBS * (killed + 1) // 4:  # noqa: ASYNC110 - other processes
                        await asyncio.sleep(0.02)
                    workers[killed].send_signal(signal.SIGKILL)
                    workers[killed].wait()
                    workers.append(start())
                for job in jobs:
                    await job.result()
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.wait()
            log.close()
        report = await app.audit()
    app.close()
    assert report.violations == 0
    assert report.tasks[0].succeeded == JOBS
    connection = await asyncpg.connect(urls[0].partition("?")[0])
    rows = await connection.fetch("select job, account from public.credits")
    await connection.close()
    assert Counter(row["account"] for row in rows) == Counter(range(JOBS))
    assert len({shard_of(row["job"]) for row in rows}) == len(urls)
