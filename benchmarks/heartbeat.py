"""What do heartbeats cost, and are they on time, while one worker holds ten thousand sleeping jobs?

    python -m benchmarks.heartbeat [--quick]

The jobs are asynchronous bodies that sleep for longer than the measurement. The result is the statements per beat and
thousand jobs (one, by the contract), how much older than one interval the oldest heartbeat in the table ever was, and
the CPU of the worker. No run may be lost or abandoned.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

import psycopg

from benchmarks import crew
from benchmarks.contestants import RELTASK
from benchmarks.contestants.process import Effects
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Child, Place, Stage, UnverifiedError, Work, started
from benchmarks.usage import cpu_seconds

FILL = """
    insert into reltask.jobs (id, task, args, next_run_time)
    select gen_random_uuid(), 'rest', json_build_object('number', n, 'seconds', 3600), statement_timestamp()
    from generate_series(0, %s - 1) as n
"""
OLDEST = """
    select coalesce(extract(milliseconds from max(statement_timestamp() - heartbeat_at)), 0)
    from reltask.jobs where locked_by is not null
"""
BEATS = """
    select coalesce(sum(calls), 0) from pg_stat_statements
    where dbid = (select oid from pg_database where datname = current_database()) and query like '%as stray%'
"""


def cells(bench: Bench) -> list[Cell]:
    """One worker, full."""
    jobs, lock, intervals = (10_000, 12.0, 2) if bench.quick else (10_000, 120.0, 4)
    case = f"{jobs:,} sleeping jobs".replace(",", " ")
    return [Cell(case, RELTASK.name, partial(heartbeat, bench.stage, jobs, lock, intervals))]


def heartbeat(stage: Stage, jobs: int, lock: float, intervals: int) -> Measures:
    """Costs and delays over a number of intervals."""
    file = Effects.create(stage.directory / "effects", jobs)
    with stage.database(RELTASK) as place:
        with psycopg.connect(place.url) as connection:
            connection.execute(FILL.encode(), [jobs])
        settings = [f"--set=worker.concurrency={jobs}", f"--set=worker.lock_timeout={lock:g}s"]
        with started([[*crew.command(place.url, 1, effects=file), *settings]]) as children:
            work = Work(RELTASK.name, children, [Effects(file)])
            work.wait_until(lambda: work.ran == jobs)
            found = _measure(place, children, jobs, lock / 4, intervals)
            work.verify(range(jobs))
            if ended := place.ask("select count(*) from reltask.runs"):
                raise UnverifiedError(f"{ended} of the sleeping jobs were lost or abandoned")
    return found


def _measure(place: Place, children: Sequence[Child], jobs: int, interval: float, intervals: int) -> Measures:
    beats, cpu, began = place.ask(BEATS), cpu_seconds(children), time.monotonic()
    oldest = 0
    while time.monotonic() < began + interval * intervals:
        oldest = max(oldest, place.ask(OLDEST))
        time.sleep(0.2)
    seconds = time.monotonic() - began
    return {
        "statements/beat/1000 jobs": (place.ask(BEATS) - beats) / (seconds / interval) / (jobs / 1000),
        "oldest beat beyond an interval, ms": oldest - interval * 1000,
        "CPU %": (cpu_seconds(children) - cpu) / seconds * 100,
    }


QUESTION = Question("heartbeat", "Heartbeats of ten thousand running jobs", cells)

if __name__ == "__main__":
    main(QUESTION)
