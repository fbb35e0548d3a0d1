"""The places of a worker: what runs in it now, and how much more it may claim.

A body that has ended makes room at once, while its outcome is still being written, so the next
claim overlaps with the settlement. A worker holds at most twice as many claims as it runs bodies,
not counting outcomes whose row another session has locked: these may wait for long. A worker with
many places claims them in two halves: while the bodies of one half run, the server looks for the
other.

Jobs are claimed in order of priority, but every tenth place goes to the lane whose first job has
waited longest. So under a load of priority 0 that never ends, a job of priority 9 waits for the jobs
that were due before it, each of which takes ten places at most, and not for ever. Jobs with limits
are claimed by looks of their own, which may fill far fewer places than are free: their tenth places
are counted apart, after the look. One that is due is asked for by the next.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple
from uuid import UUID

from reltask.model.job import Hold
from reltask.worker.run import Run

WHOLE = 100
"""Up to this many places are claimed at once: one statement is cheaper than two halves."""
FAIR = 10
"""One of this many places goes to the job that has waited longest, whatever its priority."""


class ClaimPlan(NamedTuple):
    """One claim to make: from which queues, and how many jobs at most."""

    queues: list[str]
    limit: int
    oldest: int = 0
    """How many of them go to the lane whose first job has waited longest."""
    oldest_limited: int = 0
    """As `oldest`, if the claim is one of jobs with limits."""


RESERVED = 1.0
"""Seconds for which a claim that is not answered keeps its places from other shards."""


class Room:
    """The bodies that run in a worker: of one database, or of several shards that share its places.

    Shards claim in turns. A claim that is under way keeps the places that it may fill, but a shard that
    does not answer must not keep the others from them: after RESERVED seconds they are offered again,
    and what that claim brings is released where no place is left.
    """

    def __init__(self) -> None:
        self.bodies: dict[Run, None] = {}
        self.isolated: dict[Run, None] = {}
        self.in_queue: Counter[str] = Counter()
        self.members: list[Places] = []
        self._under_way: dict[Places, int] = {}
        self._hungry: set[Places] = set()
        self._waiting: set[Places] = set()

    @property
    def is_shared(self) -> bool:
        return len(self.members) > 1

    def fair(self, places: Places, room: int) -> int:
        """How many of these places one shard may claim now: an equal share, if others have work as well."""
        room -= sum(limit for other, limit in self._under_way.items() if other is not places)
        others = len(self._hungry - {places} - self._under_way.keys())
        share = -(-max(0, room) // (others + 1))
        if share == 0:
            self._waiting.add(places)
        return share

    @contextmanager
    def claiming(self, places: Places, limit: int) -> Iterator[None]:
        """Around a claim of one shard."""
        if not self.is_shared:
            yield
            return
        self._under_way[places] = limit
        lapse = asyncio.get_running_loop().call_later(RESERVED, self._lapse, places)
        try:
            yield
        except BaseException:
            self._lapse(places)
            raise
        finally:
            lapse.cancel()
            self._under_way.pop(places, None)

    def _lapse(self, places: Places) -> None:
        """A claim has failed, or is late: its places are for the others."""
        self._under_way.pop(places, None)
        self._hungry.discard(places)
        self.announce()

    def answered(self, places: Places, *, hungry: bool) -> None:
        """A claim of this shard is answered; the next turn is another's."""
        if self.is_shared:
            (self._hungry.add if hungry else self._hungry.discard)(places)
            self.members.remove(places)
            self.members.append(places)
            self.announce()

    def remove(self, places: Places) -> None:
        """A shard that is served no more."""
        self.members.remove(places)
        self._hungry.discard(places)

    def announce(self) -> None:
        """There may be room: tell the shards that found none, the one that claimed longest ago first."""
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for places in [member for member in self.members if member in waiting]:
                places.on_offered()


