"""Recurring jobs as the code declares them, brought into the table.

The row keeps a hash of its last declaration and the version of the app that made it. A starting worker inserts what
is missing, and rewrites a definition only if its own differs and its app is not older: so old and new workers can run
side by side, and what an operator changed at run time stays until the declaration itself changes. A claimed slot is
never moved.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from reltask.job import Declared, NewJob
from reltask.schedule import decode, first_slot, next_after_change
from reltask.store import Store


async def declare(store: Store, jobs: Sequence[NewJob]) -> None:
    """Bring these declarations into the table. Safe from any number of workers at once."""
    if not jobs:
        return
    rows = {(row.task, row.key): row for row in await store.read_declared([(job.task, job.key) for job in jobs])}
    missing = [job for job in jobs if (job.task, job.key) not in rows]
    if missing:
        await _insert(store, missing)
    for job in jobs:
        row = rows.get((job.task, job.key))
        if row is not None and _is_news(job, row):
            await store.declare_job(_moved(job, row), seen=row.declaration)


async def _insert(store: Store, jobs: list[NewJob]) -> None:
    """Insert new declarations. A grid's first slot depends on the database's time, which the insert itself can tell."""
    now = await store.read_now()
    await store.enqueue_jobs([_at(job, first_slot(decode(job.schedule or ""), now)) for job in jobs])


def _is_news(job: NewJob, row: Declared) -> bool:
    return job.declaration != row.declaration and not is_older(job.app_version, row.app_version)


def _moved(job: NewJob, row: Declared) -> NewJob:
    before = None if row.schedule is None else decode(row.schedule)
    after = decode(job.schedule or "")
    return _at(job, next_after_change(before, after, next_run_time=row.next_run_time, now=row.now))


def _at(job: NewJob, moment: object) -> NewJob:
    return msgspec.structs.replace(job, run_at=moment)


def is_older(ours: str | None, theirs: str | None) -> bool:
    """Whether a version precedes another, by the numbers in them; a missing one never does, nor is preceded."""
    if ours is None or theirs is None:
        return False
    return _numbers(ours) < _numbers(theirs)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version))
