"""How many steps of durable functions per second does one worker process record? And what does a step cost?

    python -m benchmarks.durable [--quick]

A hundred functions of twenty steps each run at once; each step is recorded before the next begins. The clock runs from
the first step to the moment at which the database says that no function is left.
"""

from __future__ import annotations

from functools import partial

from benchmarks.contestants import DBOS, RELTASK, Contestant
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Stage
from benchmarks.usage import cpu_seconds, server_seconds

STEPS = 20
AT_ONCE = 100
CASE = f"{AT_ONCE} functions of {STEPS} steps at once"
CONTESTANTS = [
    RELTASK._replace(program="reltask_steps", concurrency=AT_ONCE, jobs=1_000),
    DBOS._replace(program="dbos_steps", concurrency=AT_ONCE, jobs=100),
]


def cells(bench: Bench) -> list[Cell]:
    """reltask, and DBOS, which keeps its steps in PostgreSQL as well."""
    return [
        Cell(CASE, each.name, partial(record, bench.stage, each, each.jobs), bench.rounds(slow=each.slow))
        for each in CONTESTANTS
    ]


def record(stage: Stage, contestant: Contestant, functions: int) -> Measures:
    """Steps per second, and what each costs the worker process and the server."""
    steps = range(functions * STEPS)
    with stage.database(contestant) as place:
        stage.enqueue(contestant, place, "many", range(functions))
        with stage.working(contestant, place, size=len(steps)) as work:
            work.wait_until(lambda: work.ran > 0)
            worker, server = cpu_seconds(work.children), server_seconds(stage.server)
            seconds = work.finish(contestant, place, steps)
            worker, server = cpu_seconds(work.children) - worker, server_seconds(stage.server) - server
            return {
                "steps/s": len(steps) / seconds,
                "CPU µs/step": worker / len(steps) * 1e6,
                "server's CPU µs/step": server / len(steps) * 1e6,
            }


QUESTION = Question("durable", "Durable functions: steps recorded", cells)

if __name__ == "__main__":
    main(QUESTION)
