"""How many jobs per second from a SQLite file? By one process, and by four at once on the same file.

    python -m benchmarks.sqlite [--quick]

Measured as in `drain.py`. huey removes a job before it runs it and writes nothing afterwards, reltask claims, runs,
writes the ledger and removes it. "Database is locked" in any process's output fails the measurement.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contestants import FULL, ON_SQLITE, Contestant
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Stage, UnverifiedError

PROCESSES = 4


def cells(bench: Bench) -> list[Cell]:
    """Both, alone and with others."""
    return [
        Cell(case, each.name, partial(drain, bench.stage, each, jobs, processes), bench.rounds())
        for case, processes in (("one process", 1), (f"{PROCESSES} processes", PROCESSES))
        for each in ON_SQLITE
        for jobs in [each.jobs * (1 if bench.quick else FULL)]
    ]


def drain(stage: Stage, contestant: Contestant, jobs: int, processes: int) -> Measures:
    """Jobs per second."""
    numbers = range(jobs)
    with stage.file(contestant) as place:
        stage.enqueue(contestant, place, "many", numbers)
        with stage.working(contestant, place, size=jobs, processes=processes) as work:
            seconds = work.finish(contestant, place, numbers)
            if any("locked" in child.said for child in work.children):
                raise UnverifiedError("a process said: database is locked")
    return {"jobs/s": jobs / seconds}


QUESTION = Question("sqlite", "Throughput on SQLite", cells)

if __name__ == "__main__":
    main(QUESTION)
