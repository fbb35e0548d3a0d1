"""Each broken statement is caught by the check named beside it, so the suite can fail."""

from __future__ import annotations

import pytest

from tests.interleaving.cases import CASES
from tests.interleaving.driver import Violation
from tests.interleaving.durable_mutants import DURABLE_MUTANTS
from tests.interleaving.durable_setups import DURABLE_SETUPS
from tests.interleaving.explore import Suite
from tests.interleaving.lease_setups import LEASE_SETUPS
from tests.interleaving.limit_cases import LIMIT_MUTANTS
from tests.interleaving.postgres import PostgresDriver
from tests.interleaving.postgres_mutants import MUTANTS, Check, Mutant
from tests.interleaving.setups import SETUPS
from tests.interleaving.steps import run_case

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def run(suite: Suite, check: Check) -> None:
    """Run one case, or the pairs with these names in one setup."""
    if isinstance(check, str):
        await run_case(suite, *CASES[check])
        return
    setup_name, *names = check
    (setup,) = (setup for setup in [*SETUPS, *LEASE_SETUPS, *DURABLE_SETUPS] if setup.name == setup_name)
    pairs = [pair for pair in setup.pairs if sorted(map(str, pair)) == sorted(names)]
    assert pairs, f"no such pair: {check}"
    for pair in pairs:
        await suite.explore(setup, pair)


@pytest.mark.parametrize("mutant", [*MUTANTS, *DURABLE_MUTANTS, *LIMIT_MUTANTS], ids=lambda mutant: mutant.name)
async def test_a_mutant_is_caught(suite: Suite, mutant: Mutant) -> None:
    """The check beside the mutant raises a Violation."""
    if not isinstance(suite.drivers[0], PostgresDriver):
        pytest.skip("the mutants are PostgreSQL's statements")
    with suite.mutated(mutant.verb, *mutant.changes), pytest.raises(Violation):
        await run(suite, mutant.caught_by)
