"""Seeded histories: no promise is broken, a seed replays exactly, and a broken worker is caught.

The histories are split over two classes, so that two pytest workers can share them, and over two
tests each, because xdist gives a worker with one test left another class.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import pytest

from tests.simulation.mutants import MUTANTS, hunt
from tests.simulation.run import Tally, run_each, run_seeds

SEEDS = 400
REPLAYED = 15

pytestmark = pytest.mark.slow
Record = Callable[[str, object], None]


def hold_all_promises(seeds: Iterable[int], record: Record) -> None:
    tally, started = Tally(), time.process_time()
    for verdict in run_each(seeds):
        tally.add(verdict)
    cpu = time.process_time() - started
    pace = f"{tally.seeds} seeds in {cpu:.1f} s of CPU time: {2 * 60 * tally.seeds / cpu:.0f} per minute on two cores"
    record("coverage", f"{pace}\n{tally.coverage()}")
    assert not tally.broken, tally.findings()
    assert tally.faults["bites"] > 10 * tally.seeds, "the faults did not bite: this simulation would prove nothing"
    assert tally.counts["suspensions"] > tally.seeds / 4, "too few durable functions were suspended"
    assert tally.counts["limited claims"] > tally.seeds, "too few jobs with limits were claimed"


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [0, 2])
class TestEvenSeeds:
    def test_no_seed_breaks_a_promise(self, first: int, record_property: Record) -> None:
        """Crashes, pauses, lost and late messages, outages, clock jumps, operators: every promise holds."""
        hold_all_promises(range(first, SEEDS, 4), record_property)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", [1, 3])
class TestOddSeeds:
    def test_no_seed_breaks_a_promise(self, first: int, record_property: Record) -> None:
        """The other half."""
        hold_all_promises(range(first, SEEDS, 4), record_property)


@pytest.mark.timeout(300)
def test_a_seed_replays_exactly() -> None:
    """The same seed gives the same history, alone or in a batch, so a failure can be repeated."""
    batch = run_seeds(list(range(REPLAYED)))
    again = [run_seeds([seed])[0] for seed in reversed(range(REPLAYED))]
    assert [verdict.trace for verdict in batch] == [verdict.trace for verdict in reversed(again)]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        "reclaim without re-check",
        "suspect treated as lost",
        "held row taken for a lost lock",
        "suspension ignores what was seen",
        "signal consumed before the record",
        "a place is not free after a reclaim",
        "tokens by the worker's clock",
    ],
)
def test_a_broken_worker_is_caught(name: str) -> None:
    """The simulation can fail.

    These mutants are quick; `make simulate-mutants` runs all of them.
    """
    index = next(index for index, mutant in enumerate(MUTANTS) if mutant.name == name)
    assert hunt(index, 100).invariant is not None
