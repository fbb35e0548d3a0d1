"""docs/scaling.md quotes what was measured, and what was measured keeps to what is promised."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "scaling.md"
RESULTS = ROOT / "benchmarks" / "results" / "coordination.json"
FIGURES = (
    "claims per job",
    "pick-up p50, ms",
    "pick-up p99, ms",
    "looks per second at a held row",
    "taken over after, s",
)
OTHERS = 1.3
"""Statements per second of the maintenance, whatever the number of workers."""


@pytest.mark.parametrize(
    ("heading", "idle", "load"),
    [("idle workers", "lease", "load"), ("idle workers, no signals", "paced", "paced load")],
)
def test_a_table_quotes_what_was_measured(heading: str, idle: str, load: str) -> None:
    """Each row has the figures of the file, rounded as the page writes them."""
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    table = PAGE.read_text(encoding="utf-8").partition(f"| {heading} |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]
    assert [row[0].replace(" ", "") for row in rows] == list(measured[load])
    for count, *cells in rows:
        workers = count.replace(" ", "")
        wanted = [measured[idle][workers], *(measured[load][workers][name] for name in FIGURES)]
        for cell, figure in zip(cells, wanted, strict=True):
            number = re.match(r"[\d.]+", cell)
            assert number is not None
            digits = len(number[0].partition(".")[2])
            assert float(number[0]) == pytest.approx(figure, abs=0.5001 * 10**-digits), (workers, cell, figure)


def test_a_silent_fleet_keeps_to_its_turns() -> None:
    """Without signals n workers send max(2, n / 30) looks a second, beside the maintenance."""
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    for count, statements in measured["paced"].items():
        assert statements <= max(2.0, int(count) / 30) + OTHERS
