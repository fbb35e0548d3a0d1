"""The figures of docs/comparison.md are those of the committed measurements."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.docs.pages import ROOT
from tests.faults import results

PAGE = (ROOT / "docs" / "comparison.md").read_text(encoding="utf-8")
MEASURED: dict[str, Any] = json.loads((ROOT / "benchmarks/results/latest.json").read_text(encoding="utf-8"))
LINES = {
    "jobs per second from a full queue, one process": ("drain", "one process"),
    "jobs per second enqueued, one call each": ("enqueue", "one call each"),
    "jobs per second enqueued, many at once": ("enqueue", "many at once"),
}


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def median(question: str, case: str, contestant: str) -> str:
    """As the page writes it; a dash where the benchmark has no such call."""
    found = [
        row["median"]
        for row in MEASURED["rows"]
        if (row["question"], row["case"], row["contestant"], row["measure"]) == (question, case, contestant, "jobs/s")
    ]
    return f"{found[0]:,.0f}".replace(",", " ") if found else "–"


def test_table_is_the_last_measurement() -> None:
    """Each cell is a median of benchmarks/results/latest.json, of the contestant that its column names."""
    rows = [cells(line) for line in PAGE.splitlines() if line.startswith("|")]
    contestants = [name.lower() for name in rows[0][1:-1]]
    shown = {row[0]: row[1:-1] for row in rows[2:5]}
    assert shown == {line: [median(*of, each) for each in contestants] for line, of in LINES.items()}
    assert f"of {MEASURED['date']}" in PAGE


def test_ratio_to_huey_is_the_last_measurement() -> None:
    """And the version of huey is the one that was measured."""
    said = re.search(r"drained ([\d.]+) times as\s+many jobs per second as huey ([\d.]+) ", PAGE)
    assert said is not None
    assert said.groups() == (f"{MEASURED['ratios']['sqlite_drain_vs_huey']:.2f}", MEASURED["versions"]["huey"])


def test_trials_are_those_of_the_matrix() -> None:
    """How many trials, of how many kinds of faults, on the databases of the suite."""
    tried = [entry for entry in results.read() if entry["trials"]]
    kinds = len({entry["row"] for entry in tried})
    assert f"{sum(entry['trials'] for entry in tried)} trials with {kinds} kinds of faults" in PAGE
