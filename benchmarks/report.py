"""What is written about the answers: JSON, a table, pictures, and the block of docs/performance.md with the table.

    results/latest.json     of every run: method, machine, `ratios` and every row
    results/published.json  of a run that is published, and what the next two show
    results/*.svg           throughput, enqueueing, pick-up, growth, processes, SQLite
    docs/performance.md     the tables, between its two marks

`ratios` is flat, so that a script or a test can read one number: each is the quotient of two medians of the same run,
or a measure itself. A ratio that could not be found is null, and `missing` says why.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec

from benchmarks import durable, enqueue, limits, pickup
from benchmarks.contestants import DBOS, FLOOR, FLOOR_100, HUEY, PGQUEUER, PROCRASTINATE, RELTASK
from benchmarks.harness import Question, Row
from benchmarks.idle import WORKERS
from benchmarks.plot import Bar, Series, bars, plot

RESULTS = Path(__file__).parent / "results"
DOCUMENT = Path(__file__).parent.parent / "docs" / "performance.md"
BEGIN, END = "<!-- begin: made by make bench -->", "<!-- end: made by make bench -->"


class MissingError(Exception):
    """A ratio's part was not measured."""


# ── Ratios ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Rows:
    """All rows, by what they are about."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows = list(rows)

    def median(self, question: str, case: str, contestant: str, measure: str) -> float:
        """The median, or MissingError with its reason."""
        here = [row for row in self._rows if (row.question, row.case, row.contestant) == (question, case, contestant)]
        for row in here:
            if row.failure is not None:
                raise MissingError(f"{contestant}: {row.failure}")
            if row.measure == measure and row.median is not None:
                return row.median
        raise MissingError(f"{question} was not asked")

    def most(self, question: str, measure: str) -> float:
        """The highest median of a measure over all cases."""
        failures = [row.failure for row in self._rows if row.question == question and row.failure is not None]
        if failures:
            raise MissingError(failures[0])
        found = [row.median for row in self._rows if (row.question, row.measure) == (question, measure)]
        if not found:
            raise MissingError(f"{question} was not asked")
        return max(median for median in found if median is not None)

    def quotient(self, question: str, case: str, measure: str, ours: str, theirs: str) -> float:
        """Our median over theirs."""
        return self.median(question, case, ours, measure) / self.median(question, case, theirs, measure)


def _beside(rows: Rows, case: str) -> float:
    """The throughput with limits over that without."""
    plain = rows.median("limits", limits.UNLIMITED, RELTASK.name, "jobs/s")
    return rows.median("limits", case, RELTASK.name, "jobs/s") / plain


RATIOS: dict[str, Callable[[Rows], float]] = {
    "drain_vs_floor": lambda rows: rows.quotient("drain", "one process", "jobs/s", RELTASK.name, FLOOR.name),
    "drain_vs_floor_100": lambda rows: rows.quotient("drain", "one process", "jobs/s", RELTASK.name, FLOOR_100.name),
    "drain_vs_pgqueuer": lambda rows: rows.quotient("drain", "one process", "jobs/s", RELTASK.name, PGQUEUER.name),
    "steps_vs_dbos": lambda rows: rows.quotient("durable", durable.CASE, "steps/s", RELTASK.name, DBOS.name),
    "two_processes_vs_one": lambda rows: (
        rows.median("drain", "2 processes", RELTASK.name, "jobs/s")
        / rows.median("drain", "one process", RELTASK.name, "jobs/s")
    ),
    "enqueue_vs_procrastinate": lambda rows: rows.quotient(
        "enqueue", enqueue.ONE_BY_ONE, "jobs/s", RELTASK.name, PROCRASTINATE.name
    ),
    "bulk_vs_pgqueuer": lambda rows: rows.quotient("enqueue", enqueue.MANY, "jobs/s", RELTASK.name, PGQUEUER.name),
    "pickup_p50_vs_floor": lambda rows: rows.quotient("pickup", pickup.POSTGRES, "p50 ms", RELTASK.name, FLOOR.name),
    "pickup_sqlite_p50_ms": lambda rows: rows.median("pickup", pickup.SQLITE, RELTASK.name, "p50 ms"),
    "punctuality_p50_ms": lambda rows: rows.most("punctuality", "p50 ms"),
    "punctuality_p99_ms": lambda rows: rows.most("punctuality", "p99 ms"),
    "idle_statements_per_s": lambda rows: rows.median("idle", f"{WORKERS} workers", RELTASK.name, "statements/s"),
    "idle_memory_mb": lambda rows: rows.median("idle", "a process with one worker", RELTASK.name, "memory MB"),
    "claim_growth": lambda rows: rows.most("growth", "growth"),
    "limit_shared_vs_none": lambda rows: _beside(rows, limits.SHARED),
    "limit_keys_vs_none": lambda rows: _beside(rows, limits.KEYED),
    "full_keys_vs_none": lambda rows: _beside(rows, limits.NEXT_TO),
    "limit_rate_reached": lambda rows: rows.median("limits", limits.PACED, RELTASK.name, "starts/s") / limits.RATE,
    "throughput_kept": lambda rows: rows.most("bloat", "last / first"),
    "sqlite_drain_vs_huey": lambda rows: rows.quotient("sqlite", "one process", "jobs/s", RELTASK.name, HUEY.name),
    "startup_ms": lambda rows: rows.median("startup", "PostgreSQL", RELTASK.name, "ms"),
}


def ratios(rows: Iterable[Row]) -> tuple[dict[str, float | None], dict[str, str]]:
    """Every ratio, and for each missing one the reason."""
    found: dict[str, float | None] = {}
    missing: dict[str, str] = {}
    known = Rows(rows)
    for name, read in RATIOS.items():
        try:
            found[name] = _rounded(read(known))
        except MissingError as error:
            found[name], missing[name] = None, str(error)
    return found, missing


# ── Tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def table(rows: Iterable[Row]) -> str:
    """The rows as Markdown."""
    lines = ["| case | contestant | measure | median | least – most | rounds |", "|---|---|---|---:|---:|---:|"]
    return "\n".join([*lines, *(_line(row) for row in rows)])


def _line(row: Row) -> str:
    if row.failure is not None:
        return f"| {row.case} | {row.contestant} | {row.failure.replace('|', '/')} | | | {row.rounds} |"
    spread = f"{_shown(row.least)} – {_shown(row.most)}"
    return f"| {row.case} | {row.contestant} | {row.measure} | {_shown(row.median)} | {spread} | {row.rounds} |"


def _shown(value: float | None) -> str:
    """Three significant digits, thousands separated."""
    if value is None:
        return ""
    return f"{value:,.0f}".replace(",", " ") if abs(value) >= 100 else f"{value:.3g}"  # noqa: PLR2004 - three digits


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def block(result: dict[str, Any], questions: list[Question]) -> str:
    """The text between the marks of the document."""
    rows = [msgspec.convert(row, Row) for row in result["rows"]]
    parts = [_preface(result), _ratio_table(result)]
    for question in questions:
        here = [row for row in rows if row.question == question.name]
        if here:
            picture = [f"![{question.title}](../benchmarks/results/{question.name}.svg)"] if _drawn(question) else []
            parts.append("\n\n".join([f"### {question.title}", *picture, table(here)]))
    return "\n\n".join(parts)


def _preface(result: dict[str, Any]) -> str:
    kind = "A quick run" if result["quick"] else "A full run"
    machine = ", ".join(f"{name} {value}" for name, value in result["machine"].items())
    peers = ", ".join(f"{name} {version}" for name, version in result["versions"].items())
    text = f"{kind} of {result['date']}, {result['seconds']} s. Machine: {machine}. Versions: {peers}."
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _ratio_table(result: dict[str, Any]) -> str:
    lines = ["| ratio | value |", "|---|---:|"]
    for name, value in result["ratios"].items():
        lines.append(f"| `{name}` | {_shown(value) if value is not None else 'missing: ' + result['missing'][name]} |")
    return "\n".join(lines)


# ── Pictures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def pictures(rows: list[Row], questions: list[Question]) -> dict[str, str]:
    """The SVG of each question that has one and was answered."""
    drawn = {question.name: PICTURES[question.name](rows, question.title) for question in questions if _drawn(question)}
    return {name: picture for name, picture in drawn.items() if picture}


def _drawn(question: Question) -> bool:
    return question.name in PICTURES


def _bars(question: str, case: str, measure: str) -> Callable[[list[Row], str], str]:
    def draw(rows: list[Row], title: str) -> str:
        here = [row for row in rows if (row.question, row.case, row.measure) == (question, case, measure)]
        found = [Bar(r.contestant, r.median, r.least or 0.0, r.most or 0.0) for r in here if r.median is not None]
        return bars(found, title=f"{title}, {case}: {measure}") if found else ""

    return draw


def _growth(rows: list[Row], title: str) -> str:
    cases: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if row.question == "growth" and row.measure.endswith(" ms") and row.median:
            rows_of_table = float(row.measure.removesuffix(" ms").replace(" ", ""))
            cases.setdefault(row.case, []).append((rows_of_table, row.median))
    curves = [Series(case.partition(",")[0], points) for case, points in cases.items() if "10 priorities, 20" in case]
    return plot(curves, title=f"{title}: ms, 10 priorities, 20 queues", x="rows") if curves else ""


def _processes(rows: list[Row], title: str) -> str:
    points = [
        (float(row.case.split()[0]), row.median)
        for row in rows
        if row.question == "processes" and row.measure == "jobs/s" and row.median
    ]
    return plot([Series(RELTASK.name, points)], title=f"{title}: jobs/s", x="processes") if len(points) > 1 else ""


PICTURES: dict[str, Callable[[list[Row], str], str]] = {
    "drain": _bars("drain", "one process", "jobs/s"),
    "enqueue": _bars("enqueue", enqueue.MANY, "jobs/s"),
    "pickup": _bars("pickup", pickup.POSTGRES, "p50 ms"),
    "growth": _growth,
    "processes": _processes,
    "sqlite": _bars("sqlite", "one process", "jobs/s"),
}


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(result: dict[str, Any]) -> None:
    """What every run writes."""
    _write_json("latest.json", result)


def publish(result: dict[str, Any], questions: list[Question]) -> None:
    """What the documentation shows."""
    rows = [msgspec.convert(row, Row) for row in result["rows"]]
    _write_json("published.json", result)
    for name, picture in pictures(rows, questions).items():
        (RESULTS / f"{name}.svg").write_text(picture, encoding="utf-8")
    document = DOCUMENT.read_text(encoding="utf-8")
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n\n{block(result, questions)}\n\n{END}{after}", encoding="utf-8")


def _write_json(name: str, result: dict[str, Any]) -> None:
    text = msgspec.json.format(msgspec.json.encode(result), indent=2).decode()
    (RESULTS / name).write_text(text + "\n", encoding="utf-8")
