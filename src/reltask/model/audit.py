"""What an audit finds: the promises, counted in the rows.

A job's history is a chain. Read by fence, each ledger row follows from the one before, and the job's own row from the
last; a break in the chain is a broken promise.

    fence   1         2            3            4
    slot    1         1            2            3
            lost ───► succeeded ─► succeeded ─► (the row: slot 3 is current)
            same slot │ next slot  │ next slot
                      ends slot 1  ends slot 2

The SQL of the verbs `audit_…` does the counting, so that a ledger of millions stays in the database; here are the
values that come back, which of them are violations, and how they read.

What an audit cannot know: a write that was refused leaves no row; a job whose row and whole history are gone has left
no trace; and of a job that ran once and has no row nobody can say whether it was to recur.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from msgspec import Struct

from reltask.model.job import Outcome

KEPT_FOR = timedelta(hours=1)
"""Ledger rows younger than this are never pruned: where they are missing, they were lost."""

DEFAULT_LOCK_TIMEOUT = timedelta(minutes=2)
"""For jobs that name no lock timeout of their own."""


class BreakKind(StrEnum):
    """What can be wrong, and what only looks so."""

    SLOT_TWICE = "slot-twice"
    SLOT_LOST = "slot-lost"
    SLOT_REOPENED = "slot-reopened"
    RUN_MISSING = "run-missing"
    FENCE_BEHIND = "fence-behind"
    UNCLAIMED = "unclaimed"
    UNRECLAIMED = "unreclaimed"
    BACKLOG = "backlog"
    UNSERVED = "unserved"
    EXPIRED = "expired"

    @property
    def is_violation(self) -> bool:
        """Whether a promise was broken; the others say that workers are missing."""
        return self not in _NOTES


_NOTES = frozenset({BreakKind.BACKLOG, BreakKind.UNSERVED, BreakKind.EXPIRED})

_SENTENCES = {
    BreakKind.SLOT_TWICE: "{slots} ended more than once",
    BreakKind.SLOT_LOST: "{slots} neither ended in the ledger nor current in the job's row",
    BreakKind.SLOT_REOPENED: "{slots} went on after its recorded end",
    BreakKind.RUN_MISSING: "{fences} given out, but without a row in the ledger",
    BreakKind.FENCE_BEHIND: "{fences} used already, and given out again",
    BreakKind.UNCLAIMED: "{jobs} due and unclaimed for longer than the lock timeout, and an idle worker knows the task",
    BreakKind.UNRECLAIMED: "{jobs} with a lock that ended longer ago than its timeout, though a worker is alive",
    BreakKind.BACKLOG: "{jobs} due for longer than the lock timeout; the workers that know the task are busy",
    BreakKind.UNSERVED: "{jobs} due for longer than the lock timeout; no live worker knows task and queue",
    BreakKind.EXPIRED: "{jobs} with a lock that has ended; no worker was there to take it away",
}


class TaskCount(Struct, frozen=True, kw_only=True):
    """One task in numbers. Slots end once each; runs may be many."""

    task: str
    jobs: int
    ended: int
    """Slots with an end in the ledger, each counted once."""
    doubled: int
    """Ends beyond the first of their slot."""
    succeeded: int
    cancelled: int
    skipped: int
    discarded: int
    failed: int
    """Runs, as the next two."""
    lost: int
    given_back: int
    """Snoozed, released or abandoned."""
    cut: int
    """Jobs whose history starts later than with their first run: the older part was pruned."""
    late_p50: float | None
    """Seconds from due to claimed, of first attempts."""
    late_p95: float | None
    late_max: float | None


class Break(Struct, frozen=True, kw_only=True):
    """A place where a job's history does not hold together."""

    kind: BreakKind
    job_id: UUID
    task: str
    key: str | None
    first_no: int
    """Slot numbers, or fences where the kind is about runs."""
    last_no: int
    starts_at: int | None
    """The slot with which the job's history starts."""

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        return _SENTENCES[self.kind].format(slots=self._numbers("slot"), fences=self._numbers("fence"))

    @property
    def count(self) -> int:
        """How many slots or runs are concerned."""
        return self.last_no - self.first_no + 1

    def _numbers(self, noun: str) -> str:
        return f"{noun} {self.first_no}" if self.count == 1 else f"{noun}s {self.first_no} to {self.last_no}"


class Wait(Struct, frozen=True, kw_only=True):
    """Jobs of one task and queue that wait longer than their lock timeout."""

    kind: BreakKind
    task: str
    queue: str
    jobs: int
    job_id: UUID
    """The one that waits longest."""
    since: datetime

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        return _SENTENCES[self.kind].format(jobs=plural(self.jobs, "job"))


class LossCount(Struct, frozen=True, kw_only=True):
    """Runs of one task that lost their lock on one worker."""

    task: str
    outcome: Outcome
    worker: str | None
    runs: int
    returned: int
    """Runs whose worker was seen alive afterwards: whatever it still wrote for them was refused."""
    last_at: datetime
    reason: str | None


class Report(Struct, frozen=True, kw_only=True):
    """An audit as a whole."""

    now: datetime
    tasks: list[TaskCount]
    breaks: list[Break]
    waits: list[Wait]
    losses: list[LossCount]

    @property
    def jobs(self) -> int:
        """All jobs that have a row or a history."""
        return sum(task.jobs for task in self.tasks)

    @property
    def slots(self) -> int:
        """All slots that have ended."""
        return sum(task.ended for task in self.tasks)

    def concerned(self, kind: BreakKind, task: str) -> int:
        """How many slots, or runs, of a task have this finding."""
        return sum(found.count for found in self.breaks if found.kind is kind and found.task == task)

    @property
    def violations(self) -> int:
        """How many findings break a promise; a wait counts its jobs."""
        return len(self.breaks) + sum(wait.jobs for wait in self.waits if wait.kind.is_violation)

    def breaks_by_job(self) -> dict[UUID, list[Break]]:
        """The findings of each job, in the order of their numbers."""
        jobs: dict[UUID, list[Break]] = {}
        for found in self.breaks:
            jobs.setdefault(found.job_id, []).append(found)
        return jobs


def plural(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
