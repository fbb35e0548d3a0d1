"""The findings of `reltask audit`: whether the ledger's rows agree with the promises.

A job's history is a chain. In the order of the fence, each ledger row follows from the one before, and the job's own
row from the last; a break in the chain is a violation of a promise.

    fence   1         2            3            4
    slot    1         1            2            3
            lost ───► succeeded ─► succeeded ─► (the row: slot 3 is current)
            same slot │ next slot  │ next slot
                      ends slot 1  ends slot 2

The SQL of the verbs `audit_…` does the counting, so that a ledger of millions of rows stays in the database; this
module has the values that it returns, which of them are violations, and their texts.

What an audit cannot find: a refused write leaves no row; a job whose row and whole history are gone leaves no trace.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from enum import StrEnum
from uuid import UUID

from msgspec import Struct

from reltask.model.job import Outcome

KEPT_FOR = timedelta(hours=1)
"""Ledger rows younger than this are never pruned; a missing one was lost."""
BEFORE_ALL, LAST_OF_ALL = UUID(int=0), UUID(int=2**128 - 1)
"""Bounds that every job id is between, in the order of any database."""

DEFAULT_LOCK_TIMEOUT = timedelta(minutes=2)
"""For jobs without a lock timeout of their own."""


class BreakKind(StrEnum):
    """The kinds of findings: violations, and notes about missing or busy workers."""

    SLOT_TWICE = "slot-twice"
    SLOT_LOST = "slot-lost"
    SLOT_REOPENED = "slot-reopened"
    RUN_MISSING = "run-missing"
    FENCE_BEHIND = "fence-behind"
    STEP_STRAY = "step-stray"
    STEPS_MISCOUNTED = "steps-miscounted"
    SIGNAL_LOST = "signal-lost"
    SIGNAL_TWICE = "signal-twice"
    CHILDREN_MISCOUNTED = "children-miscounted"
    NEVER_WAKES = "never-wakes"
    UNCLAIMED = "unclaimed"
    UNRECLAIMED = "unreclaimed"
    BACKLOG = "backlog"
    UNSERVED = "unserved"
    EXPIRED = "expired"

    @property
    def is_violation(self) -> bool:
        """Whether a promise was broken; the other kinds say that workers are missing or busy."""
        return self not in _NOTES


_NOTES = frozenset({BreakKind.BACKLOG, BreakKind.UNSERVED, BreakKind.EXPIRED})

_SENTENCES = {
    BreakKind.SLOT_TWICE: "{slots} ended more than once",
    BreakKind.SLOT_LOST: "{slots} neither ended in the ledger nor current in the job's row",
    BreakKind.SLOT_REOPENED: "{slots} continued after its recorded end",
    BreakKind.RUN_MISSING: "{fences} issued, but without a row in the ledger",
    BreakKind.FENCE_BEHIND: "{fences} issued twice",
    BreakKind.STEP_STRAY: "step {name!r} recorded after the end of {slots}, or {slots} never existed",
    BreakKind.STEPS_MISCOUNTED: "the job's row counts other steps than {slots} has recorded",
    BreakKind.SIGNAL_LOST: "signal {name!r} of {slots} consumed, but by no recorded step",
    BreakKind.SIGNAL_TWICE: "step {name!r} of {slots} has consumed more than one signal",
    BreakKind.CHILDREN_MISCOUNTED: "step {name!r} of {slots} waits for another number of children than there are",
    BreakKind.NEVER_WAKES: "suspended in {slots}, and nothing is left that would wake it",
    BreakKind.UNCLAIMED: "{jobs} due and unclaimed longer than the lock timeout, while an idle worker knows the task",
    BreakKind.UNRECLAIMED: "{jobs} with a lock that expired longer ago than its timeout, while a worker is alive",
    BreakKind.BACKLOG: "{jobs} due for longer than the lock timeout; the workers that know the task are busy",
    BreakKind.UNSERVED: "{jobs} due for longer than the lock timeout; no live worker serves this task and queue",
    BreakKind.EXPIRED: "{jobs} with an expired lock; no live worker to reclaim it",
}


class TaskCount(Struct, frozen=True, kw_only=True):
    """One task in numbers. A slot ends once; it may have several runs."""

    task: str
    jobs: int
    ended: int
    """Slots with an end in the ledger, each counted once."""
    doubled: int
    """Ends of a slot after its first."""
    succeeded: int
    cancelled: int
    skipped: int
    discarded: int
    failed: int
    """Runs, as the next two."""
    lost: int
    given_back: int
    """Snoozed, suspended, released or abandoned."""
    cut: int
    """Jobs whose first runs have been pruned."""
    late_p50: float | None
    """Seconds from the due time to the claim, of first attempts."""
    late_p95: float | None
    late_max: float | None


class Break(Struct, frozen=True, kw_only=True):
    """A break in a job's history."""

    kind: BreakKind
    job_id: UUID
    task: str
    key: str | None
    first_no: int
    """Slot numbers, or fences where the kind is about runs."""
    last_no: int
    starts_at: int | None
    """The first slot of the job's history."""
    name: str | None = None
    """The step or the signal, where the kind is about one."""

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        return _SENTENCES[self.kind].format(slots=self._numbers("slot"), fences=self._numbers("fence"), name=self.name)

    @property
    def count(self) -> int:
        """How many slots or runs are affected."""
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
    """Runs whose worker was seen alive afterwards; its late writes for them were refused."""
    last_at: datetime
    reason: str | None


class Miscount(Struct, frozen=True):
    """A key of a limit whose places are counted wrong, or whose due jobs will not be found."""

    key: str
    counted: int
    claimed: int
    stranded: bool = False
    """It has room and due jobs, and no mark."""

    @property
    def kind(self) -> str:
        """The name of the finding."""
        return "limit-miscounted" if self.counted != self.claimed else "limit-stranded"

    @property
    def text(self) -> str:
        """The finding as a sentence."""
        if self.counted == self.claimed:
            return "it has room and due jobs, and no claim will look at it"
        return f"{plural(self.counted, 'place')} counted, {plural(self.claimed, 'job')} claimed"


class AuditProgress(Struct, frozen=True, kw_only=True):
    """How far an audit has come."""

    part: str
    """tasks, slots, waiting or losses; slots include durable functions."""
    rows: int = 0
    """Ledger rows of this part that have been read, about."""
    of_rows: int | None = None


class Report(Struct, frozen=True, kw_only=True):
    """The result of an audit."""

    now: datetime
    tasks: list[TaskCount]
    breaks: list[Break]
    waits: list[Wait]
    losses: list[LossCount]
    limits: list[Miscount] = []
    """Keys of limits. An audit of one task does not look at them."""

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
        return len(self.breaks) + len(self.limits) + sum(wait.jobs for wait in self.waits if wait.kind.is_violation)

    def breaks_by_job(self) -> dict[UUID, list[Break]]:
        """The findings of each job, in the order of their numbers."""
        jobs: dict[UUID, list[Break]] = {}
        for found in self.breaks:
            jobs.setdefault(found.job_id, []).append(found)
        return jobs


def plural(count: int, noun: str) -> str:
    """A number with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
