"""Races with a name, step by step. Each case's docstring states its rule."""

from __future__ import annotations

import pytest

from tests.interleaving.cases import CASES
from tests.interleaving.explore import Suite
from tests.interleaving.steps import run_case

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("name", CASES)
async def test_case(suite: Suite, name: str) -> None:
    """The case ends as its docstring says, and the tables are consistent."""
    if not suite.drivers[0].first.skips:
        pytest.skip("this server waits for rows that the cases want skipped")
    setup, case = CASES[name]
    await run_case(suite, setup, case)
