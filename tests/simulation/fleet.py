"""A fleet of idle workers over a database that is a few lists: how soon, and at what cost, is work found?

The worker's own decisions run here, `worker/waking.py`, with any number of workers: nothing else of a worker does. A
look is a call; the database answers it as the claim statements do. Workers die without a word, the last winner first:
the others count them as idle until their sign of life lapses.

    FleetWorld(seed, size).run()      raises a Violation if a due job waits too long, or the fleet looks too often

The bound for a due job is one round of turns: every living worker has had its turn by then.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from math import inf
from typing import Any, NamedTuple
from unittest import mock

from reltask.model.job import ClaimAnswer, Fleet, Overdue
from reltask.worker import waking
from reltask.worker.waking import LONGEST, TURN, Waking, Watch
from tests.simulation.database import START
from tests.simulation.invariants import Violation

POLL, LOCK, HEARTBEAT = 60.0, 120.0, 30.0
LATENCY = 0.002
PLACES = 10
LONGEST_BODY = 1.0


class Member:
    """One worker of the fleet."""

    def __init__(self, name: int, rng: random.Random, *, signals: bool, serves: bool = True) -> None:
        self.name = name
        self.serves = serves
        """Whether it serves the queue of the jobs. If not, it can take none, and is no peer of those that do."""
        self.waking = Waking(poll=POLL, lock_timeout=LOCK, heartbeat=HEARTBEAT, rng=rng)
        self.waking.signals = signals
        self.alive = True
        self.free = PLACES
        self.at = 0.0
        """When it decides next."""
        self.idle_until = -inf
        """What its row says."""
        self.is_looking = False


class FleetWorld:
    """Some workers, jobs that become due, and deaths."""

    delays: tuple[float, ...] = (0.0, 0.0, 3.0)
    """Seconds after which a job is due."""

    def __init__(
        self, seed: int, *, size: int, signals: bool, deaths: int = 0, full: float = 0.0, others: int = 0
    ) -> None:
        """`full`: the share of the workers whose places are taken from the start. `others` serve another queue."""
        self.rng = random.Random(seed)
        self.now = 0.0
        self.signals = signals
        self.size = size
        self.deaths = deaths
        self.members = [Member(n, random.Random(self.rng.getrandbits(64)), signals=signals) for n in range(size)]
        for member in self.members:
            member.at = self.rng.uniform(0.0, 10.0)
            member.free = 0 if self.rng.random() < full else PLACES
        for name in range(-others, 0):
            self.members.append(Member(name, random.Random(name), signals=signals, serves=False))
        self.due: list[tuple[float, int]] = []
        """Unclaimed jobs: when each is due, and its number."""
        self.waits: list[float] = []
        self.looks = 0
        self.looks_at: list[float] = []
        self.held_at = inf
        """When a job becomes due whose row another session keeps locked."""
        self.lock_ends = inf
        """When the lock of a worker ends that died after a claim."""
        self.taken_after: list[float] = []
        """Seconds from the ends of such locks until another worker reclaimed."""
        self._full_at = 0.0
        """When no living worker had a free place, last."""
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0

    # Running

    def run(self, *, jobs: int = 20, every: float = 5.0) -> None:
        """Let the fleet settle, then make jobs due, some of them announced before."""
        settled = 2 * max(POLL, self.size * TURN) + 20
        for member in self.members:
            self._plan(member)
        for nth in range(jobs):
            self.at(settled + every * (nth + self.rng.random()), self._new_job)
        for nth in range(self.deaths):
            self.at(settled + every * jobs * (nth + 0.5) / self.deaths, self._kill)
        self._until(settled)
        self.settled, before = settled, self.looks
        end = settled + every * (jobs + 2) + self.bound()
        self._until(end)
        if self.due:
            raise Violation("a due job is claimed within a bound", f"{len(self.due)} jobs wait at {self.now}")
        self.rate = (self.looks - before) / (end - settled)

    def bound(self) -> float:
        """The longest wait of a due job that some living worker could run."""
        turns = self.size * TURN
        return (turns if self.signals else min(turns, LONGEST)) + 1.0

    def at(self, moment: float, what: Callable[[], None]) -> None:
        self._numbers += 1
        heapq.heappush(self._events, (moment, self._numbers, what))

    def _until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heapq.heappop(self._events)
            what()
            if not any(member.alive and member.free and member.serves for member in self.members):
                self._full_at = self.now
            elif self.due and self.now - max(self.due[0][0], self._full_at) > self.bound():
                raise Violation("a due job is claimed within a bound", f"due for {self.now - self.due[0][0]:.1f} s")
        self.now = end

    # What happens

    def _new_job(self) -> None:
        """A producer enqueues a job, due now or a little later, and signals."""
        self._numbers += 1
        delay = self.rng.choice(self.delays)
        heapq.heappush(self.due, (self.now + delay, self._numbers))
        self.signal()

    def hold(self) -> None:
        """From now on a job is due whose row another session keeps locked, and a leader watches."""
        self.held_at, watch = self.now, Watch()
        self.signal()
        stuck = Overdue(lanes=1, oldest=START, newest=START, marked=False, expired=False)

        def look_after_it() -> None:
            if wanted := watch.seen(stuck):
                self.signal(wanted=wanted)
            self.at(self.now + 1.0, look_after_it)

        self.at(self.now + 1.0, look_after_it)

    def die_after_a_claim(self) -> float:
        """A worker dies that has claimed a job. Return how soon after the end of its lock another one reclaims."""
        self.lock_ends = self.now + LOCK
        self._until(self.lock_ends + 2 * max(POLL, self.size * TURN))
        return self.taken_after.pop()

    def looks_in(self, seconds: float) -> int:
        """Let this time pass; return the looks in it."""
        before = self.looks
        self._until(self.now + seconds)
        return self.looks - before

    def signal(self, wanted: int | None = None) -> None:
        if self.signals:
            for member in self.members:
                if member.alive and member.waking.signalled(self.now, wanted=wanted):
                    member.waking.call()
                self._plan(member)

    def _kill(self) -> None:
        """The last winner dies, or any other: its row still says that it is idle."""
        living = [member for member in self.members if member.alive and member.free and member.serves]
        if len(living) > 1:
            winners = [member for member in living if member.waking._ahead]
            self.rng.choice(winners or living).alive = False

    def _plan(self, member: Member) -> None:
        called = member.waking._called or member.waking.more
        member.at = self.now if called and member.free else max(self.now, member.waking.next_at(free=member.free > 0))
        if member.at < inf:
            at = member.at
            self.at(at, lambda: self._decide(member, at))

    def _decide(self, member: Member, at: float) -> None:
        if not member.alive or member.is_looking or member.at != at:
            return
        due = member.waking.decide(self.now, free=member.free > 0)
        if due.reclaim:
            if self.lock_ends <= self.now:
                self.taken_after.append(self.now - self.lock_ends)
                self.lock_ends = inf
            member.waking.reclaimed(self.now, all_of_them=True)
        if due.look:
            member.is_looking = True
            member.waking.begin()
            sent_at = self.now
            self.at(self.now + LATENCY * self.rng.uniform(0.5, 1.5), lambda: self._look(member, sent_at))
        else:
            self._plan(member)

    def _look(self, member: Member, sent_at: float) -> None:
        """The claim statement, and its answer."""
        self.looks += 1
        self.looks_at.append(self.now)
        member.is_looking = False
        claims = 0
        limit = member.free
        while member.serves and claims < limit and self.due and self.due[0][0] <= self.now:
            self.waits.append(self.now - heapq.heappop(self.due)[0])
            claims += 1
        member.free -= claims
        answer = self._answer(member, claims)
        member.waking.answered(answer, filled=claims == limit, sent_at=sent_at, now=self.now)
        member.waking.ended(claims, self.now)
        if claims and not member.free and member.waking.fleet.idle > 1:
            self.signal(wanted=min(claims, waking.ANSWERS))
        if claims:
            self.at(self.now + self.rng.uniform(0.0, LONGEST_BODY), lambda: self._finish(member, claims))
        self._plan(member)

    def _answer(self, member: Member, claims: int) -> ClaimAnswer:
        fleet = None
        alive_until = self.now + member.waking.alive_for
        if not claims and member.waking.counts(self.now):
            others = [other for other in self.members if other.idle_until > self.now and other is not member]
            peers = [other for other in others if other.serves == member.serves]
            fleet = Fleet(sum(other.name < member.name for other in peers), len(peers) + 1, len(others) + 1)
            member.idle_until = alive_until
        elif not member.free:
            member.idle_until = -inf
        elif member.idle_until > self.now:
            member.idle_until = max(member.idle_until, alive_until)
        later = [moment for moment, _ in self.due if moment > self.now and member.serves]
        later += [self.held_at] if self.held_at < inf else []
        start: list[Any] = [object()] * claims
        return ClaimAnswer(
            claims=start,
            now=START + timedelta(seconds=self.now),
            next_due=START + timedelta(seconds=min(later)) if later else None,
            next_expiry=START + timedelta(seconds=self.lock_ends) if self.lock_ends < inf else None,
            fleet=fleet,
        )

    def _finish(self, member: Member, claims: int) -> None:
        member.free += claims
        if member.alive and member.waking.more:
            member.waking.call()
        if member.alive:
            self._plan(member)


# Mistakes that the bounds must find


class FleetMutant(NamedTuple):
    """A mistake in the decisions."""

    name: str
    broken: Callable[[], AbstractContextManager[object]]
    invariant: str


def _never_at_its_turn(self: Waking, wanted: float, now: float, *, sure: bool = False) -> bool:  # noqa: ARG001
    self._drawn = sure or self._rng.random() * self.fleet.size < wanted
    return self._drawn


def _same_turn_for_all(self: Waking, moment: float) -> float:
    period = self.fleet.size * TURN
    return moment + period - (moment + self._offset) % period


def _answer_all(self: Waking, wanted: float, now: float, *, sure: bool = False) -> bool:  # noqa: ARG001
    self._drawn = True
    return True


WAITS, COSTS = "a due job is claimed within a bound", "the fleet looks rarely"
MUTANTS = [
    FleetMutant("a worker that was not drawn forgets the signal", lambda: _patched("_draw", _never_at_its_turn), WAITS),
    FleetMutant("every worker answers", lambda: _patched("_draw", _answer_all), COSTS),
    FleetMutant("the fleet is never counted", lambda: _patched("counts", lambda *_: False), COSTS),
    FleetMutant("all workers have the same turn", lambda: _patched("turn_after", _same_turn_for_all), WAITS),
]


def _patched(name: str, replacement: object) -> AbstractContextManager[object]:
    return mock.patch.object(Waking, name, replacement)


def check_all(seeds: int) -> None:
    """Many histories."""
    for seed in range(seeds):
        check(seed)


def check(seed: int) -> None:
    """One history: its bounds, by its seed."""
    rng = random.Random(seed)
    signals = rng.random() < 0.5
    size = rng.choice([1, 2, 5, 10, 40, 100])
    deaths = rng.choice([0, 0, size // 3])
    full, others = rng.choice([0.0, 0.5]), rng.choice([0, 0, 20])
    world = FleetWorld(rng.getrandbits(64), size=size, signals=signals, deaths=deaths, full=full, others=others)
    if not any(member.free and member.serves for member in world.members):
        return
    jobs, every = 20, 2.0
    world.run(jobs=jobs, every=every)
    most = sum(_most_looks(kind, signals=signals) + 12 / every for kind in (size, others) if kind)
    if world.rate > most:
        raise Violation(COSTS, f"{world.rate:.1f} looks per second of {size} workers, at most {most:.1f}")


def _most_looks(size: int, *, signals: bool) -> float:
    """Looks per second that no job has caused: see the docstring of waking.py."""
    turns = 1 / TURN if signals else max(1 / TURN, size / LONGEST)
    return turns * 1.5
