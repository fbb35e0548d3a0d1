"""What do a hundred idle workers cost? Statements and connections at the server, CPU and memory of each.

    python -m benchmarks.idle [--quick]

All settings are the defaults. `pg_stat_statements` counts what arrives, as `coordination.py` explains, which looks at
the same thing in more detail. To have a hundred on a small machine, PER_PROCESS share a process, and nothing else.
The window is a multiple of a minute, so that every poll falls into it as often as it should. Memory is that of a
process with one worker, soon after its start, with everything that it has imported.
"""

from __future__ import annotations

import time
from functools import partial

import psycopg

from benchmarks import crew
from benchmarks.contestants import RELTASK
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Child, Place, Stage, Work, started
from benchmarks.usage import cpu_seconds, memory

PER_PROCESS = 25
WORKERS = 100
STATEMENTS = """
    select coalesce(sum(calls), 0) from pg_stat_statements
    where toplevel and dbid = (select oid from pg_database where datname = %s)
"""
CONNECTIONS = "select count(*) from pg_stat_activity where datname = %s and application_name like 'reltask%%'"


def cells(bench: Bench) -> list[Cell]:
    """A hundred workers for a while; one for its memory."""
    settle, window = (5.0, 60.0) if bench.quick else (90.0, 120.0)
    return [
        Cell(f"{WORKERS} workers", RELTASK.name, partial(idle, bench.stage, settle, window)),
        Cell("a process with one worker", RELTASK.name, partial(alone, bench.stage), bench.rounds(slow=True)),
    ]


def idle(stage: Stage, settle: float, window: float) -> Measures:
    """What all of them cost in a window of time."""
    with stage.database(RELTASK) as place, started(crew.crews(place.url, WORKERS, PER_PROCESS)) as children:
        _started(place, children, WORKERS)
        time.sleep(settle)
        name = place.url.rpartition("/")[2]
        with psycopg.connect(stage.server.url(), autocommit=True) as observer:
            before, cpu, began = _one(observer, STATEMENTS, name), cpu_seconds(children), time.monotonic()
            time.sleep(window)
            seconds = time.monotonic() - began
            statements = _one(observer, STATEMENTS, name) - before
            return {
                "statements/s": statements / seconds,
                "connections/worker": _one(observer, CONNECTIONS, name) / WORKERS,
                "CPU %/worker": (cpu_seconds(children) - cpu) / seconds / WORKERS * 100,
            }


def alone(stage: Stage) -> Measures:
    """Megabytes that a worker's process has in memory."""
    with stage.database(RELTASK) as place, started([crew.command(place.url, 1)]) as children:
        _started(place, children, 1)
        time.sleep(2.0)
        return {"memory MB": memory(children[0])}


def _started(place: Place, children: list[Child], workers: int) -> None:
    work = Work(RELTASK.name, children, [])
    work.wait_until(lambda: place.ask("select count(*) from reltask.workers") == workers)


def _one(observer: psycopg.Connection[tuple[float, ...]], query: str, name: str) -> float:
    row = observer.execute(query.encode(), [name]).fetchone()
    assert row is not None
    return float(row[0])


QUESTION = Question("idle", "Idle cost", cells)

if __name__ == "__main__":
    main(QUESTION)
