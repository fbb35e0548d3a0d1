"""docs/coordination.md does what it says, and its numbers are those that were measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psycopg
import pytest

from reltask import App
from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import Terminal

PAGE = ROOT / "docs" / "coordination.md"
RESULTS = ROOT / "benchmarks" / "results" / "coordination.json"
COORDINATIONS = ("everyone", "advisory", "stealing", "lease")


@pytest.mark.slow
def test_page_runs_as_written(terminal: Terminal, tmp_path: Path, postgres_url: str) -> None:
    """Each program succeeds; mails are all sent, and the lease was taken and given back."""
    with psycopg.connect(postgres_url) as connection:
        connection.execute("create table mails (id serial primary key, sent_at timestamptz)")
        connection.execute("insert into mails select from generate_series(1, 250)")
    for block in blocks(PAGE):
        text = block.text.replace("//localhost/shop", postgres_url.removeprefix("postgresql:"))
        terminal.read(block._replace(text=text))
    assert terminal.close() == []
    with psycopg.connect(postgres_url) as connection:
        assert connection.execute("select count(*) from mails where sent_at is null").fetchone() == (0,)
    app = App(f"sqlite:///{tmp_path}/shop.db")
    assert [(lease.name, lease.term, lease.held) for lease in app.leases_sync()] == [("rates", 1, False)]
    app.close()


def test_the_numbers_are_those_that_were_measured() -> None:
    """The page quotes benchmarks/results; a new measurement has to be quoted anew."""
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = re.findall(r"^\| (\w+) \| ([\d. |–]+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    quoted = {name: cells.split(" | ") for name, cells in rows}
    for name in COORDINATIONS:
        cells = dict(zip(quoted["workers"], quoted[name], strict=True))
        assert {count: float(cell) for count, cell in cells.items() if cell != "–"} == measured[name]


def test_the_lease_stays_under_five_statements_a_second() -> None:
    """Up to 200 workers, polls included; a thousand are a little above it, two minutes after their start.

    And everyone grows with the workers.
    """
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert all(statements <= 5 for count, statements in measured["lease"].items() if int(count) <= 200)
    assert measured["lease"]["1000"] <= 5.5
    assert all(figures["claims per job"] <= 6 for figures in measured.get("load", {}).values())
    assert measured["everyone"]["200"] > 10 * measured["everyone"]["10"] > 50 * measured["everyone"]["1"]
