"""The places of a worker: what runs in it now, and how much more it may take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from reltask.engine.run import Run
from reltask.job import Hold


class Wish(NamedTuple):
    """One claim to make: which queues, and how many jobs at the most."""

    queues: list[str]
    limit: int


class Places:
    """At most `concurrency` runs in all, and at most so many of a queue that has a limit of its own."""

    def __init__(self, *, concurrency: int, queues: tuple[str, ...], per_queue: dict[str, int]) -> None:
        self._concurrency = concurrency
        self._per_queue = per_queue
        self._unlimited = [queue for queue in queues if queue not in per_queue]
        self._limited = [queue for queue in queues if queue in per_queue]
        self._runs: dict[Hold, Run] = {}
        self._in_queue: Counter[str] = Counter()
        self._turn = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    @property
    def free(self) -> int:
        return self._concurrency - len(self._runs)

    def get(self, hold: Hold) -> Run | None:
        return self._runs.get(hold)

    def take(self, run: Run) -> None:
        self._runs[run.hold] = run
        self._in_queue[run.claim.queue] += 1

    def give_back(self, run: Run) -> None:
        del self._runs[run.hold]
        self._in_queue[run.claim.queue] -= 1

    def isolated(self) -> list[Run]:
        """Runs whose last run was lost: they are given the worker to themselves."""
        return [run for run in self._runs.values() if run.claim.isolated]

    def wishes(self) -> Iterator[Wish]:
        """The claims worth making now. Queues with limits of their own take turns in being asked first."""
        self._turn += 1
        groups = [[queue] for queue in self._limited]
        if self._unlimited:
            groups.append(self._unlimited)
        for i in range(len(groups)):
            queues = groups[(i + self._turn) % len(groups)]
            limit = min(self.free, self._room(queues))
            if limit > 0:
                yield Wish(queues, limit)

    def _room(self, queues: list[str]) -> int:
        queue = queues[0]
        return self._per_queue[queue] - self._in_queue[queue] if queue in self._per_queue else self.free
