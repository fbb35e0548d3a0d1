"""Does a leader that prunes a million ledger rows slow claims down?

    make bench-prune

One process enqueues, claims and completes jobs, one after another, and times each claim. Meanwhile a worker in another
process leads, and prunes the ledger as any worker does, in batches of at most 1 000 rows with pauses between them:

    claims   ········ before ········ | ·············· while pruning ·············· | ········ after ········
    leader                            | ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ ▪ |

Then the same number of rows in a partition of the ledger, which is dropped whole, and claims beside it.

A shared machine has slow moments of its own. So the question is not whether a claim ever takes twice the median, but
whether more of them do while the leader prunes than before and after.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import asyncpg
from msgspec import Struct, to_builtins

from reltask import App
from reltask.model.job import ClaimRequest, Completion, NewJob
from reltask.stores.postgres.schema import migrate_postgres
from reltask.stores.postgres.store import PostgresStore
from tests.postgres_server import PostgresServer

ROWS = 50_000 if os.environ.get("QUICK") else 1_000_000
BASELINE = 5.0 if os.environ.get("QUICK") else 30.0
"""Seconds of claims before, and after."""
RESULT = Path(__file__).parent / "results" / "prune.json"
HISTORY = """
    insert into reltask.runs (job_id, fence, slot_no, task, queue, worker, attempt, nominal_time, due_at, claimed_at,
                              finished_at, outcome, ends_job)
    select gen_random_uuid(), 1, 1, 'old', 'default', 'w', 1, moment, moment, moment, moment, 'succeeded', true
    from (
        select now() - interval '30 days' + interval '20 days' * (n / $1::int::float8) as moment
        from generate_series(1, $1::int) as n
    ) as old
"""
"""A ledger of twenty days that ended ten days ago."""
PARTITION = """
    create table reltask.runs_old partition of reltask.runs
        for values from ('01000000-0000-0000-0000-000000000000') to ('01800000-0000-0000-0000-000000000000')
"""
IN_PARTITION = HISTORY.replace("gen_random_uuid()", "('017' || substr(gen_random_uuid()::text, 4))::uuid")
LEFT = "select count(*) from (select from reltask.runs where finished_at < now() - interval '1 day' limit 1) as old"


class Phase(Struct, frozen=True):
    """How long claims took, in milliseconds."""

    claims: int
    median: float
    p99: float
    most: float
    slow: float
    """The share of claims that took more than twice the median of the time before."""


async def claim_until(store: PostgresStore, done: asyncio.Event) -> list[float]:
    """Milliseconds of one claim after another."""
    took: list[float] = []
    request = ClaimRequest(
        worker="bench",
        token=uuid4(),
        queues=["default"],
        tasks=["new"],
        limit=1,
        lock_timeout=timedelta(minutes=2),
        isolated=True,
        alive_for=timedelta(minutes=2),
    )
    while not done.is_set():
        await store.enqueue_jobs([NewJob(id=uuid4(), task="new")])
        began = time.perf_counter()
        answer = await store.claim_jobs(request)
        took.append((time.perf_counter() - began) * 1000)
        await store.complete_jobs("bench", [Completion(hold=claim.hold) for claim in answer.claims])
    return took


async def claim_for(store: PostgresStore, seconds: float) -> list[float]:
    """Milliseconds of the claims during this time."""
    done = asyncio.Event()
    asyncio.get_running_loop().call_later(seconds, done.set)
    return await claim_until(store, done)


async def claim_while_pruning(store: PostgresStore, url: str) -> tuple[list[float], float]:
    """Claims until the last old row is gone, and the seconds that it took."""
    done = asyncio.Event()
    began = time.monotonic()

    async def watch() -> None:
        connection = await asyncpg.connect(url)
        while await connection.fetchval(LEFT):  # noqa: ASYNC110 - it happens in another process
            await asyncio.sleep(0.25)
        await connection.close()
        done.set()

    watching = asyncio.create_task(watch())
    took = await claim_until(store, done)
    await watching
    return took, time.monotonic() - began


@contextmanager
def leader(url: str) -> Iterator[None]:
    """A worker in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.prune", "--lead", url]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)  # noqa: S603
    try:
        yield
    finally:
        process.communicate()


async def lead(url: str) -> None:
    """A worker that keeps no more than a day, until standard input ends."""
    app = App(url, settings={"maintenance.keep_runs": "1d", "maintenance.prune": "1s"})
    async with app.worker():
        await asyncio.to_thread(sys.stdin.read)


async def measure(url: str) -> dict[str, object]:
    """The three phases."""
    await migrate_postgres(url)
    connection = await asyncpg.connect(url)
    await connection.execute(HISTORY, ROWS, timeout=600)
    await connection.execute("vacuum analyze", timeout=600)
    await connection.close()
    store = PostgresStore(url)
    await store.open()
    await claim_for(store, BASELINE / 10)  # warm up
    before = await claim_for(store, BASELINE)
    with leader(url):
        pruning, seconds = await claim_while_pruning(store, url)
    after = await claim_for(store, BASELINE)
    await store.close()
    twice = 2 * statistics.median(before)
    phases = {"before": before, "pruning": pruning, "after": after}
    milliseconds = {name: to_builtins(phase(took, twice)) for name, took in phases.items()}
    return {"rows": ROWS, "seconds": round(seconds, 1), "milliseconds": milliseconds}


async def measure_partition(url: str) -> dict[str, object]:
    """The same rows in one partition: how long it takes to drop it, and what the claims beside that took."""
    await migrate_postgres(url, partition_days=7)
    connection = await asyncpg.connect(url)
    await connection.execute("alter table reltask.runs detach partition reltask.runs_before")
    await connection.execute(PARTITION)
    await connection.execute(IN_PARTITION, ROWS, timeout=600)
    await connection.execute("vacuum analyze", timeout=600)
    store, leader = PostgresStore(url), PostgresStore(url)
    await store.open()
    await claim_for(store, BASELINE / 10)  # warm up
    done = asyncio.Event()
    claims = asyncio.create_task(claim_until(store, done))
    began = time.monotonic()
    while await connection.fetchval(LEFT):
        await leader.prune_runs(older_than=timedelta(days=1), most=10 * ROWS, leader=None, limit=1)
    seconds = time.monotonic() - began
    done.set()
    took = await claims
    for one in (store, leader, connection):
        await one.close()
    return {"seconds": round(seconds, 3), "longest claim, ms": round(max(took), 1)}


def phase(took: list[float], twice: float) -> Phase:
    """What a phase's claims amount to."""
    return Phase(
        claims=len(took),
        median=round(statistics.median(took), 3),
        p99=round(statistics.quantiles(took, n=100)[98], 3),
        most=round(max(took), 3),
        slow=round(sum(one > twice for one in took) / len(took), 4),
    )


def main() -> None:
    """Measure, or be the leader."""
    if sys.argv[1:2] == ["--lead"]:
        asyncio.run(lead(sys.argv[2]))
        return
    with PostgresServer() as server:
        result = asyncio.run(measure(server.create_database("prune")))
        result["partition"] = asyncio.run(measure_partition(server.create_database("partition")))
    text = json.dumps(result, indent=2)
    print(text)  # noqa: T201 - a program's output
    if not os.environ.get("QUICK"):
        RESULT.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
