"""One shape for every question: cells, tried in turns, reported as rows.

A cell is one contestant in one case, and `try_once` measures it. All cells of a question take turns, round after
round, every other round backwards, so that a slow moment of the machine does not hit one contestant alone. A cell that
fails is not tried again, and its row says why; it is never left out.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.stage import Stage, open_stage

Measures = dict[str, float]
"""What one try found, by name and unit."""


class Cell(NamedTuple):
    """One contestant in one case."""

    case: str
    contestant: str
    try_once: Callable[[], Measures]
    rounds: int = 1


class Row(Struct, frozen=True, kw_only=True):
    """What all tries of a cell found about one measure."""

    question: str
    case: str
    contestant: str
    measure: str
    median: float | None = None
    least: float | None = None
    most: float | None = None
    rounds: int = 0
    failure: str | None = None


class Bench(NamedTuple):
    """What a question has to work with."""

    stage: Stage
    quick: bool

    def rounds(self, *, slow: bool = False) -> int:
        """How often a cell is tried."""
        return 5 if not self.quick else 1 if slow else 2


class Question(NamedTuple):
    """Something to find out."""

    name: str
    title: str
    cells: Callable[[Bench], list[Cell]]


def answer(question: Question, bench: Bench, advance: Callable[[str], None]) -> list[Row]:
    """Try all cells in turns."""
    cells = question.cells(bench)
    found: dict[int, list[Measures]] = {index: [] for index in range(len(cells))}
    failures: dict[int, str] = {}
    for index in _turns(cells):
        advance(f"{question.name}: {cells[index].case}, {cells[index].contestant}")
        if index not in failures:
            try:
                found[index].append(cells[index].try_once())
            except Exception as error:  # noqa: BLE001 - any failure of a contestant is a result
                failures[index] = f"{type(error).__name__}: {error}"
    return [row for index, cell in enumerate(cells) for row in _rows(question, cell, found[index], failures.get(index))]


def count_tries(question: Question, bench: Bench) -> int:
    """How many tries it will take."""
    return sum(cell.rounds for cell in question.cells(bench))


def _turns(cells: list[Cell]) -> Iterator[int]:
    for turn in range(max((cell.rounds for cell in cells), default=0)):
        here = [index for index, cell in enumerate(cells) if cell.rounds > turn]
        yield from here if turn % 2 == 0 else reversed(here)


def _rows(question: Question, cell: Cell, found: list[Measures], failure: str | None) -> Iterable[Row]:
    row = partial(Row, question=question.name, case=cell.case, contestant=cell.contestant)
    if failure is not None:
        yield row(measure="", rounds=len(found), failure=failure)
    for measure in found[0] if found else ():
        values = [one[measure] for one in found]
        yield row(
            measure=measure,
            median=statistics.median(values),
            least=min(values),
            most=max(values),
            rounds=len(values),
        )


def ask(questions: list[Question], bench: Bench) -> list[Row]:
    """All questions, with a progress bar."""
    columns = [TextColumn("{task.description:<50}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=sum(count_tries(question, bench) for question in questions))
        begun = False

        def advance(text: str) -> None:
            nonlocal begun
            progress.update(task, description=text, advance=int(begun))
            begun = True

        rows = []
        for question in questions:
            started = time.monotonic()
            rows += answer(question, bench, advance)
            progress.console.print(f"{question.name}: {time.monotonic() - started:.0f} s")
        progress.update(task, description="done", advance=1)
    return rows


def main(question: Question) -> None:
    """`python -m benchmarks.NAME`: one question alone. Prints its table, and keeps nothing."""
    from benchmarks.report import table  # noqa: PLC0415 - the report knows the questions

    parser = argparse.ArgumentParser(description=question.title)
    parser.add_argument("--quick", action="store_true", default=bool(os.environ.get("QUICK")))
    given = parser.parse_args()
    with open_stage() as stage:
        print(table(ask([question], Bench(stage, given.quick))))  # noqa: T201 - a program's output
