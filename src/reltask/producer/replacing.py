"""Changing a schedule at run time: `report.using(key="tenant-9", cron="0 9 * * *", replace=True).enqueue(9)`.

The row keeps the hash of its declaration in code, if it has one. So a worker that starts with the same declaration does
not undo the change; it stays until the declaration itself changes, as every change at run time does.

A slot that runs is never moved: its worker ends it by the schedule that it has claimed. So the change waits for the end
of a run, for a while, and is then refused: nothing is changed half.
"""

from __future__ import annotations

import asyncio

import msgspec

from reltask.errors import DeclarationError, UsageError
from reltask.model.job import Declared, NewJob
from reltask.model.schedule import decode, has_ended, next_after_change
from reltask.stores.store import Store

PAUSES = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2)
"""Seconds between the tries; about ten in all."""


async def replace_schedule(job: NewJob, store: Store) -> None:
    """Write this definition into the row with its task and key, as soon as that is not running."""
    for pause in (*PAUSES, None):
        rows = await store.read_declared([(job.task, job.key)])
        if not rows:
            raise UsageError(
                f"The schedule {job.key!r} of {job.task} was removed while it was being changed.",
                remedy="Call it again to create it.",
            )
        if rows[0].schedule is None:
            raise UsageError(
                f"A one-off of {job.task} has the key {job.key!r}.", remedy="Wait for its end, or use another key."
            )
        if await store.declare_job(_moved(job, rows[0]), seen=rows[0]):
            return
        if pause is not None:
            await asyncio.sleep(pause)
    raise UsageError(
        f"The schedule {job.key!r} of {job.task} is running; nothing was changed.",
        remedy="Change it when the run has ended.",
    )


def _moved(job: NewJob, row: Declared) -> NewJob:
    """The new definition, with the hash and version of the declaration that the row has."""
    after = decode(job.schedule or "")
    try:
        before = None if row.schedule is None else decode(row.schedule)
    except DeclarationError:  # no schedule that can be read
        before = None
    moment = next_after_change(before, after, next_run_time=row.next_run_time, now=row.now, seed=str(row.id))
    if has_ended(after, moment):
        raise UsageError(f"The schedule of {job.task} has no slot before its end.", remedy="Write a later end=.")
    declared = {"declaration": row.declaration, "app_version": row.app_version}
    return msgspec.structs.replace(job, run_at=moment, delay=None, **declared)
