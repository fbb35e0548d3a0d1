"""Maintenance of the database: reclaiming, counting, pruning.

    step             every   what it does
    watch            1 s     signals what is overdue, and reclaims at once when a lock has ended (`waking.py`)
    reclaim          30 s    takes ended claims from their owners, as each poller does, too
    dead workers     30 s    marks workers that have been silent for longer than they promised
    roll up          60 s    counts the runs of the last minutes, by minute and task
    prune runs       60 s    removes old ledger rows, a batch at a time
    prune records    60 s    removes old metrics and workers that have ended
    recount limits   60 s    counts the places of limits again, and marks keys that have room
    cancel children  60 s    ends jobs whose parent, a durable function, has ended its slot; stops those that run
    prune keys       60 s    removes keys of unique tasks whose jobs have ended, a batch at a time
    unknown tasks    10 min  warns of due jobs that no living worker knows: they would wait for ever

`coordination.py` decides which worker does it. With the lease, all steps but the reclaim carry the
term, and write nothing under an old one. Promise 3 does not depend on this: each worker also
reclaims by itself when a claim's answer says that a lock has ended.

A batch is small. A full one means that there is more, so the step is repeated soon. In between it
rests, so that claims get through. After each batch the step that is due first comes next, so a long
pruning delays no other step. A step that fails is reported, and tried again at its next time.

Pruning is paced by its backlog (`Backlog`). A full batch makes the next one larger and the rest
before it shorter; one that was not full, or that took long, does the opposite. If 1 000 rows take
10 ms, as on PostgreSQL with a local disk, a leader removes per second:

    level   rows   rest, at least      rows/s
    0        250   50 ms, 4 x batch     4 800    where a little backlog ends: 250 / (2.5 + 50 ms)
    1        500   25 ms, 2 x batch    16 700
    2      1 000   12.5 ms, as long    44 400
    3      1 000   5 ms, as long       50 000    one process completes 30 000 jobs/s at most

So it works half of the time at most. A slower disk makes the batches longer, and the rests with
them: where 1 000 rows take 40 ms, it removes 12 500 rows/s. `make bench-prune` times claims
meanwhile. On SQLite a batch also waits for the file's other writers, which makes it a slow one: in
a file that another process wrote to without a pause, a leader removed 2 800 rows/s. Where all
workers prune (`everyone`, `stealing`), each stays at level 0: their number makes them fast
enough.

The idle cost can be computed. Statements per second of 120 or more idle workers with the default
settings:

    polls          n / max(60 s, n / 2 s)            2.00     (see `waking.py`)
    watch          the leader, every second          1.00
    beats          the leader, every 2 s             0.50
    tries          n - 1 others, one every 2 s       0.50     (see `leader.py`)
    maintenance    2 / 30 s + 5 / 60 s + 1 / 600 s   0.15
    signs of life  one listener, every 5 s           0.20     (PostgreSQL: see `stores/postgres/listening.py`)
                                              total  4.35     at most 5, whatever their number

With `everyone` and `stealing` no worker watches for all, and the maintenance is n times as large: 30.3
for 200 workers, and there are no beats and tries. With `advisory` 199 others try every 10 s: 19.9, each
over a new connection. Without signals there is no watch.

On SQLite a worker looks for work after every write to the file, and every beat is a write. So the
lease lasts a minute there, with a beat every 12 s. Four idle workers then look every five seconds
each, because a look may write a sign of life; a look costs a tenth of a millisecond. After a leader
was killed, another worker takes over within a minute, which is soon enough for maintenance. After a
leader that stops in good order, another takes over at once.

A worker begins only after a second or more, so that maintenance does not delay `worker --once`.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from math import inf
from typing import NamedTuple

from reltask import events
from reltask.errors import ReltaskError
from reltask.model.clock import Clock
from reltask.model.settings import MaintenanceSettings
from reltask.service import Service
from reltask.stores.store import BATCH, Store
from reltask.worker.coordination import Turn, make_coordination
from reltask.worker.reclaim import reclaim
from reltask.worker.waking import EXPIRY_PAUSE, Watch

FIRST_AFTER = (1.0, 3.0)
"""Seconds after its start until a worker takes part, at least and at most."""
LONG = 0.05
"""Seconds. A batch of ledger rows that takes longer is followed by a smaller one."""
WATCH_EVERY = timedelta(seconds=1)
OVERDUE = timedelta(milliseconds=250)
"""What is due for a shorter time may have been signalled just now."""
UNKNOWN_EVERY = timedelta(minutes=10)
UNKNOWN_AFTER = timedelta(minutes=1)
"""No warning about unknown tasks before this: other workers may still be starting."""


class BatchLevel(NamedTuple):
    """How to remove a backlog."""

    rows: int
    """Rows in a batch, at most."""
    rest: float
    """Seconds between two batches, at least."""
    share: float
    """The rest also lasts for this many times the last batch."""


LEVELS = [
    BatchLevel(250, 0.05, 4),
    BatchLevel(500, 0.025, 2),
    BatchLevel(BATCH, 0.0125, 1),
    BatchLevel(BATCH, 0.005, 1),
]
WHOLE = [BatchLevel(BATCH, 0.05, 4)]
"""For work that seldom fills a batch."""
ALONE = {"lease", "advisory"}
"""The coordinations with which one worker does it for all."""


class Backlog:
    """How much to do at once, and how long to rest after a full batch: see the module's docstring."""

    def __init__(self, levels: Sequence[BatchLevel], *, most: int) -> None:
        self._levels = levels
        self._most = most
        self._level = 0

    @property
    def batch(self) -> int:
        """The size of the next batch."""
        return min(self._most, self._levels[self._level].rows)

    def worked(self, count: int, took: float) -> float | None:
        """A batch of this size is done; return the seconds to rest, or None: there is no more."""
        if count < self.batch:
            self._level = 0
            return None
        up = -1 if took > LONG else 1
        self._level = min(max(0, self._level + up), len(self._levels) - 1)
        level = self._levels[self._level]
        return max(level.rest, level.share * took)


