"""docs/requirements.md is true: every test that a page names exists, and each of the 33 is accounted for."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT

REQUIREMENTS = ROOT / "docs" / "requirements.md"

_NAMED = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


@cache
def names_in(path: str) -> frozenset[str]:
    """The names of a file's tests."""
    tree = ast.parse((ROOT / path).read_text(encoding="utf-8"))
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return frozenset(function.name for function in functions if function.name.startswith("test_"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page: Path) -> None:
    """A page that points to a test points to one that is there."""
    named = _NAMED.findall(page.read_text(encoding="utf-8"))
    assert [f"{path}::{name}" for path, name in named if name not in names_in(path)] == []


def test_each_of_the_33_has_a_counterpart() -> None:
    """Every named test has a counterpart here."""
    rows = re.findall(r"^\| (\d+) \|.*?\| (.+) \|$", REQUIREMENTS.read_text(encoding="utf-8"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 34))
    assert [int(number) for number, counterpart in rows if not _NAMED.search(counterpart)] == []


def test_every_row_says_where_it_stands() -> None:
    """Each requirement names code, a test or a page, or says that it is not met."""
    _, tables = REQUIREMENTS.read_text(encoding="utf-8").split("## The 33 named tests")
    rows = [row for row in tables.splitlines() if row.startswith("| ") and not row.startswith(("| #", "| | **"))]
    answers = [row.split(" | ", 1)[1] for row in rows]
    headings = ("code |", "shown by |", "where |")
    assert [one for one in answers if not re.search(r"`|\]\(|\*\*", one) and not one.startswith(headings)] == []
