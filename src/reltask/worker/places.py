"""The places of a worker: what runs in it now, and how much more it may take.

A body that has ended makes room at once, while its outcome is still on its way: so the next claim and the last
settlement travel together. A worker holds at most twice as many claims as it runs bodies. One that runs many takes them
in two halves: while the bodies of one half run, the server looks for the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from reltask.model.job import Hold
from reltask.worker.run import Run

WHOLE = 100
"""So many are never claimed by halves: one statement is cheaper than two."""


class ClaimPlan(NamedTuple):
    """One claim to make: which queues, and how many jobs at the most."""

    queues: list[str]
    limit: int


class Places:
    """At most `concurrency` runs in all, and at most so many of a queue that has a limit of its own."""

    def __init__(self, *, concurrency: int, queues: tuple[str, ...], per_queue: dict[str, int]) -> None:
        self._concurrency = concurrency
        self._at_once = max(WHOLE, concurrency // 2)
        self._per_queue = per_queue
        self._unlimited = [queue for queue in queues if queue not in per_queue]
        self._limited = [queue for queue in queues if queue in per_queue]
        self._runs: dict[Hold, Run] = {}
        self._bodies: dict[Run, None] = {}
        self._isolated: dict[Run, None] = {}
        self._in_queue: Counter[str] = Counter()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    @property
    def free(self) -> int:
        return min(self._concurrency - len(self._bodies), 2 * self._concurrency - len(self._runs))

    def get(self, hold: Hold) -> Run | None:
        """Whose this claim is. From any thread."""
        return self._runs.get(hold)

    def take(self, runs: Sequence[Run]) -> None:
        """They are claimed, and their bodies begin."""
        self._runs.update((run.hold, run) for run in runs)
        self._bodies.update(dict.fromkeys(runs))
        self._isolated.update((run, None) for run in runs if run.claim.isolated)
        if self._per_queue:
            self._in_queue.update(run.claim.queue for run in runs)

    def vacate(self, runs: Sequence[Run]) -> None:
        """Their bodies have ended. To say so twice harms nobody."""
        if self._per_queue:
            self._in_queue.subtract(run.claim.queue for run in runs if run in self._bodies)
        for run in runs:
            self._bodies.pop(run, None)

    def give_back(self, runs: Sequence[Run]) -> None:
        """Their ends are on record."""
        for run in runs:
            self._runs.pop(run.hold, None)
            self._isolated.pop(run, None)

    def isolated(self) -> Iterable[Run]:
        """Runs whose last run was lost: they are given the worker to themselves."""
        return self._isolated

    def wishes(self) -> Iterator[ClaimPlan]:
        """The claims worth making now. Queues with limits of their own take turns in being asked first."""
        self._turn += 1
        groups = [[queue] for queue in self._limited]
        if self._unlimited:
            groups.append(self._unlimited)
        for i in range(len(groups)):
            queues = groups[(i + self._turn) % len(groups)]
            limit = min(self.free, self._room(queues), self._at_once)
            if limit > 0:
                yield ClaimPlan(queues, limit)

    def _room(self, queues: list[str]) -> int:
        queue = queues[0]
        return self._per_queue[queue] - self._in_queue[queue] if queue in self._per_queue else self.free
