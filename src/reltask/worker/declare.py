"""Writes the recurring jobs that the code declares into the table.

A row keeps a hash of its last declaration and the version of the app that made it. A starting
worker inserts missing rows. It rewrites a row only if its own declaration differs and its app is
not older. So old and new workers can run side by side, and a change that an operator made at run
time stays until the declaration itself changes.

A claimed slot is never moved, and its worker ends it by the schedule that it has claimed. A
starting worker that finds a claimed slot tries again until the slot has ended or is its own. A job
that runs back to back is hardly ever unclaimed: its holder rewrites it while it runs, and ends the
slot by the new schedule.

Tries are made 2, 4, 8 … 60 s apart: a slot that runs elsewhere for an hour costs about 65 of them
per starting worker, not 1 800. A worker that claims such a slot itself tries within a second. It
sees that in its own memory, without a statement.

A renamed task declares the row under its old name, if there is one. Workers of both versions then
share that row; a second row would run everything twice.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from reltask import events
from reltask.errors import AmbiguousError, DeclarationError, ReltaskError
from reltask.model.job import Declared, NewJob
from reltask.model.limit import LimitRule
from reltask.model.schedule import Schedule, decode, first_slot, has_ended, next_after_change
from reltask.model.task import Registry
from reltask.producer.enqueue import insert_surely
from reltask.service import Service
from reltask.stores.store import Store
from reltask.worker.run import Run

AGAIN, AGAIN_MOST = 2.0, 60.0
"""Seconds until a declaration that found its job running is tried again: the first time, and at most."""
LOOK = 1.0
"""Seconds between two looks whether this worker runs such a job itself."""
BLOCKED = 60.0
"""Seconds until a declaration whose key a one-off has is tried again: that job may be due in a year."""
DeclaredRows = dict[tuple[str, str | None], Declared]
"""By task and key."""


class LeftOver(NamedTuple):
    """A recurring job that still runs although the code does not declare it."""

    row: Declared
    beside: str | None
    """The former or present name of its task whose row has taken its place; None: the declaration is gone."""


class Declaration(NamedTuple):
    """The result of declaring."""

    left_over: list[LeftOver]
    outdated: list[Declared]
    """Rows that a newer version of the app has declared: our different declaration is ignored."""
    blocking: list[Declared]
    """One-offs that have the key of a schedule: the schedule is inserted when they are done."""
    waits: bool
    """Whether a job or a limit could not be written: the job runs, another session has it, or was faster."""
    runs_here: Callable[[], bool]
    """Whether this worker now runs one of those that wait to be rewritten."""

    def problems(self, *, worker: str, app_version: str | None) -> Iterator[events.Event]:
        """What people should know about it."""
        for row, beside in self.left_over:
            yield events.ScheduleLeftOver(worker=worker, task=row.task, key=row.key, job_id=row.id, beside=beside)
        for row in self.blocking:
            yield events.ScheduleBlocked(worker=worker, task=row.task, key=row.key, job_id=row.id)
        for row in self.outdated:
            yield events.DeclarationIgnored(
                worker=worker,
                task=row.task,
                key=row.key,
                job_id=row.id,
                version=app_version,
                newer=row.app_version,
            )


async def declare(
    store: Store,
    jobs: Sequence[NewJob],
    registry: Registry,
    *,
    worker: str,
    run_of: Callable[[UUID], Run | None],
    app_version: str | None = None,
) -> Declaration:
    """Write these declarations into the table, and return the rows that differ from them.

    `run_of` returns the worker's own run of a job, if its end is still to be computed.

    Safe from any number of workers at once. Two versions that start on an empty table at the same
    moment can insert a row each, under the old name and the new. Both stay, and the next worker
    that starts reports it.
    """
    read = await _read(store, jobs, registry)
    rows = {name: row for name, row in read.items() if row.schedule is not None}
    found = [(job, _rows_of(job, registry, rows)) for job in jobs]
    missing = [job for job, own in found if not own]
    blocking = [read[job.task, job.key] for job in missing if (job.task, job.key) in read]
    free = [job for job in missing if (job.task, job.key) not in read]
    made = await _insert(store, free) if free else True
    news = [(job, own[0]) for job, own in found if own and _is_news(job, own[0])]
    done = [await _rewrite(store, job, row, worker, run_of(row.id)) for job, row in news]
    outdated = [own[0] for job, own in found if own and _is_outdated(job, own[0])]
    left_over = _left_over([own for _, own in found], rows, app_version)
    waiting = [row.id for (_, row), won in zip(news, done, strict=True) if not won]
    return Declaration(
        left_over,
        outdated,
        blocking,
        waits=not made or bool(waiting),
        runs_here=lambda: any(run_of(job_id) is not None for job_id in waiting),
    )


async def _rewrite(store: Store, job: NewJob, row: Declared, worker: str, run: Run | None) -> bool:
    """Rewrite a row; False: it runs elsewhere, or another worker has just rewritten it."""
    if run is None:
        moved = _moved(job, row)
        if moved.run_at is not None and has_ended(decode(job.schedule or ""), moved.run_at):
            return await store.discard_job(row.id)  # the new schedule is over already
        return await store.declare_job(moved, seen=row)
    before, run.redeclared = run.redeclared, job.schedule  # first: its body may end at any time
    try:
        won = await store.declare_job(_moved(job, row), seen=row, worker=worker, fence=run.hold.fence)
    except ReltaskError as error:
        if not isinstance(error, AmbiguousError):  # that one may be applied, as after a cancellation
            run.redeclared = before
        raise
    if not won:
        run.redeclared = before
    return won


class Redeclaring(Service):
    """Declares again until nothing waits any more."""

    def __init__(self, attempt: Callable[[], Awaitable[Declaration]]) -> None:
        super().__init__()
        self._attempt = attempt
        self._pause = AGAIN
        self._left = 0.0
        """Seconds until the next try."""
        self._runs_here: Callable[[], bool] = lambda: False

    async def tick(self) -> float | None:
        if self._left <= 0 or self._runs_here():
            try:
                declared = await self._attempt()
            except ReltaskError:  # the poller reports an outage
                return AGAIN
            if not declared.waits:
                return BLOCKED if declared.blocking else None
            self._runs_here = declared.runs_here
            self._left, self._pause = self._pause, min(2 * self._pause, AGAIN_MOST)
        self._left -= LOOK
        return LOOK


async def _read(store: Store, jobs: Sequence[NewJob], registry: Registry) -> DeclaredRows:
    """The rows with the names of these declarations, and the rows of known tasks without a key.

    A key that is no longer declared is not known here, so its row is not read.
    """
    names = {(name, job.key) for job in jobs for name in registry.get(job.task).names}
    names |= {(name, None) for name in registry.names()}
    return {(row.task, row.key): row for row in (await store.read_declared(list(names)) if names else [])}


def _rows_of(job: NewJob, registry: Registry, rows: DeclaredRows) -> list[Declared]:
    """The rows of this declaration: the one under the task's own name first, then former names."""
    return [row for name in registry.get(job.task).names if (row := rows.get((name, job.key)))]


