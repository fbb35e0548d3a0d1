"""What do limits cost? The same drain without a limit, with one of running=50, and with a thousand keys of one.

    python -m benchmarks.limits [--quick]

"full keys" drains jobs without a limit beside keys that are full and have a hundred waiting jobs each: a claim has to
cost what it costs without them. "100/s" is how many starts a second a rate of a hundred reaches, with two processes.
"""

from __future__ import annotations

import os
from functools import partial

import psycopg

from benchmarks.contestants import RELTASK
from benchmarks.contestants.reltask_limits import KIND
from benchmarks.drain import drain
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Place, Stage
from benchmarks.usage import cpu_seconds, server_seconds

LIMITED = RELTASK._replace(program="reltask_limits")
UNLIMITED, SHARED, KEYED = "no limit", "running=50", "1 000 keys of 1"
NEXT_TO, PACED = "no limit, beside full keys", "rate 100/s"
RATE, WAITING = 100, 100
FILL = (
    "insert into reltask.limits (name, running, declaration, changed_at) values ('full', 1, '', now())",
    """
    insert into reltask.jobs (id, task, queue, args, next_run_time, limit_key, max_attempts)
    select gen_random_uuid(), 'waiting', 'default', '{}', now(), 'full:' || key, 1
    from generate_series(1, %(keys)s) as key, generate_series(1, %(waiting)s) as nth
    """,
    "delete from reltask.marks",
    """
    insert into reltask.limit_keys (key, name, running, tokens, refilled_at, seq)
    select 'full:' || key, 'full', 1, 0, now(), 1 from generate_series(1, %(keys)s) as key
    """,
    "vacuum analyze reltask.jobs",
    "vacuum reltask.marks",
)
"""All waiting jobs at full keys, as they are after the looks that found no room."""


def cells(bench: Bench) -> list[Cell]:
    """Each with one process of a thousand places."""
    stage, jobs, keys = bench.stage, 10_000 if bench.quick else 50_000, 1_000 if bench.quick else 10_000
    kinds = {UNLIMITED: "plain", SHARED: "shared", KEYED: "keyed"}
    return [
        *(Cell(case, "reltask", partial(limited, stage, kind, jobs), bench.rounds()) for case, kind in kinds.items()),
        Cell(NEXT_TO, "reltask", partial(beside, stage, jobs, keys), 1),
        Cell(PACED, "reltask", partial(pace, stage, 500 if bench.quick else 2_000), 1),
    ]


def limited(stage: Stage, kind: str, jobs: int) -> Measures:
    """A full queue, drained."""
    os.environ[KIND] = kind
    return drain(stage, LIMITED, jobs, 1)


def beside(stage: Stage, jobs: int, keys: int) -> Measures:
    """A full queue, drained beside jobs that wait at full keys."""
    os.environ[KIND] = "plain"
    numbers = range(jobs)
    with stage.database(LIMITED) as place:
        fill(place, keys)
        stage.enqueue(LIMITED, place, "many", numbers)
        # the tables of waiting jobs stay: only those that are enqueued here count
        counted = LIMITED._replace(unfinished="select count(*) from reltask.jobs where task <> 'waiting'")
        with stage.working(LIMITED, place, size=jobs) as work:
            work.wait_until(lambda: work.ran > 0)
            worker, server = cpu_seconds(work.children), server_seconds(stage.server)
            seconds = work.finish(counted, place, numbers)
            worker, server = cpu_seconds(work.children) - worker, server_seconds(stage.server) - server
        return {
            "jobs/s": jobs / seconds,
            "CPU µs/job": worker / jobs * 1e6,
            "server's CPU µs/job": server / jobs * 1e6,
        }


def fill(place: Place, keys: int) -> None:
    """Full keys, and jobs that wait at them."""
    with psycopg.connect(place.url, autocommit=True) as connection:
        for statement in FILL:
            connection.execute(statement, {"keys": keys, "waiting": WAITING})


def pace(stage: Stage, jobs: int) -> Measures:
    """Starts per second, by the ledger, less the burst."""
    os.environ[KIND] = "paced"
    numbers = range(jobs)
    with stage.database(LIMITED) as place:
        stage.enqueue(LIMITED, place, "many", numbers)
        with stage.working(LIMITED, place, size=jobs, processes=2) as work:
            work.finish(LIMITED, place, numbers)
        spread = "extract(epoch from max(claimed_at) - min(claimed_at))"
        starts = place.ask(f"select ((count(*) - 10) / {spread} * 1000)::bigint from reltask.runs")  # noqa: S608
        return {"starts/s": starts / 1000}


QUESTION = Question("limits", "Limits: the same drain, with and without them", cells)

if __name__ == "__main__":
    main(QUESTION)
