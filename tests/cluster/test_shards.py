"""Real processes on several shards: exactly once while workers are killed, and while a server is away."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg
import pytest

from reltask import App
from reltask.model.shards import shard_of
from reltask.stores.postgres.schema import migrate_postgres
from tests.cluster.shard_workload import make_app
from tests.postgres_server import PostgresServer, run_in_thread

pytestmark = pytest.mark.slow

JOBS = 200
PATIENCE = 120.0
CREDITS = "create table public.credits (job uuid, account int)"


@pytest.fixture(params=[1, 2, 4, 8])
def urls(request: pytest.FixtureRequest, postgres_server: PostgresServer) -> Iterator[list[str]]:
    """Shards as schemas of one database, with a table for the tasks' own writes."""
    base = postgres_server.create_database("sharded")
    urls = [f"{base}?schema=shard_{n}" for n in range(request.param)]
    for url in urls:
        run_in_thread(lambda url=url: migrate_postgres(url))  # type: ignore[misc] # mypy cannot infer it
    postgres_server.execute(CREDITS, database="sharded")
    yield urls
    postgres_server.drop_database("sharded")


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may kill."""
    with PostgresServer() as own:
        yield own


async def test_exactly_once_while_workers_are_killed(urls: list[str], tmp_path: Path) -> None:
    """Three workers, two of them killed with SIGKILL in the middle and replaced: each job's effect exists once."""
    app = make_app(urls)
    credit = app.get_task("credit")
    async with app.producer():
        jobs = await app.enqueue_many(credit.using(key=f"account-{n}").call(n) for n in range(JOBS))
        with started(urls, tmp_path, count=3) as workers:
            async with asyncio.timeout(PATIENCE):
                for killed in (0, 1):
                    while len(await app.runs(limit=JOBS)) < JOBS * (killed + 1) // 4:  # noqa: ASYNC110 - other processes
                        await asyncio.sleep(0.02)
                    workers[killed].send_signal(signal.SIGKILL)
                    workers[killed].wait()
                    workers.append(start(urls, tmp_path))
                for job in jobs:
                    await job.result()
    await check(app, urls)


async def test_exactly_once_while_a_server_crashes(
    postgres_url: str, own_server: PostgresServer, tmp_path: Path
) -> None:
    """The server of a shard is killed under load. Meanwhile the other's jobs all run; when it is back, the rest do."""
    urls = [postgres_url, own_server.create_database("second")]
    await migrate_postgres(urls[1])
    for url in urls:
        await execute(url, CREDITS)
    app = make_app(urls)
    credit = app.get_task("credit")
    async with app.producer():
        jobs = await app.enqueue_many(credit.using(key=f"account-{n}").call(n) for n in range(JOBS))
        here, there = ([job for job in jobs if shard_of(job.id) == number] for number in (0, 1))
        with started(urls, tmp_path, count=2):
            async with asyncio.timeout(PATIENCE):
                await there[0].result()
                assert (await effects(urls[1])).total() < len(there), "the server is killed under load"
                await asyncio.to_thread(own_server.kill)
                for job in here:
                    await job.result()
                assert (await effects(urls[0])).total() == len(here)
                await asyncio.to_thread(own_server.start)
                for job in there:
                    await job.result()
    await check(app, urls)


def start(urls: list[str], directory: Path) -> subprocess.Popen[bytes]:
    """A worker process."""
    with (directory / "log").open("a") as log:
        command = [sys.executable, "-m", "tests.cluster.shard_workload", *urls]
        return subprocess.Popen(command, stdout=log, stderr=log)


@contextmanager
def started(urls: list[str], directory: Path, *, count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Some worker processes, which are stopped in the end; more may be added."""
    workers = [start(urls, directory) for _ in range(count)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait()


async def check(app: App, urls: list[str]) -> None:
    """Each job has succeeded once, and its effect exists once, on the shard that its id names."""
    report = await app.audit()
    app.close()
    assert report.violations == 0
    assert report.tasks[0].succeeded == JOBS
    found = sum([await effects(url) for url in {url.partition("?")[0] for url in urls}], Counter[tuple[int, int]]())
    assert Counter(account for account, _ in found.elements()) == Counter(range(JOBS))
    assert {shard for _, shard in found} == set(range(len(urls)))


async def effects(url: str) -> Counter[tuple[int, int]]:
    """The accounts in a database, and the shard of the job that wrote each."""
    connection = await asyncpg.connect(url)
    rows = await connection.fetch("select job, account from public.credits")
    await connection.close()
    return Counter((row["account"], shard_of(row["job"]) or 0) for row in rows)


async def execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(statement)
    await connection.close()
