"""How many jobs per second does one process enqueue: one call each, and many at once? And several processes at a time?

    python -m benchmarks.enqueue [--quick]

One call each means one after the other, each acknowledged before the next: what a web request does. The floor sends a
bare INSERT and a NOTIFY, and in bulk a COPY. No worker runs meanwhile. The jobs are counted in the database afterwards.

Several producers at a time show whether enqueueing serializes the server's commits, as NOTIFY in a transaction does.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from benchmarks.contestants import FLOOR, ON_POSTGRES, RELTASK, Contestant
from benchmarks.harness import Bench, Cell, Measures, Question, main
from benchmarks.stage import Place, Stage, UnverifiedError

ONE_BY_ONE, MANY = "one call each", "many at once"
PRODUCERS = 4


def cells(bench: Bench) -> list[Cell]:
    """All contestants one by one, and in bulk those that can."""
    singles, bulk = (1_000, 10_000) if bench.quick else (5_000, 50_000)

    def cell(case: str, contestant: Contestant, verb: str, jobs: int, producers: int = 1) -> Cell:
        try_once = partial(enqueue, bench.stage, contestant, verb, jobs, producers)
        return Cell(case, contestant.name, try_once, bench.rounds(slow=contestant.slow))

    return [
        *(cell(ONE_BY_ONE, contestant, "one", singles) for contestant in ON_POSTGRES),
        *(cell(MANY, contestant, "many", bulk) for contestant in ON_POSTGRES if contestant.bulk),
        *(cell(f"{PRODUCERS} producers", contestant, "one", singles, PRODUCERS) for contestant in (FLOOR, RELTASK)),
    ]


def enqueue(stage: Stage, contestant: Contestant, verb: str, jobs: int, producers: int) -> Measures:
    """Jobs per second, of all producers together."""
    shares = [range(first, first + jobs // producers) for first in range(0, jobs, jobs // producers)]
    with stage.database(contestant) as place, ThreadPoolExecutor(producers) as pool:
        answers = list(pool.map(lambda share: stage.enqueue(contestant, place, verb, share), shares))
        verify(place, contestant, jobs)
    return {"jobs/s": sum(each["timed"] for each in answers) / max(each["seconds"] for each in answers)}


def verify(place: Place, contestant: Contestant, jobs: int) -> None:
    """All of them are in the database."""
    found = place.ask(contestant.unfinished)
    if found != jobs:
        raise UnverifiedError(f"{jobs} jobs were enqueued, {found} are in the database")


QUESTION = Question("enqueue", "Enqueueing", cells)

if __name__ == "__main__":
    main(QUESTION)
