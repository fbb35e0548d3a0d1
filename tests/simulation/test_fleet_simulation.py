"""Idle fleets: a due job is claimed within a bound whatever workers die, and the fleet looks rarely."""

from __future__ import annotations

import statistics

import pytest

from tests.simulation.fleet import MUTANTS, FleetMutant, FleetWorld, check_all
from tests.simulation.invariants import Violation

SEEDS = 60
MOST_SEEDS = 400


def test_a_due_job_is_claimed_within_a_bound() -> None:
    """With and without signals, with workers that die in the middle: within one round of turns, at a bounded cost."""
    check_all(SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mistake_in_the_decisions_is_found(mutant: FleetMutant) -> None:
    """Each mistake breaks the bound that it must break."""
    with mutant.broken(), pytest.raises(Violation, match=mutant.invariant):
        check_all(MOST_SEEDS)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100, 300])
def test_a_job_costs_the_same_whatever_the_number_of_workers(size: int) -> None:
    """At 40 jobs a second a job costs at most six looks, and the median pick-up takes milliseconds."""
    world = FleetWorld(size, size=size, signals=True)
    world.delays = (0.0,)
    jobs = 400
    world.run(jobs=jobs, every=0.025)
    at_work = [moment for moment in world.looks_at if 0 <= moment - world.settled < 0.025 * (jobs + 4)]
    assert len(world.waits) == jobs
    assert len(at_work) / jobs < 6
    assert statistics.median(world.waits) < 0.05


@pytest.mark.slow
def test_a_tenth_of_a_silent_fleet_finds_a_job_within_a_second() -> None:
    """Without signals, 90 % of 300 workers full: half of the jobs start within a second."""
    world = FleetWorld(7, size=300, signals=False, full=0.9)
    world.run(jobs=30, every=3.0)
    assert statistics.median(world.waits) < 1.0
