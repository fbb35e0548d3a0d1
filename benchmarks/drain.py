"""How many jobs per second does one worker process take from a full queue to "committed as done"? And two of them?

    python -m benchmarks.drain [--quick]

The queue is filled first. The clock runs from the first body to the moment at which the database says that nothing is
left; so it counts claims, bodies, completions and commits, and not the start of a process.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contestants import FLOOR, FLOOR_100, FULL, ON_POSTGRES, PGQUEUER, RELTASK, Contestant
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Stage
from benchmarks.usage import cpu_seconds, server_seconds


def cells(bench: Bench) -> list[Cell]:
    """All contestants with one process, the fast ones also with two."""
    alone = [cell(bench, contestant, 1) for contestant in (*ON_POSTGRES, FLOOR_100)]
    return [*alone, *(cell(bench, contestant, 2) for contestant in (FLOOR, RELTASK, PGQUEUER))]


def cell(bench: Bench, contestant: Contestant, processes: int) -> Cell:
    """One contestant with this number of processes."""
    case = "one process" if processes == 1 else f"{processes} processes"
    jobs = contestant.jobs * (1 if bench.quick else FULL)
    return Cell(
        case,
        contestant.name,
        partial(drain, bench.stage, contestant, jobs, processes),
        bench.rounds(slow=contestant.slow),
    )


def drain(stage: Stage, contestant: Contestant, jobs: int, processes: int) -> Measures:
    """Jobs per second, and what each costs the worker processes and the server."""
    numbers = range(jobs)
    with stage.database(contestant) as place:
        stage.enqueue(contestant, place, "many", numbers)
        with stage.working(contestant, place, size=jobs, processes=processes) as work:
            work.wait_until(lambda: work.ran > 0)
            worker, server = cpu_seconds(work.children), server_seconds(stage.server)
            seconds = work.finish(contestant, place, numbers)
            worker, server = cpu_seconds(work.children) - worker, server_seconds(stage.server) - server
            return {
                "jobs/s": jobs / seconds,
                "CPU µs/job": worker / jobs * 1e6,
                "server's CPU µs/job": server / jobs * 1e6,
            }


QUESTION = Question("drain", "Throughput: a full queue, drained", cells)

if __name__ == "__main__":
    main(QUESTION)
