"""The places of a worker: what runs in it now, and how much more it may claim.

A body that has ended makes room at once, while its outcome is still being written, so the next
claim overlaps with the settlement. A worker holds at most twice as many claims as it runs bodies,
not counting outcomes whose row another session has locked: these may wait for long. A worker with
many places claims them in two halves: while the bodies of one half run, the server looks for the
other.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from reltask.model.job import Hold
from reltask.worker.run import Run

WHOLE = 100
"""Up to this many places are claimed at once: one statement is cheaper than two halves."""


class ClaimPlan(NamedTuple):
    """One claim to make: from which queues, and how many jobs at most."""

    queues: list[str]
    limit: int


class Places:
    """At most `concurrency` runs in all, and at most `per_queue[queue]` of a queue that has a limit of its own."""

    def __init__(self, *, concurrency: int, queues: tuple[str, ...], per_queue: dict[str, int]) -> None:
        self._concurrency = concurrency
        self._at_once = max(WHOLE, concurrency // 2)
        self._per_queue = per_queue
        self._unlimited = [queue for queue in queues if queue not in per_queue]
        self._limited = [queue for queue in queues if queue in per_queue]
        self._runs: dict[Hold, Run] = {}
        self._bodies: dict[Run, None] = {}
        self._isolated: dict[Run, None] = {}
        self._held: set[Hold] = set()
        self._in_queue: Counter[str] = Counter()
        self._turn = 0
        self.freed = asyncio.Event()
        """Set whenever a run is over."""
        self.on_vacated: Callable[[], None] = _ignore
        """Called when bodies have ended: there is room."""
        self.on_freed: Callable[[], None] = _ignore
        """Called when the ends of runs are recorded: their jobs may be due again."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    @property
    def free(self) -> int:
        unsettled = len(self._runs) - len(self._held)
        return min(self._concurrency - len(self._bodies), 2 * self._concurrency - unsettled)

    def get(self, hold: Hold) -> Run | None:
        """The run that has this claim. From any thread."""
        return self._runs.get(hold)

    def take(self, runs: Sequence[Run]) -> None:
        """These runs are claimed, and their bodies begin."""
        self._runs.update((run.hold, run) for run in runs)
        self._bodies.update(dict.fromkeys(runs))
        self._isolated.update((run, None) for run in runs if run.claim.isolated)
        if self._per_queue:
            self._in_queue.update(run.claim.queue for run in runs)

    def vacate(self, runs: Sequence[Run]) -> None:
        """The bodies of these runs have ended. Idempotent."""
        if self._per_queue:
            self._in_queue.subtract(run.claim.queue for run in runs if run in self._bodies)
        for run in runs:
            self._bodies.pop(run, None)
        self.on_vacated()

    def hold_back(self, hold: Hold) -> None:
        """The outcome of this run waits for its row: the worker does not wait with it."""
        if hold in self._runs:
            self._held.add(hold)
            self.on_vacated()

    def give_back(self, runs: Sequence[Run]) -> None:
        """The ends of these runs are recorded."""
        for run in runs:
            self._runs.pop(run.hold, None)
            self._isolated.pop(run, None)
            self._held.discard(run.hold)
        self.freed.set()
        self.on_freed()

    async def emptied(self) -> None:
        """Wait until the end of every run is recorded."""
        while self._runs:
            self.freed.clear()
            await self.freed.wait()

    @property
    def runs_isolated(self) -> bool:
        """Whether an isolated job runs here: a worker runs one at a time."""
        return bool(self._isolated)

    def plans(self) -> Iterator[ClaimPlan]:
        """The claims worth making now. Queues with their own limits take turns at coming first."""
        self._turn += 1
        groups = [[queue] for queue in self._limited]
        if self._unlimited:
            groups.append(self._unlimited)
        for i in range(len(groups)):
            queues = groups[(i + self._turn) % len(groups)]
            room = self._per_queue[queues[0]] - self._in_queue[queues[0]] if queues[0] in self._per_queue else self.free
            limit = min(self.free, room, self._at_once)
            if limit > 0:
                yield ClaimPlan(queues, limit)


def _ignore() -> None:
    """The default callback, until the worker sets its own."""
