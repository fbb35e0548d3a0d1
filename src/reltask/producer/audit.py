"""Runs an audit: five parts, one after another.

    tasks     counts, and how late slots were claimed      one statement
    slots     contradictions in the histories of jobs      one statement for about SLICE ledger rows
              and in what durable functions recorded       another one for the same jobs
    waiting   jobs that wait too long                      one statement
    losses    runs that lost their lock                    one statement
    limits    places that are counted wrong                one statement

A history belongs to one job, and each job to one slice. So the slices find what one statement would find. Each reads
its own snapshot: for a history that is as good as one for all, and no snapshot is kept open while others are read.

An audit has a time limit of its own, for all of it: a ledger of ten million rows takes minutes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta

from reltask.errors import TransientError
from reltask.model.audit import BEFORE_ALL, KEPT_FOR, LAST_OF_ALL, AuditProgress, Break, Report, TaskCount
from reltask.model.duration import format_duration
from reltask.stores.store import BATCH, Store

SLICE = 100_000
"""Ledger rows in a slice: two seconds or so on two shared cores."""
Watcher = Callable[[AuditProgress], None]
"""Is called before each part, and before each slice of a part."""


async def audit(
    store: Store, *, task: str | None, lock_timeout: timedelta, timeout: timedelta, watch: Watcher | None = None
) -> Report:
    """Check the ledger against the jobs."""
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            return await _audit(store, task, lock_timeout, watch or _ignore)
    except TimeoutError:
        raise TransientError(
            f"The audit did not end within {format_duration(timeout)}.",
            remedy='Give it more time: reltask audit --timeout 1h, or app.audit(timeout="1h").',
        ) from None


async def _audit(store: Store, task: str | None, lock_timeout: timedelta, watch: Watcher) -> Report:
    now = await store.read_now()
    watch(AuditProgress(part="tasks"))
    tasks = await store.audit_tasks(task=task)
    breaks = await _audit_slots(store, task, watch, None if task else sum(map(_runs, tasks)))
    watch(AuditProgress(part="waiting"))
    waits = await store.audit_waiting(task=task, lock_timeout=lock_timeout)
    watch(AuditProgress(part="losses"))
    losses = await store.audit_losses(task=task)
    watch(AuditProgress(part="limits"))
    limits = [] if task else list(await store.audit_limits())
    return Report(now=now, tasks=tasks, breaks=breaks, waits=waits, losses=losses, limits=limits)


async def _audit_slots(store: Store, task: str | None, watch: Watcher, of_rows: int | None) -> list[Break]:
    found: list[Break] = []
    rows, after = 0, BEFORE_ALL
    while after != LAST_OF_ALL:
        watch(AuditProgress(part="slots", rows=rows, of_rows=of_rows))
        upto = await store.audit_slice(after=after, rows=SLICE) or LAST_OF_ALL
        found += await store.audit_slots(task=task, kept_for=KEPT_FOR, after=after, upto=upto)
        found += await store.audit_durable(task=task, kept_for=KEPT_FOR, after=after, upto=upto)
        rows, after = rows + SLICE, upto
    return sorted(found, key=lambda one: (one.task, one.job_id, one.first_no, one.kind))[:BATCH]


def _runs(count: TaskCount) -> int:
    """The ledger rows of a task."""
    ends = count.succeeded + count.cancelled + count.skipped + count.discarded
    return ends + count.failed + count.lost + count.given_back


def _ignore(_progress: AuditProgress) -> None:
    """No caller watches."""
