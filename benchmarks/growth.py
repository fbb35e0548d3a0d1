"""Does a claim cost more when the table is larger? With a thousand, a hundred thousand and a million jobs in it.

    python -m benchmarks.growth [--quick]

    future   none of them is due: the claim finds nothing
    due      all of them are due: the claim takes BATCH
    unknown  all are due, but of task names that this worker does not know; one job that it knows comes with each claim
    paused   the same with jobs of its own task that are paused
    held     the same with jobs of a task that it knows, and that is paused

Each kind is spread over 1, 4 and 10 priorities and over 1 and 20 queues. The tables of the three sizes exist side by
side, each in a database of its own, and are claimed from in turns; `growth` is the median at the largest over the
median at the smallest. What a claim took is completed before the next, outside the measured time.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from contextlib import AsyncExitStack, ExitStack
from datetime import timedelta
from functools import partial
from typing import NamedTuple
from uuid import uuid4

import psycopg

from benchmarks.contestants import RELTASK
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Stage, UnverifiedError
from reltask.model.job import ClaimRequest, Completion, NewJob
from reltask.stores.postgres.store import PostgresStore

BATCH = 10
FILL = """
    insert into reltask.jobs (id, task, queue, priority, next_run_time, paused_at)
    select gen_random_uuid(),
           case %(kind)s when 'unknown' then 'foreign' || n %% 7 when 'held' then 'held' else 'known' end,
           'queue' || n %% %(queues)s,
           n %% %(priorities)s,
           statement_timestamp() + case when %(kind)s = 'future' then interval '1 day' else interval '-1 day' end
               + n * interval '1 millisecond',
           case when %(kind)s = 'paused' then statement_timestamp() end
    from generate_series(1, %(rows)s) as n
"""


PAUSE = "insert into reltask.pauses (kind, name, paused_by, paused_at) values ('task', 'held', 'bench', now())"


class Shape(NamedTuple):
    """What lies in the table."""

    kind: str
    priorities: int
    queues: int

    def __str__(self) -> str:
        return f"{self.kind}, {self.priorities} priorities, {self.queues} queues"

    @property
    def taken(self) -> int:
        """How many jobs each claim must get."""
        return {"future": 0, "due": BATCH}.get(self.kind, 1)

    def sizes(self, *, quick: bool) -> list[int]:
        if quick:
            return [1_000, 100_000]
        return [1_000, 100_000, 1_000_000 if self.kind in {"future", "due"} else 300_000]


def cells(bench: Bench) -> list[Cell]:
    """Every combination; a quick run takes the one with most lanes."""
    spreads = [(10, 20)] if bench.quick else [(p, q) for p in (1, 4, 10) for q in (1, 20)]
    shapes = [Shape(kind, *spread) for kind in ("future", "due", "unknown", "paused", "held") for spread in spreads]
    claims = 40 if bench.quick else 90
    return [
        Cell(str(shape), RELTASK.name, partial(grow, bench.stage, shape, shape.sizes(quick=bench.quick), claims))
        for shape in shapes
    ]


def grow(stage: Stage, shape: Shape, sizes: list[int], claims: int) -> Measures:
    """Milliseconds of a claim at each size."""
    with ExitStack() as places:
        urls = [places.enter_context(stage.database(RELTASK)).url for _ in sizes]
        for url, rows in zip(urls, sizes, strict=True):
            fill(url, shape, rows)
        medians = asyncio.run(claim_in_turns(urls, shape, claims))
    measured = {f"{rows:,} ms".replace(",", " "): median for rows, median in zip(sizes, medians, strict=True)}
    return {**measured, "growth": medians[-1] / medians[0]}


def fill(url: str, shape: Shape, rows: int) -> None:
    """Put the rows there, and let the server settle."""
    with psycopg.connect(url, autocommit=True) as connection:
        values = {"kind": shape.kind, "queues": shape.queues, "priorities": shape.priorities, "rows": rows}
        connection.execute(FILL.encode(), values)
        connection.execute(PAUSE)
        connection.execute("vacuum analyze reltask.jobs")


async def claim_in_turns(urls: list[str], shape: Shape, claims: int) -> list[float]:
    """The median of each database's claims, in milliseconds."""
    async with AsyncExitStack() as closing:
        stores = [PostgresStore(url) for url in urls]
        for store in stores:
            await store.open()
            closing.push_async_callback(store.close)
            await claim(store, shape)  # warm up
        took: list[list[float]] = [[] for _ in stores]
        for _ in range(claims):
            for index, store in enumerate(stores):
                took[index].append(await claim(store, shape))
    return [statistics.median(each) for each in took]


async def claim(store: PostgresStore, shape: Shape) -> float:
    """One claim's milliseconds."""
    if shape.taken == 1:
        await store.enqueue_jobs([NewJob(id=uuid4(), task="known", queue="queue0")])
    began = time.perf_counter()
    answer = await store.claim_jobs(request(shape))
    took = (time.perf_counter() - began) * 1000
    if len(answer.claims) != shape.taken:
        raise UnverifiedError(f"a claim took {len(answer.claims)} jobs instead of {shape.taken}")
    await store.complete_jobs("bench", [Completion(hold=claim.hold) for claim in answer.claims])
    return took


def request(shape: Shape) -> ClaimRequest:
    """What a worker of these queues would ask; one of ten places goes to the job that has waited longest."""
    return ClaimRequest(
        worker="bench",
        token=uuid4(),
        queues=[f"queue{number}" for number in range(shape.queues)],
        tasks=["held", "known"],
        limit=BATCH,
        lock_timeout=timedelta(minutes=2),
        isolated=True,
        alive_for=timedelta(minutes=2),
        oldest=1,
    )


QUESTION = Question("growth", "Growth of a claim's cost with the table", cells)

if __name__ == "__main__":
    main(QUESTION)
