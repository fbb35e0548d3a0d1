"""Is the database still as fast, and not bloated, after a million jobs have gone through?

    python -m benchmarks.bloat [--quick]

The jobs come in slices: each is enqueued, and then drained by a worker process. The result is the throughput of the
first and of the last slices, and what is left on disk: `jobs` has no row by then, so all of its size is bloat; `runs`
is the ledger, so its size per run counts. Vacuum is the server's own, with the settings of the tables.
"""

from __future__ import annotations

import statistics
from functools import partial

from benchmarks.contestants import RELTASK
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Stage, UnverifiedError

ENDS = 2
"""Number of slices at each end that are compared."""


def cells(bench: Bench) -> list[Cell]:
    """One long try."""
    slices, jobs = (4, 5_000) if bench.quick else (40, 25_000)
    return [Cell(f"{slices * jobs:,} jobs".replace(",", " "), RELTASK.name, partial(bloat, bench.stage, slices, jobs))]


def bloat(stage: Stage, slices: int, jobs: int) -> Measures:
    """Throughput at both ends, and sizes."""
    numbers, rates = range(jobs), []
    with stage.database(RELTASK) as place:
        for _ in range(slices):
            stage.enqueue(RELTASK, place, "many", numbers)
            with stage.working(RELTASK, place, size=jobs) as work:
                rates.append(jobs / work.finish(RELTASK, place, numbers))
        runs = place.ask("select count(*) from reltask.runs where outcome = 'succeeded'")
        if runs != slices * jobs:
            raise UnverifiedError(f"{slices * jobs} jobs ran, but the ledger has {runs} successes")
        jobs_size = place.ask("select pg_total_relation_size('reltask.jobs')")
        runs_size = place.ask("select pg_total_relation_size('reltask.runs')")
    first, last = statistics.median(rates[:ENDS]), statistics.median(rates[-ENDS:])
    return {
        "first jobs/s": first,
        "last jobs/s": last,
        "last / first": last / first,
        "jobs MB": jobs_size / 1e6,
        "runs bytes/run": runs_size / runs,
    }


QUESTION = Question("bloat", "After many jobs: throughput and sizes", cells)

if __name__ == "__main__":
    main(QUESTION)
