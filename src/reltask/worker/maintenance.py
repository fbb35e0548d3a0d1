"""Keeping the database in order: what no job asks for and every system needs.

    step             every   what it does
    reclaim          30 s    takes ended claims from their owners, as each poller does, too
    dead workers     30 s    marks workers that have been silent for longer than they promised
    roll up          60 s    counts the runs of the last minutes, by minute and task
    prune runs       60 s    removes old ledger rows, a batch at a time
    prune records    60 s    removes old metrics and workers that have ended
    unknown tasks    10 min  warns of due jobs that no living worker knows: they would wait for ever, and silently

Whose turn it is, `coordination.py` decides; with the lease, all but the reclaim carry the term, and write nothing under
an old one. Promise 3 does not hang on any of this: a worker reclaims by itself whenever a claim's answer says that a
lock has ended.

A batch is small. A whole one means that there is more, so the step comes again soon; in between it rests for four times
as long as the batch took, and claims pass: `make bench-prune` measures them. One step at a time, so that a long pruning
keeps no other step waiting. What fails is told, and comes again at its next time.

Idle cost is arithmetic. Of 200 idle workers with the default settings, statements a second:

    polls          200 / 60 s                        3.33
    beats          the leader, every 2 s             0.50
    tries          199 others, one every 2 s in all  0.50     (see `leader.py`)
    maintenance    2 / 30 s + 3 / 60 s + 1 / 600 s   0.12
                                              total  4.45     at most 5, and only the first line grows with workers

With `everyone` and `stealing` the last line is 200 times as long, 23.7, and nobody beats or tries: 27.0 in all. With
`advisory` 199 others try every 10 s, 19.9, each over a connection made for it.

On SQLite a worker looks for work whenever anybody has written to the file, and every beat is a write. So the lease
lasts a minute there, with a beat every 12 s. Four idle workers then look every five seconds each, because a look may
write a sign of life; a look costs a tenth of a millisecond. Whoever takes over from a leader that was killed comes a
minute later, early enough for work that nobody waits for; a leader that stops in good order is followed at once.

A worker begins only after a moment, so that `worker --once` is not kept by it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from math import inf

from reltask import events
from reltask.errors import ReltaskError
from reltask.model.clock import Clock
from reltask.model.settings import MaintenanceSettings
from reltask.service import Service
from reltask.stores.store import BATCH, Store
from reltask.worker.coordination import Turn, make_coordination
from reltask.worker.reclaim import reclaim

FIRST_AFTER = (1.0, 3.0)
"""A worker takes part after so many seconds, at least and at most."""
PRUNED = 250
"""Ledger rows in a batch, at most: some milliseconds' work."""
REST, REST_SHARE = 0.05, 4
"""Between two batches: so many seconds, or so many times as long as the last one took."""
UNKNOWN_EVERY = timedelta(minutes=10)
UNKNOWN_AFTER = timedelta(minutes=1)
"""A name that nobody knows while everybody is being started is not worth a warning."""


class Step:
    """One thing that is done again and again."""

    def __init__(
        self,
        name: str,
        every: timedelta,
        work: Callable[[Turn], Awaitable[int]],
        *,
        batch: float = inf,
        after: timedelta = timedelta(0),
    ) -> None:
        self.name = name
        self.every = every.total_seconds()
        self.work = work
        self.batch = batch
        """So many at once mean that there is more."""
        self.after = after.total_seconds()
        """Before the first time, at least."""
        self.due_at = inf