class Places:
    """At most `concurrency` runs in all, and at most `per_queue[queue]` of a queue that has a limit of its own."""

    def __init__(
        self, *, concurrency: int, queues: tuple[str, ...], per_queue: dict[str, int], room: Room | None = None
    ) -> None:
        """`room` is shared by the shards of a worker; claims and outcomes are each one's own."""
        self._concurrency = concurrency
        self._at_once = max(WHOLE, concurrency // 2)
        self._per_queue = per_queue
        self._unlimited = [queue for queue in queues if queue not in per_queue]
        self._limited = [queue for queue in queues if queue in per_queue]
        self._runs: dict[Hold, Run] = {}
        self._held: set[Hold] = set()
        self._room = room or Room()
        self._room.members.append(self)
        self._bodies, self._isolated, self._in_queue = self._room.bodies, self._room.isolated, self._room.in_queue
        self._filled: Counter[str] = Counter()
        """Places filled so far, by queue if that has its own limit: each group has its own tenth places."""
        self._owed: Counter[str] = Counter()
        """The same for jobs with limits, less FAIR for each that went to the one that had waited longest."""
        self._turn = 0
        self.freed = asyncio.Event()
        """Set whenever a run is over."""
        self.on_vacated: Callable[[], None] = _ignore
        """Called when bodies have ended: there is room."""
        self.on_offered: Callable[[], None] = _ignore
        """Called when another shard has left room, after there was none."""
        self.on_freed: Callable[[Sequence[Run]], None] = _ignore
        """Called when the ends of runs are recorded whose jobs may be due again, or that let others begin."""

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[Run]:
        return iter(list(self._runs.values()))

    @property
    def free(self) -> int:
        unsettled = len(self._runs) - len(self._held)
        room = self._concurrency - len(self._bodies)
        if self._room.is_shared:
            room = self._room.fair(self, room)
        return max(0, min(room, 2 * self._concurrency - unsettled))

    def claiming(self, limit: int) -> AbstractContextManager[None]:
        """Around a claim: for a short time its places are not offered to other shards."""
        return self._room.claiming(self, limit)

    def claimed(self, runs: Sequence[Run], plan: ClaimPlan, limit: int) -> Sequence[Run]:
        """Take these runs; return those for which no place is left, because the answer was late."""
        self.take(runs)
        if runs and runs[0].is_limited:
            self._owed[self._group(plan.queues[0])] += len(runs) - FAIR * min(plan.oldest, len(runs))
        else:
            self._filled[self._group(plan.queues[0])] += len(runs)
        self._room.answered(self, hungry=len(runs) >= limit)
        surplus = len(self._bodies) - self._concurrency
        return runs[-surplus:] if surplus > 0 else ()

    def leave(self) -> None:
        """This shard is served no more."""
        self._room.remove(self)

    def get(self, hold: Hold) -> Run | None:
        """The run that has this claim. From any thread."""
        return self._runs.get(hold)

    def run_of(self, job_id: UUID, now: float) -> Run | None:
        """This worker's run of a job, if its end is still to be computed.

        None for a run that was brought forward: its nominal time is in the future, and a new
        schedule would begin there.
        """
        for run in self:
            if run.hold.job_id == job_id and not run.has_ended and not run.is_completing:
                return run if run.claim.nominal <= run.now(now) else None
        return None

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
        self._room.announce()

    def hold_back(self, hold: Hold) -> None:
        """The outcome of this run waits for its row: the worker does not wait with it."""
        if hold in self._runs:
            self._held.add(hold)
            self.on_vacated()

    def give_back(self, runs: Sequence[Run], *, again: bool = True) -> None:
        """The ends of these runs are recorded. `again`: one of their jobs may be due again, or let another run."""
        for run in runs:
            self._runs.pop(run.hold, None)
            if run.claim.isolated:
                self._isolated.pop(run, None)
            again = again or run.is_limited
        if self._held:
            self._held.difference_update(run.hold for run in runs)
        self.freed.set()
        if again or (self._per_queue and any(run.claim.queue in self._per_queue for run in runs)):
            self.on_freed(runs)
        else:
            self.on_vacated()

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
            group = self._group(queues[0])
            room = self._per_queue[group] - self._in_queue[group] if group else self.free
            limit = min(self.free, room, self._at_once)
            if limit > 0:
                oldest = (self._filled[group] % FAIR + limit) // FAIR
                yield ClaimPlan(queues, limit, oldest, min(limit, (self._owed[group] + 1) // FAIR))

    def _group(self, queue: str) -> str:
        return queue if queue in self._per_queue else ""


def _ignore(*_: object) -> None:
    """The default callback, until the worker sets its own."""
