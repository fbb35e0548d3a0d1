"""How many steps of durable functions per second does one worker process record? And what does a step cost?

    python -m benchmarks.durable [--quick]

A hundred functions of twenty steps each run at once; each step is recorded before the next begins. The clock runs from
the first step to the moment at which the database says that no function is left.

The second question is how late a suspended function is claimed, after its wake time, by the database's clock: alone,
and with a hundred thousand others asleep in the same table.
"""

from __future__ import annotations

from functools import partial

import psycopg

from benchmarks.contestants import ABSURD, DBOS, RELTASK, Contestant
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.pickup import percentiles
from benchmarks.stage import Stage
from benchmarks.usage import cpu_seconds, server_seconds

STEPS = 20
AT_ONCE = 100
CASE = f"{AT_ONCE} functions of {STEPS} steps at once"
CONTESTANTS = [
    RELTASK._replace(program="reltask_steps", concurrency=AT_ONCE, jobs=1_000),
    DBOS._replace(program="dbos_steps", concurrency=AT_ONCE, jobs=100),
    ABSURD._replace(concurrency=AT_ONCE),
]


NAPS = RELTASK._replace(program="reltask_naps", concurrency=AT_ONCE)
SLEEPERS = 100_000
SLEEP = """
    insert into reltask.jobs (id, task, args, next_run_time, not_before, suspended, steps)
    select gen_random_uuid(), 'touch', '{"number": 0}', statement_timestamp(),
           statement_timestamp() + make_interval(days => 1, secs => n * 0.1), true, 1
    from generate_series(1, %s) as n
"""
LATE = """
    select 1000 * extract(epoch from claimed_at - due_at)::float
    from reltask.runs where outcome = 'succeeded'
"""


def cells(bench: Bench) -> list[Cell]:
    """reltask, and DBOS and absurd, which keep their steps in PostgreSQL as well; then reltask's sleepers."""
    steps = [
        Cell(CASE, each.name, partial(record, bench.stage, each, each.jobs), bench.rounds(slow=each.slow))
        for each in CONTESTANTS
    ]
    naps = 100 if bench.quick else 500
    return steps + [
        Cell(
            f"resumed beside {asleep:,} sleepers".replace(",", " "),
            NAPS.name,
            partial(resume, bench.stage, naps, asleep),
        )
        for asleep in (0, SLEEPERS)
    ]


def resume(stage: Stage, naps: int, asleep: int) -> Measures:
    """Milliseconds from the wake time to the claim."""
    with stage.database(NAPS) as place:
        with psycopg.connect(place.url) as connection:
            connection.execute(SLEEP, (asleep,))
            connection.execute("analyze reltask.jobs")
        stage.enqueue(NAPS, place, "many", range(naps))
        with stage.working(NAPS, place, size=naps) as work:
            work.wait_until(lambda: place.ask("select count(*) from reltask.jobs") == asleep)
            work.verify(range(naps))
        with psycopg.connect(place.url) as connection:
            return percentiles([late for (late,) in connection.execute(LATE)])


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