class MaintenanceStep:
    """One kind of maintenance, with its interval."""

    def __init__(
        self,
        name: str,
        every: timedelta,
        work: Callable[[Turn], Awaitable[int]],
        *,
        backlog: Backlog | None = None,
        after: timedelta = timedelta(0),
    ) -> None:
        self.name = name
        self.every = every.total_seconds()
        self.work = work
        self.backlog = backlog
        """Set if a turn does not always do all of it."""
        self.after = after.total_seconds()
        """Seconds before the first time, at least."""
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
        """`reclaimed` is called when reclaimed jobs can be claimed again."""
        super().__init__()
        self._store = store
        self._settings = settings
        self._worker = worker
        self._clock = clock
        self._emit = emit
        self._reclaimed = reclaimed
        self._first_at = clock.monotonic() + rng.uniform(*FIRST_AFTER)
        self._started = False
        self._last_key = ("", "")
        self._watch = Watch()
        self._watching = MaintenanceStep("watch", WATCH_EVERY, self._look_for_all)
        self._looked_twice = False
        self.watches = True
        """Whether there are signals that tell workers what the watch has found. Set before the start."""
        self._alone = settings.coordination in ALONE
        self._coordination = make_coordination(
            store, settings, worker=worker, clock=clock, rng=rng, emit=emit, wake=self.wake
        )
        self.hint = self._coordination.hint
        levels = LEVELS if self._alone else LEVELS[:1]
        self._old_runs = Backlog(levels, most=self._coordination.batch)
        self._steps = self._make_steps(settings, self._coordination.batch)

    def _make_steps(self, settings: MaintenanceSettings, batch: int) -> list[MaintenanceStep]:
        return [
            MaintenanceStep("reclaim", settings.reclaim, self._reclaim, backlog=Backlog(WHOLE, most=batch)),
            MaintenanceStep("mark dead workers", settings.dead_workers, self._mark_dead_workers),
            MaintenanceStep("roll up", settings.roll_up, self._roll_up),
            MaintenanceStep("prune runs", settings.prune, self._prune_runs, backlog=self._old_runs),
            MaintenanceStep("prune records", settings.prune, self._prune_records, backlog=Backlog(WHOLE, most=BATCH)),
            MaintenanceStep(
                "cancel children", settings.prune, self._cancel_children, backlog=Backlog(WHOLE, most=BATCH)
            ),
            MaintenanceStep("recount limits", settings.prune, self._recount_limits, backlog=Backlog(WHOLE, most=BATCH)),
            MaintenanceStep("prune keys", settings.prune, self._prune_keys, backlog=Backlog(WHOLE, most=BATCH)),
            MaintenanceStep("look for unknown tasks", UNKNOWN_EVERY, self._warn_of_unknown_tasks, after=UNKNOWN_AFTER),
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
        if self._alone and self.watches:
            self._steps.append(self._watching)
        for step in self._steps:
            step.due_at = now + step.after + self._coordination.stagger(step.every, first=True)

    async def _take_turn(self) -> Turn | None:
        """The turn, or None. While the database is unavailable no worker has it."""
        try:
            return await self._coordination.turn()
        except ReltaskError as error:
            self._report("take a turn", error, self._coordination.ask_again() or 0.0)
            return None

    async def _do(self, step: MaintenanceStep, turn: Turn) -> None:
        """Do one step.

        Its next time is set first, so that a failing step does not block the others.
        """
        began = self._clock.monotonic()
        wait = self._coordination.stagger(step.every, first=False)
        step.due_at = began + wait
        try:
            count = await step.work(turn)
        except ReltaskError as error:
            self._coordination.worked(items=0, errors=1)
            self._report(step.name, error, wait)
            return
        if step is not self._watching or count:  # a leader that only watches has finished nothing
            self._coordination.worked(items=count, errors=0)
        now = self._clock.monotonic()
        rest = None if step.backlog is None else step.backlog.worked(count, now - began)
        if rest is not None:
            step.due_at = now + rest

    def _report(self, step: str, error: ReltaskError, retry_in: float) -> None:
        self._emit(events.MaintenanceFailed(worker=self._worker, step=step, error=str(error), retry_in=retry_in))

    # The steps: each does at most a batch, and says how much it did

    async def _reclaim(self, _turn: Turn) -> int:
        """Needs no term: every poller does it, too, and the claims' fences protect it."""
        count = await reclaim(self._store, worker=self._worker, emit=self._emit, limit=self._coordination.batch)
        if count:
            self._reclaimed()
        return count

    async def _look_for_all(self, turn: Turn) -> int:
        """Needs no term: a signal too many costs some looks."""
        overdue = await self._store.read_overdue(since=OVERDUE)
        if overdue.expired:
            count = await self._reclaim(turn)
            if count:
                await self._store.signal()
            elif not self._looked_twice:  # SQLite reclaims what it has seen expired twice
                self._watching.due_at = self._clock.monotonic() + EXPIRY_PAUSE[1]
            self._looked_twice = not (count or self._looked_twice)
            return count
        wanted = self._watch.seen(overdue)
        if wanted:
            self._reclaimed()
            await self._store.signal(wanted=wanted)
        return 0

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
            limit=self._old_runs.batch,
        )
        if count:
            self._emit(events.RunsPruned(worker=self._worker, count=count))
        return count

    async def _prune_records(self, turn: Turn) -> int:
        settings = self._settings
        return await self._store.prune_records(
            workers=settings.keep_workers, metrics=settings.keep_metrics, leader=turn.leader
        )

    async def _cancel_children(self, _turn: Turn) -> int:
        """Needs no term: a job whose parent has ended is cancelled once, by any worker."""
        orphans = await self._store.cancel_children()
        if orphans.stopping:
            await self._store.signal_cancel(orphans.stopping)
        return len(orphans.ended) + len(orphans.stopping)

    async def _recount_limits(self, _turn: Turn) -> int:
        """Needs no term: the locked row of each key protects it."""
        count = await self._store.recount_limits()
        if count:
            self._reclaimed()
            await self._store.signal()
        return count

    async def _prune_keys(self, _turn: Turn) -> int:
        """A batch of the keys of unique tasks, and the next batch the next time."""
        count, last = await self._store.prune_keys(after=self._last_key, limit=BATCH)
        self._last_key = last or ("", "")
        return count

    async def _warn_of_unknown_tasks(self, _turn: Turn) -> int:
        unknown = (await self._store.read_status()).unknown
        if unknown:
            self._emit(events.TasksUnknown(worker=self._worker, counts=unknown))
        return 0
