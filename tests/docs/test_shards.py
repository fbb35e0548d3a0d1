"""docs/shards.md quotes the figures that were measured."""

from __future__ import annotations

import json
import re

from tests.docs.pages import ROOT

RESULTS = ROOT / "benchmarks" / "results" / "shards.json"
ROW = re.compile(r"^\| (none|\d) \| (\d+) \| (\d+) \| ([\d.]+) \|$", re.MULTILINE)


def test_the_numbers_are_those_that_were_measured() -> None:
    """A new measurement has to be quoted anew."""
    quoted = ROW.findall((ROOT / "docs" / "shards.md").read_text(encoding="utf-8"))
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert {name: tuple(map(float, cells)) for name, *cells in quoted} == {
        name: tuple(map(float, figures.values())) for name, figures in measured.items()
    }
