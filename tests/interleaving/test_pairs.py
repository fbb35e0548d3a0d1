"""Every pair of verbs on the same rows, in every order of their steps."""

from __future__ import annotations

import pytest

from tests.interleaving.durable_setups import DURABLE_SETUPS
from tests.interleaving.explore import Suite, ran
from tests.interleaving.lease_setups import LEASE_SETUPS
from tests.interleaving.setups import SETUPS, Pair, Setup

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAIRS = [
    pytest.param(setup, pair, id=f"{setup.name}: {pair[0]} × {pair[1]}")
    for setup in [*SETUPS, *LEASE_SETUPS, *DURABLE_SETUPS]
    for pair in setup.pairs
]


@pytest.mark.parametrize(("setup", "pair"), PAIRS)
async def test_pair(suite: Suite, setup: Setup, pair: Pair) -> None:
    """A serial order explains answers and rows; no verb waits that must not; there is no deadlock."""
    ran.update(await suite.explore(setup, pair))
