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

A queue that has a limit of its own, and isolated jobs, of which one runs at a time, may have no room
although the worker has. Who has left jobs for that looks again when such a body ends, not at its next
poll. Shards count these bodies together, too.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple
from uuid import UUID

from reltask.model.job import ClaimRequest, Hold
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


class Asked(NamedTuple):
    """What a claim that is under way may bring."""

    limit: int
    queue: str
    """Of which it may be, if that has a limit of its own."""
    isolated: bool


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
        self._under_way: dict[Places, Asked] = {}
        self._hungry: set[Places] = set()
        self._waiting: set[Places] = set()
        self._short: defaultdict[str | None, set[Places]] = defaultdict(set)
        """Who may have left due jobs because this queue was full, or (None) because an isolated job runs."""

    @property
    def is_shared(self) -> bool:
        return len(self.members) > 1

    def fair(self, places: Places, room: int) -> int:
        """How many of these places one shard may claim now: an equal share, if others have work as well."""
        room -= sum(asked.limit for asked in self._others(places))
        others = len(self._hungry - {places} - self._under_way.keys())
        share = -(-max(0, room) // (others + 1))
        if share == 0:
            self._waiting.add(places)
        return share

    def left_in(self, places: Places, queue: str, limit: int) -> int:
        """How many bodies of a queue with this limit may begin."""
        left = limit - self.in_queue[queue] - sum(asked.limit for asked in self._others(places) if asked.queue == queue)
        if left <= 0:
            self._short[queue].add(places)
        return left

    def takes_isolated(self, places: Places) -> bool:
        """Whether an isolated job may begin: none runs, and no other shard is claiming one."""
        takes = not self.isolated and not any(asked.isolated for asked in self._others(places))
        if not takes:
            self._short[None].add(places)
        return takes

    def _others(self, places: Places) -> list[Asked]:
        return [asked for other, asked in self._under_way.items() if other is not places]

    @contextmanager
    def claiming(self, places: Places, asked: Asked) -> Iterator[None]:
        """Around a claim of one shard."""
        if not self.is_shared:
            yield
            return
        self._under_way[places] = asked
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
        asked = self._under_way.pop(places, None)
        self._hungry.discard(places)
        self.announce()
        if asked is not None:
            self._leave(places, asked, got=0)

    def answered(self, places: Places, asked: Asked, got: int) -> None:
        """A claim of this shard is answered, and its runs are taken; the next turn is another's."""
        if not self.is_shared:
            return
        (self._hungry.add if got >= asked.limit else self._hungry.discard)(places)
        self.members.remove(places)
        self.members.append(places)
        self.announce()
        self._leave(places, asked, got=got)

    def _leave(self, places: Places, asked: Asked, *, got: int) -> None:
        """What a claim was asked for and has not brought is for the others."""
        if asked.queue and got < asked.limit:
            self.call_short(asked.queue, but=places)
        if asked.isolated and not self.isolated:
            self.call_short(None, but=places)

    def remove(self, places: Places) -> None:
        """A shard that is served no more."""
        self.members.remove(places)
        for left in (self._hungry, self._waiting, *self._short.values()):
            left.discard(places)

    def announce(self) -> None:
        """There may be room: tell the shards that found none, the one that claimed longest ago first."""
        if self._waiting:
            waiting, self._waiting = self._waiting, set()
            for places in [member for member in self.members if member in waiting]:
                places.on_offered()

    def call_short(self, queue: str | None, *, but: Places | None = None) -> None:
        """This queue has room, or (None) an isolated job may begin: who has left some looks again."""
        short = self._short[queue] - {but}
        self._short[queue] -= short
        for places in [member for member in self.members if member in short]:
            places.on_short()


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
        self.on_short: Callable[[], None] = _ignore
        """Called when a queue that was full has room, or when another isolated job may begin."""
        self.on_freed: Callable[[Sequence[Run], bool], None] = _ignore
        """Called when the ends of runs are recorded, if one of their jobs may be due again (then with True), or if
        one had limits."""

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

    def claiming(self, request: ClaimRequest) -> AbstractContextManager[None]:
        """Around a claim: for a short time its places are not offered to other shards."""
        return self._room.claiming(self, self._asked(request))

    def claimed(self, runs: Sequence[Run], request: ClaimRequest) -> Sequence[Run]:
        """Take what this claim has brought; return the runs for which no place is left, because the answer was late."""
        asked = self._asked(request)
        self.take(runs)
        if runs and runs[0].is_limited:
            self._owed[asked.queue] += len(runs) - FAIR * min(request.oldest, len(runs))
        else:
            self._filled[asked.queue] += len(runs)
        self._room.answered(self, asked, len(runs))
        surplus = len(self._bodies) - self._concurrency
        if asked.queue:
            surplus = max(surplus, self._in_queue[asked.queue] - self._per_queue[asked.queue])
        return runs[-surplus:] if surplus > 0 else ()

    def _asked(self, request: ClaimRequest) -> Asked:
        return Asked(request.limit, self._group(request.queues), request.isolated)

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
        isolated = [run for run in runs if run.claim.isolated]
        if isolated:
            self._isolated.update(dict.fromkeys(isolated))
            self._room.takes_isolated(self)  # not now: it looks again when one may begin
        if self._per_queue:
            self._in_queue.update(run.claim.queue for run in runs)

    def vacate(self, runs: Sequence[Run]) -> None:
        """The bodies of these runs have ended. Idempotent."""
        ended = [run for run in runs if run in self._bodies]
        for run in ended:
            del self._bodies[run]
        self.on_vacated()
        self._room.announce()
        if self._per_queue:
            self._in_queue.subtract(run.claim.queue for run in ended)
            for queue in {run.claim.queue for run in ended} & self._per_queue.keys():
                self._room.call_short(queue)
        if self._isolated and (isolated := [run for run in ended if run in self._isolated]):
            for run in isolated:
                del self._isolated[run]
            self._room.call_short(None)

    def hold_back(self, hold: Hold) -> None:
        """The outcome of this run waits for its row: the worker does not wait with it."""
        if hold in self._runs:
            self._held.add(hold)
            self.on_vacated()

    def give_back(self, runs: Sequence[Run], *, again: bool = True) -> None:
        """The ends of these runs are recorded. `again`: one of their jobs may be due again, or let another run."""
        limited = False
        for run in runs:
            self._runs.pop(run.hold, None)
            limited = limited or run.is_limited
        if self._held:
            self._held.difference_update(run.hold for run in runs)
        self.freed.set()
        if again or limited:
            self.on_freed(runs, again)
        else:
            self.on_vacated()

    async def emptied(self) -> None:
        """Wait until the end of every run is recorded."""
        while self._runs:
            self.freed.clear()
            await self.freed.wait()

    def takes_isolated(self) -> bool:
        """Whether an isolated job may begin: a worker runs one at a time."""
        return self._room.takes_isolated(self)

    def plans(self) -> Iterator[ClaimPlan]:
        """The claims worth making now. Queues with their own limits take turns at coming first."""
        self._turn += 1
        groups = [[queue] for queue in self._limited]
        if self._unlimited:
            groups.append(self._unlimited)
        for i in range(len(groups)):
            queues = groups[(i + self._turn) % len(groups)]
            group = self._group(queues)
            room = self._room.left_in(self, group, self._per_queue[group]) if group else self.free
            limit = min(self.free, room, self._at_once)
            if limit > 0:
                oldest = (self._filled[group] % FAIR + limit) // FAIR
                yield ClaimPlan(queues, limit, oldest, min(limit, (self._owed[group] + 1) // FAIR))

    def _group(self, queues: Sequence[str]) -> str:
        """The queue of a plan, if that has a limit of its own."""
        return queues[0] if queues[0] in self._per_queue else ""


def _ignore(*_: object) -> None:
    """The default callback, until the worker sets its own."""
