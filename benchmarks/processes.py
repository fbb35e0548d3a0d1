"""What happens when many worker processes drain one table? No collapse, no deadlock, no job twice.

    python -m benchmarks.processes [--quick]

Beyond the number of cores more processes cannot be faster; the question is how much slower they are. `jobs/claim` says
how many jobs each claim statement took, empty ones included.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contestants import FULL, RELTASK
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Stage, UnverifiedError

CLAIMS = """
    select coalesce(sum(calls), 0) from pg_stat_statements
    where dbid = (select oid from pg_database where datname = current_database()) and query like '%lanes as%'
"""
DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"


def cells(bench: Bench) -> list[Cell]:
    """From one to sixteen."""
    counts, jobs, rounds = ((1, 4, 8), RELTASK.jobs, 1) if bench.quick else ((1, 2, 4, 8, 16), RELTASK.jobs * FULL, 3)
    return [
        Cell(f"{count} processes", RELTASK.name, partial(drain, bench.stage, jobs, count), rounds) for count in counts
    ]


def drain(stage: Stage, jobs: int, processes: int) -> Measures:
    """Jobs per second and per claim."""
    numbers = range(jobs)
    with stage.database(RELTASK) as place:
        place.ask("select count(*) from (select pg_stat_statements_reset()) as reset")
        stage.enqueue(RELTASK, place, "many", numbers)
        with stage.working(RELTASK, place, size=jobs, processes=processes) as work:
            seconds = work.finish(RELTASK, place, numbers)
        if deadlocks := place.ask(DEADLOCKS):
            raise UnverifiedError(f"{deadlocks} deadlocks")
        return {"jobs/s": jobs / seconds, "jobs/claim": jobs / place.ask(CLAIMS)}


QUESTION = Question("processes", "Many worker processes on one table", cells)

if __name__ == "__main__":
    main(QUESTION)
