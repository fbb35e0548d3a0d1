"""How long after its due time does a recurring job start? With one worker, and with fifty waiting for it.

    python -m benchmarks.punctuality [--quick]

All settings are the defaults, with a poll of 60 s. The job recurs every second on a fixed grid, so due times are exact.
Lateness is the time of the body's first line less the slot's nominal time in the ledger; server and workers share a
clock. Every slot must have run, and once.
"""

from __future__ import annotations

import time
from functools import partial

import psycopg

from benchmarks import crew
from benchmarks.contestants import RELTASK
from benchmarks.contestants.process import Effects
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.pickup import percentiles
from benchmarks.stage import Stage, UnverifiedError, Work, started

PER_PROCESS = 10
WARM_UP = 3
"""Slots that do not count: workers still start."""
EXACT = 1e-6
"""Seconds that floating point may be off."""
SLOTS = "select slot_no, extract(epoch from nominal_time)::float from reltask.runs order by slot_no"


def cells(bench: Bench) -> list[Cell]:
    """One worker, and fifty."""
    slots, rounds = (8, 1) if bench.quick else (100, 3)
    return [
        Cell("one worker" if workers == 1 else f"{workers} workers", RELTASK.name, try_once, rounds)
        for workers in (1, 50)
        for try_once in [partial(punctuality, bench.stage, workers, slots)]
    ]


def punctuality(stage: Stage, workers: int, slots: int) -> Measures:
    """Milliseconds of lateness."""
    wanted = WARM_UP + slots
    with stage.database(RELTASK) as place:
        sizes = [min(PER_PROCESS, workers - begun) for begun in range(0, workers, PER_PROCESS)]
        files = [Effects.create(stage.directory / f"effects_{index}", wanted + 100) for index in range(len(sizes))]
        commands = [
            crew.command(place.url, size, effects=file, every="1s") for size, file in zip(sizes, files, strict=True)
        ]
        with started(commands) as children:
            work = Work(RELTASK.name, children, [Effects(file) for file in files])
            work.wait_until(lambda: place.ask("select count(*) from reltask.workers") == workers)
            first = place.ask("select slot_no + 1 from reltask.jobs") + WARM_UP
            work.wait_until(lambda: place.ask("select slot_no from reltask.jobs") > first + slots)
            return percentiles(_lateness(place.url, work, range(first, first + slots)))


def _lateness(url: str, work: Work, slots: range) -> list[float]:
    """Milliseconds from each slot's nominal time to its body."""
    work.verify(slots)
    with psycopg.connect(url) as connection:
        nominal: dict[int, float] = dict(connection.execute(SLOTS).fetchall())
    if any(abs(nominal[slot] - nominal[slots[0]] - (slot - slots[0])) > EXACT for slot in slots):
        raise UnverifiedError("the slots are not a second apart: some second was passed over")
    offset = time.time_ns() - time.monotonic_ns()
    return [(stamp + offset) / 1e6 - nominal[slot] * 1e3 for slot, stamp in zip(slots, work.began(slots), strict=True)]


QUESTION = Question("punctuality", "Punctuality of a recurring job", cells)

if __name__ == "__main__":
    main(QUESTION)
