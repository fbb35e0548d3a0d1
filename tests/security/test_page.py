"""What docs/security.md and SECURITY.md say is shown by the tests that they name."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import ROOT

PAGES = ["docs/security.md", "SECURITY.md"]
NAMED = re.compile(r"`(?:tests/\w+/)?(test_\w+\.py)::(test_\w+)`")


def missing(page: str) -> list[str]:
    """The tests that a page names and that do not exist."""
    text = (ROOT / page).read_text(encoding="utf-8")
    sources = {
        file: [path.read_text(encoding="utf-8") for path in ROOT.glob(f"tests/*/{file}")]
        for file, _ in NAMED.findall(text)
    }
    return [
        f"{file}::{test}"
        for file, test in NAMED.findall(text)
        if not any(re.search(rf"def {test}\(", source) for source in sources[file])
    ]


@pytest.mark.parametrize("page", PAGES)
def test_named_tests_exist(page: str) -> None:
    """A line without its test would be a claim."""
    assert missing(page) == []
    assert NAMED.search((ROOT / page).read_text(encoding="utf-8"))


def test_each_line_about_a_role_names_its_test() -> None:
    """Every row of the tables that say what an attacker cannot do ends with a test."""
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    tables = re.findall(r"\| it cannot \|.*\n\|[-|]+\n((?:\|.*\n)+)", text)
    rows = [row for table in tables for row in table.splitlines()]
    assert len(rows) > 10
    assert [row for row in rows if not NAMED.search(row.rsplit(" | ", 1)[1])] == []