class Maintenance(Service):
    """Does the maintenance while it is this worker's turn."""

    def __init__(
        self,
        store: Store,
        settings: MaintenanceSettings,
        *,
        worker: str,
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        reclaimed: Callable[[], None],
    ) -> None:
        """`reclaimed` is called when there is something to claim again."""
        super().__init__()
        self._store = store
        self._settings = settings
        self._worker = worker
        self._clock = clock
        self._emit = emit
        self._reclaimed = reclaimed
        self._first_at = clock.monotonic() + rng.uniform(*FIRST_AFTER)
        self._started = False
        self._coordination = make_coordination(
            store, settings, worker=worker, clock=clock, rng=rng, emit=emit, wake=self.wake
        )
        self.hint = self._coordination.hint
        self._steps = self._make_steps(settings, self._coordination.batch)

    def _make_steps(self, settings: MaintenanceSettings, batch: int) -> Sequence[Step]:
        return [
            Step("reclaim", settings.reclaim, self._reclaim, batch=batch),
            Step("mark dead workers", settings.dead_workers, self._mark_dead_workers),
            Step("roll up", settings.roll_up, self._roll_up),
            Step("prune runs", settings.prune, self._prune_runs, batch=min(batch, PRUNED)),
            Step("prune records", settings.prune, self._prune_records, batch=BATCH),
            Step("look for unknown tasks", UNKNOWN_EVERY, self._warn_of_unknown_tasks, after=UNKNOWN_AFTER),
        ]

    async def tick(self) -> float | None:
        if not self._started:
            wait = self._first_at - self._clock.monotonic()
            if wait > 0:
                return wait
            await self._begin()
        turn = await self._take_turn()
        if turn is None:
            return self._coordination.ask_again()
        step = min(self._steps, key=lambda step: step.due_at)
        wait = step.due_at - self._clock.monotonic()
        if wait > 0:
            return wait
        await self._do(step, turn)
        return 0.0

    async def closed(self) -> None:
        if self._started:
            await self._coordination.stop()

    async def _begin(self) -> None:
        self._started = True
        await self._coordination.start()
        now = self._clock.monotonic()
        for step in self._steps:
            step.due_at = now + step.after + self._coordination.stagger(step.every, first=True)

    async def _take_turn(self) -> Turn | None:
        """Whose turn it is cannot be told while the database is away: nobody's."""
        try:
            return await self._coordination.turn()
        except ReltaskError as error:
            self._tell("take a turn", error, self._coordination.ask_again() or 0.0)
            return None

    async def _do(self, step: Step, turn: Turn) -> None:
        """One step. Its next time is set before it begins: whatever happens to it, the others have their turn."""
        began = self._clock.monotonic()
        wait = self._coordination.stagger(step.every, first=False)
        step.due_at = began + wait
        try:
            count = await step.work(turn)
        except ReltaskError as error:
            self._coordination.worked(items=0, errors=1)
            self._tell(step.name, error, wait)
            return
        self._coordination.worked(items=count, errors=0)
        if count >= step.batch:
            now = self._clock.monotonic()
            step.due_at = now + max(REST, REST_SHARE * (now - began))

    def _tell(self, step: str, error: ReltaskError, retry_in: float) -> None:
        self._emit(events.MaintenanceFailed(worker=self._worker, step=step, error=str(error), retry_in=retry_in))

    # The steps: each does at most a batch, and says how much it did

    async def _reclaim(self, _turn: Turn) -> int:
        """Without the term: every poller does it, and the claims' own fences are all the protection it needs."""
        count = await reclaim(self._store, worker=self._worker, emit=self._emit, limit=self._coordination.batch)
        if count:
            self._reclaimed()
        return count

    async def _mark_dead_workers(self, turn: Turn) -> int:
        died = await self._store.mark_dead_workers(leader=turn.leader)
        for who in died:
            self._emit(events.WorkerDied(worker=self._worker, who=who))
        return len(died)

    async def _roll_up(self, turn: Turn) -> int:
        return await self._store.roll_up_runs(leader=turn.leader)

    async def _prune_runs(self, turn: Turn) -> int:
        settings = self._settings
        count = await self._store.prune_runs(
            older_than=settings.keep_runs,
            most=settings.keep_runs_count,
            leader=turn.leader,
            limit=min(self._coordination.batch, PRUNED),
        )
        if count:
            self._emit(events.RunsPruned(worker=self._worker, count=count))
        return count

    async def _prune_records(self, turn: Turn) -> int:
        settings = self._settings
        return await self._store.prune_records(
            workers=settings.keep_workers, metrics=settings.keep_metrics, leader=turn.leader
        )

    async def _warn_of_unknown_tasks(self, _turn: Turn) -> int:
        unknown = (await self._store.read_status()).unknown
        if unknown:
            self._emit(events.TasksUnknown(worker=self._worker, counts=unknown))
        return 0
