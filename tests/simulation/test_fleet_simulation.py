"""Idle fleets: a due job is claimed within a bound whatever workers die, and the fleet looks rarely."""

from __future__ import annotations

import statistics

import pytest

from reltask.worker.waking import LONGEST, TURN
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
def test_the_polls_of_a_fleet_that_was_started_together_are_spread() -> None:
    """300 workers that began within ten seconds: in no ten seconds do they send more than about two looks a second."""
    world = FleetWorld(3, size=300, signals=True)
    world.run(jobs=1)
    assert max(world.looks_in(10.0) for _ in range(30)) <= 30


@pytest.mark.slow
@pytest.mark.parametrize("signals", [True, False])
@pytest.mark.parametrize("size", [1, 10, 100, 300])
def test_a_held_row_costs_two_looks_per_second(size: int, signals: bool) -> None:
    """Whatever the number of workers: a due row that stays locked adds at most two looks a second to the fleet's own.

    The first seconds do not count: a few look again soon, and the watch asks for 60 looks in all.
    """
    world = FleetWorld(size, size=size, signals=signals)
    world.run(jobs=1)
    own = 2.0 if signals else max(2.0, size / LONGEST)
    world.hold()
    world.looks_in(10.0)
    assert world.looks_in(60.0) <= 60.0 * (own + 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("size", [10, 100, 300, 1000])
def test_a_tenth_of_a_silent_fleet_finds_a_job_within_a_second(size: int) -> None:
    """Without signals, 90 % of the workers full: half of the jobs start within a second."""
    world = FleetWorld(7, size=size, signals=False, full=0.9)
    assert any(member.free for member in world.members)
    world.run(jobs=30, every=3.0)
    assert statistics.median(world.waits) < 1.0


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 10, 60, 200, 1000])
def test_an_idle_silent_fleet_looks_twice_a_second_or_each_worker_every_30_seconds(size: int) -> None:
    """Without signals n idle workers send at most max(2, n / 30) looks a second."""
    world = FleetWorld(11, size=size, signals=False)
    world.run(jobs=1)
    assert world.looks_in(120.0) / 120.0 <= 1.05 * max(1 / TURN, size / LONGEST)


@pytest.mark.slow
@pytest.mark.parametrize("signals", [True, False])
@pytest.mark.parametrize("size", [1, 10, 100, 300])
def test_without_a_leader_a_dead_workers_slot_is_taken_over_soon(size: int, signals: bool) -> None:
    """Nobody watches for all: nine of ten locks are reclaimed within a second of their end, the rest within a round."""
    world = FleetWorld(size, size=size, signals=signals)
    world.run(jobs=1)
    after = sorted(world.die_after_a_claim() for _ in range(20))
    assert after[17] <= 1.0
    assert after[-1] <= world.bound()
