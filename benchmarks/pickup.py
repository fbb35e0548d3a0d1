"""How long does a job wait that is enqueued for an idle worker? From the call that enqueues it to its first line.

    python -m benchmarks.pickup [--quick]

Producer and worker are two processes. Jobs come one at a time, PAUSE apart, so that each finds the worker idle. The
floor is INSERT, NOTIFY after the commit, and a claim by a loop that listens. On SQLite workers watch the file.
"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.contestants import ON_POSTGRES, ON_SQLITE, Contestant
from benchmarks.contestants.process import WARM_UP
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Place, Stage

PAUSE = 0.05
"""Seconds between two jobs."""
POSTGRES, SQLITE = "PostgreSQL", "SQLite"


def cells(bench: Bench) -> list[Cell]:
    """All contestants, on PostgreSQL and on SQLite."""
    jobs, rounds = (25, 1) if bench.quick else (200, 5)
    return [
        *(Cell(POSTGRES, each.name, partial(on_postgres, bench.stage, each, jobs), rounds) for each in ON_POSTGRES),
        *(Cell(SQLITE, each.name, partial(on_sqlite, bench.stage, each, jobs), rounds) for each in ON_SQLITE),
    ]


def on_postgres(stage: Stage, contestant: Contestant, jobs: int) -> Measures:
    """In a database of its own."""
    with stage.database(contestant) as place:
        return pick_up(stage, contestant, place, jobs)


def on_sqlite(stage: Stage, contestant: Contestant, jobs: int) -> Measures:
    """In a file of its own."""
    with stage.file(contestant) as place:
        return pick_up(stage, contestant, place, jobs)


def pick_up(stage: Stage, contestant: Contestant, place: Place, jobs: int) -> Measures:
    """Milliseconds from call to body."""
    first, numbers = range(WARM_UP), range(WARM_UP, 2 * WARM_UP + jobs)
    with stage.working(contestant, place, size=numbers.stop) as work:
        stage.enqueue(contestant, place, "one", first)
        work.wait_until(lambda: work.ran == len(first))  # the worker is up, and has nothing to do
        called = stage.enqueue(contestant, place, "one", numbers, pause=PAUSE)["called"]
        work.wait_until(lambda: work.ran == numbers.stop)
        work.verify(numbers)
        began = work.began(numbers)[WARM_UP:]
    return percentiles([(body - call) / 1e6 for body, call in zip(began, called, strict=True)])


def percentiles(milliseconds: list[float]) -> Measures:
    """What is reported about a distribution."""
    p99 = statistics.quantiles(milliseconds, n=100, method="inclusive")[98]
    return {"p50 ms": statistics.median(milliseconds), "p99 ms": p99, "most ms": max(milliseconds)}


QUESTION = Question("pickup", "Pick-up of a job that is enqueued for an idle worker", cells)

if __name__ == "__main__":
    main(QUESTION)
