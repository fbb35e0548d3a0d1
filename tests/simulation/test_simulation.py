"""Seeded histories: no promise is broken, a seed replays exactly, and a broken engine is caught."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.simulation.mutants import MUTANTS, hunt
from tests.simulation.run import report, run_parallel, run_seeds

SEEDS = 300
REPLAYED = 50

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_no_seed_breaks_a_promise(record_property: Callable[[str, object], None]) -> None:
    """Crashes, pauses, lost and late messages, outages, clock jumps, operators: every promise holds."""
    verdicts = run_parallel(list(range(SEEDS)), os.cpu_count() or 1)
    broken = [verdict for verdict in verdicts if verdict.broken is not None]
    record_property("coverage", report(verdicts, 1.0))
    assert not broken, report(broken, 1.0)
    bitten = sum(verdict.faults["bites"] for verdict in verdicts)
    assert bitten > SEEDS, "the faults did not bite: this simulation would prove nothing"


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same history, alone or in a batch: a failure can be looked at again."""
    batch = run_seeds(list(range(REPLAYED)))
    again = [run_seeds([seed])[0] for seed in reversed(range(REPLAYED))]
    assert [verdict.trace for verdict in batch] == [verdict.trace for verdict in reversed(again)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name", ["reclaim without re-check", "suspect treated as lost", "lost answer taken for a lost lock"]
)
def test_a_broken_engine_is_caught(name: str) -> None:
    """The simulation can fail. `make simulate-mutants` hunts all the mutants; these three are the quick ones."""
    index = next(index for index, mutant in enumerate(MUTANTS) if mutant.name == name)
    assert hunt(index, 100).invariant is not None
