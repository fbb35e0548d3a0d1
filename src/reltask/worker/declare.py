"""Recurring jobs as the code declares them, brought into the table.

The row keeps a hash of its last declaration and the version of the app that made it. A starting worker inserts what
is missing, and rewrites a definition only if its own differs and its app is not older: so old and new workers can run
side by side, and what an operator changed at run time stays until the declaration itself changes. A claimed slot is
never moved, and its worker ends it by the schedule that it has claimed: a starting worker that finds one comes again
until the slot has ended, or is its own. A job that runs back to back is hardly ever seen unclaimed; its holder rewrites
it while it runs, and ends the slot by the new schedule.

A task that was renamed declares the row that recurs under its old name, where there is one: workers of both versions
then share it, while a second row would make everything happen twice.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple
from uuid import UUID

import msgspec

from reltask.errors import AmbiguousError, ReltaskError
from reltask.model.job import Declared, NewJob
from reltask.model.schedule import decode, first_slot, next_after_change
from reltask.model.task import Registry
from reltask.producer.enqueue import insert_surely
from reltask.service import Service
from reltask.stores.store import Store
from reltask.worker.run import Run

AGAIN = 2.0
"""Seconds until a declaration that found its job running is tried again."""
BLOCKED = 60.0
"""Seconds until one whose key a one-off has is tried again: that job may be due in a year."""
DeclaredRows = dict[tuple[str, str | None], Declared]
"""By task and key."""


class LeftOver(NamedTuple):
    """A recurring job that goes on although the code does not declare it."""

    row: Declared
    beside: str | None
    """The former or present name of its task whose row has taken its place; None: the declaration is gone."""


class Declaration(NamedTuple):
    """What came of declaring."""

    left_over: list[LeftOver]
    outdated: list[Declared]
    """Rows that a newer version of the app has declared: ours differ, and are ignored."""
    blocking: list[Declared]
    """One-offs that have the key of a schedule: it can be made when they are done."""
    waits: bool
    """Whether a job could not be made or rewritten: it runs, or somebody else was faster."""


async def declare(
    store: Store,
    jobs: Sequence[NewJob],
    registry: Registry,
    *,
    worker: str,
    run_of: Callable[[UUID], Run | None],
    app_version: str | None = None,
) -> Declaration:
    """Bring these declarations into the table, and say what goes on beside them, or differs from them.

    `run_of` tells the worker's own run of a job, if its end is still to be computed.

    Safe from any number of workers at once. Two versions that begin on an empty table in the same moment can make a row
    each, under the old name and the new: both stay, and whoever starts next tells of it.
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
    return Declaration(left_over, outdated, blocking, waits=not (made and all(done)))


async def _rewrite(store: Store, job: NewJob, row: Declared, worker: str, run: Run | None) -> bool:
    """Rewrite a row; False: it runs elsewhere, or somebody else has just rewritten it."""
    if run is None:
        return await store.declare_job(_moved(job, row), seen=row)
    before, run.redeclared = run.redeclared, job.schedule  # first: its body may end at any time
    try:
        won = await store.declare_job(_moved(job, row), seen=row, worker=worker, fence=run.hold.fence)
    except ReltaskError as error:
        if not isinstance(error, AmbiguousError):  # then it may be applied, as when this is cut off
            run.redeclared = before
        raise
    if not won:
        run.redeclared = before
    return won


class Redeclaring(Service):
    """Declares until nothing waits any more."""

    def __init__(self, attempt: Callable[[], Awaitable[Declaration]]) -> None:
        super().__init__()
        self._attempt = attempt

    async def tick(self) -> float | None:
        with contextlib.suppress(ReltaskError):  # others tell of an outage
            declared = await self._attempt()
            if not declared.waits:
                return BLOCKED if declared.blocking else None
        return AGAIN


async def _read(store: Store, jobs: Sequence[NewJob], registry: Registry) -> DeclaredRows:
    """The rows with the names of these declarations, and what recurs without a key: nobody can ask for a key that is
    gone.
    """
    names = {(name, job.key) for job in jobs for name in registry.get(job.task).names}
    names |= {(name, None) for name in registry.names()}
    return {(row.task, row.key): row for row in (await store.read_declared(list(names)) if names else [])}


def _rows_of(job: NewJob, registry: Registry, rows: DeclaredRows) -> list[Declared]:
    """The rows that this declaration may mean; the first counts: under the task's own name, else under a former one."""
    return [row for name in registry.get(job.task).names if (row := rows.get((name, job.key)))]


def _left_over(found: list[list[Declared]], rows: DeclaredRows, app_version: str | None) -> list[LeftOver]:
    doubled = [LeftOver(row, beside=first.task) for first, *others in filter(None, found) for row in others]
    meant = {row.id for own in found for row in own}
    gone = [row for row in rows.values() if row.id not in meant and _was_declared(row, app_version)]
    return doubled + [LeftOver(row, beside=None) for row in gone]


def _was_declared(row: Declared, app_version: str | None) -> bool:
    """Whether code once declared it, and not that of a version which knows more than ours."""
    return row.declaration is not None and not is_older(app_version, row.app_version)


async def _insert(store: Store, jobs: list[NewJob]) -> bool:
    """Insert new declarations; whether all are new. A grid's first slot depends on the database's time."""
    now = await store.read_now()
    placed = [(job, first_slot(decode(job.schedule or ""), now)) for job in jobs]
    created = await insert_surely([msgspec.structs.replace(job, run_at=moment) for job, moment in placed], store)
    return len(created) == len(jobs)


def _is_news(job: NewJob, row: Declared) -> bool:
    return job.declaration != row.declaration and not is_older(job.app_version, row.app_version)


def _is_outdated(job: NewJob, row: Declared) -> bool:
    return job.declaration != row.declaration and is_older(job.app_version, row.app_version)


def _moved(job: NewJob, row: Declared) -> NewJob:
    """The declaration as it shall stand in this row, which may have a former name of the task."""
    before = None if row.schedule is None else decode(row.schedule)
    after = decode(job.schedule or "")
    moment = next_after_change(before, after, next_run_time=row.next_run_time, now=row.now)
    return msgspec.structs.replace(job, task=row.task, run_at=moment)


def is_older(ours: str | None, theirs: str | None) -> bool:
    """Whether a version precedes another, by the numbers that they begin with: 1.4 and v1.4.0 are equal, as are 2.0rc1
    and 2.0. What does not begin like a version, as a git SHA, or is missing, neither precedes nor is preceded.
    """
    our_numbers, their_numbers = _numbers(ours), _numbers(theirs)
    return our_numbers is not None and their_numbers is not None and our_numbers < their_numbers


_VERSION = re.compile(
    r"(?:(?:v(?=\d)|(?=\d+\.\d))(\d+(?:\.\d+)*)(?:\.?(?:a|b|rc|dev|post)\d*)*|(\d+))(?:[-+_.].*)?", re.DOTALL
)
"""The numbers, then what PEP 440 or SemVer adds to them. It must match to the end, and letters are believed only after
a v or a dot: neither the SHA 3fa9c1d is a version 3, nor 12a4567 a version 12."""


def _numbers(version: str | None) -> tuple[int, ...] | None:
    found = _VERSION.fullmatch(version or "")
    if found is None:
        return None
    numbers = [int(number) for number in (found[1] or found[2]).split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
