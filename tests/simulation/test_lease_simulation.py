"""Seeded histories of leases: no promise is broken, a seed replays exactly, a broken lease is caught."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.broken import Mutant
from tests.simulation.lease_mutants import MUTANTS, hunt
from tests.simulation.run_leases import report, run_seeds

SEEDS = 200
REPLAYED = 15

pytestmark = pytest.mark.slow


@pytest.mark.timeout(300)
def test_no_seed_breaks_a_promise(record_property: Callable[[str, object], None]) -> None:
    """One holder per term, terms grow by one, no write from an old term, at most one trusts itself."""
    verdicts = run_seeds(list(range(SEEDS)))
    broken = [verdict for verdict in verdicts if verdict.broken is not None]
    record_property("coverage", report(verdicts, 1.0))
    assert not broken, report(broken, 1.0)
    assert sum(verdict.faults["bites"] for verdict in verdicts) > SEEDS, "the faults did not bite"
    assert sum(verdict.counts["refused"] for verdict in verdicts) > SEEDS, "no old term tried to write"


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same history, alone or in a batch."""
    batch = run_seeds(list(range(REPLAYED)))
    again = [run_seeds([seed])[0] for seed in reversed(range(REPLAYED))]
    assert [verdict.trace for verdict in batch] == [verdict.trace for verdict in reversed(again)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_broken_lease_is_caught(mutant: Mutant) -> None:
    """For each rule of the protocol there is a mutant, and the simulation catches it."""
    assert hunt(mutant, 200).invariant is not None