def _left_over(found: list[list[Declared]], rows: DeclaredRows, app_version: str | None) -> list[LeftOver]:
    doubled = [LeftOver(row, beside=first.task) for first, *others in filter(None, found) for row in others]
    meant = {row.id for own in found for row in own}
    gone = [row for row in rows.values() if row.id not in meant and _was_declared(row, app_version)]
    return doubled + [LeftOver(row, beside=None) for row in gone]


def _was_declared(row: Declared, app_version: str | None) -> bool:
    """Whether code declared it, and not code of a newer version than ours."""
    return row.declaration is not None and not is_older(app_version, row.app_version)


async def _insert(store: Store, jobs: list[NewJob]) -> bool:
    """Insert declarations; whether all were new.

    A grid's first slot depends on the database's time.
    """
    now = await store.read_now()
    rules = [(job, decode(job.schedule or "")) for job in jobs]
    placed = [
        (job, moment)
        for job, rule in rules
        if not has_ended(rule, moment := first_slot(rule, now, str(job.id)))  # else it has run for the last time
    ]
    created = await insert_surely([msgspec.structs.replace(job, run_at=moment) for job, moment in placed], store)
    return len(created) == len(placed)


async def declare_limits(store: Store, rules: Sequence[LimitRule]) -> bool:
    """Write the limits that the code declares, as `declare` does for schedules: run-time changes stay until then.

    False: another session is writing one of them, or was faster.
    """
    if not rules:
        return True
    known = {rule.name: rule for rule in await store.read_limits()}
    written = True
    for rule in rules:
        row = known.get(rule.name)
        if row is None:
            written &= await store.write_limit(rule, seen=None)
        elif row.declaration != rule.declaration and not is_older(rule.app_version, row.app_version):
            written &= await store.write_limit(rule, seen=row.declaration)
    return written


def _is_news(job: NewJob, row: Declared) -> bool:
    return job.declaration != row.declaration and not is_older(job.app_version, row.app_version)


def _is_outdated(job: NewJob, row: Declared) -> bool:
    return job.declaration != row.declaration and is_older(job.app_version, row.app_version)


def _moved(job: NewJob, row: Declared) -> NewJob:
    """The declaration as it is to be written into this row, which may have a former name of the task."""
    before = _read_schedule(row)
    after = decode(job.schedule or "")
    moment = next_after_change(before, after, next_run_time=row.next_run_time, now=row.now, seed=str(row.id))
    return msgspec.structs.replace(job, task=row.task, run_at=moment)


def _read_schedule(row: Declared) -> Schedule | None:
    """The schedule of a row; None if it has none that can be read: the declaration replaces it."""
    try:
        return None if row.schedule is None else decode(row.schedule)
    except DeclarationError:
        return None


def is_older(ours: str | None, theirs: str | None) -> bool:
    """Whether a version precedes another, compared by their leading numbers.

    1.4 and v1.4.0 are equal, as are 2.0rc1 and 2.0. A missing version, or text that does not start
    like a version, such as a git SHA, is neither older nor newer.
    """
    our_numbers, their_numbers = _numbers(ours), _numbers(theirs)
    return our_numbers is not None and their_numbers is not None and our_numbers < their_numbers


_VERSION = re.compile(
    r"(?:(?:v(?=\d)|(?=\d+\.\d))(\d+(?:\.\d+)*)(?:\.?(?:a|b|rc|dev|post)\d*)*|(\d+))(?:[-+_.].*)?", re.DOTALL
)
"""The numbers, then what PEP 440 or SemVer adds to them. It must match to the end, and letters
count only after a v or a dot, so that the SHA 3fa9c1d is not version 3, nor 12a4567 version 12."""


def _numbers(version: str | None) -> tuple[int, ...] | None:
    found = _VERSION.fullmatch(version or "")
    if found is None:
        return None
    numbers = [int(number) for number in (found[1] or found[2]).split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
