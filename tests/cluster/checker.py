"""Counts what a cluster did, from the ledger, the jobs and the effects. It relies on no constraint.

slots     1 … of each job: every one ended exactly once, none skipped
fences    1 … of each job: every claim has its row in the ledger, or is running now
bodies    each run starts its body at most once, and no two bodies of a job overlap in time
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from reltask.model.job import Outcome
from reltask.model.views import JobView, RunView
from tests.cluster.effects import Effect


class Slot(NamedTuple):
    """One occurrence of a job."""

    job: UUID
    number: int


class Hold(NamedTuple):
    """One claim of a job."""

    job: UUID
    fence: int


class Report(NamedTuple):
    """The counts."""

    once: int
    """Slots that ended exactly once."""
    twice: list[Slot]
    """Slots that ended more than once."""
    missing: list[Slot]
    """Slots that the job has passed and that have no end."""
    vanished: list[UUID]
    """Enqueued jobs that have neither a row nor an end."""
    fence_gaps: list[Hold]
    """Ended claims without a row in the ledger."""
    repeated: list[Hold]
    """Runs whose body started more than once."""
    unclaimed: list[Hold]
    """Bodies that started without a claim in the database."""
    overlapping: list[tuple[Hold, Hold]]
    """Bodies of one job that ran at the same time.

    Only a pause longer than the lock may cause this.
    """
    bodies: Counter[Slot]
    """How many bodies started for each slot."""
    outcomes: Counter[Outcome]

    @property
    def faults(self) -> dict[str, list[Any]]:
        """Everything that must not exist; empty if all is well."""
        named: dict[str, list[Any]] = {
            "twice": self.twice,
            "missing": self.missing,
            "vanished": self.vanished,
            "fence_gaps": self.fence_gaps,
            "repeated": self.repeated,
            "unclaimed": self.unclaimed,
        }
        return {name: found for name, found in named.items() if found}


def check(
    runs: Sequence[RunView], jobs: Iterable[JobView], effects: Sequence[Effect], *, enqueued: Iterable[UUID] = ()
) -> Report:
    """Count. `jobs` are the existing rows; a one-off that is done has none."""
    rows = {job.id: job for job in jobs}
    ends = Counter(Slot(run.job_id, run.slot_no) for run in runs if run.outcome.ends_slot)
    starts = Counter(Hold(effect.job, effect.fence) for effect in effects if effect.what == "start")
    known = {Hold(run.job_id, run.fence) for run in runs}
    running = {Hold(job.id, job.fence) for job in rows.values() if job.locked_by is not None}
    return Report(
        once=sum(1 for count in ends.values() if count == 1),
        twice=sorted(slot for slot, count in ends.items() if count > 1),
        missing=_missing_slots(runs, rows, ends),
        vanished=sorted(set(enqueued) - set(rows) - {slot.job for slot in ends}),
        fence_gaps=_fence_gaps(runs, rows, known | running),
        repeated=sorted(hold for hold, count in starts.items() if count > 1),
        unclaimed=sorted(set(starts) - known - running),
        overlapping=_overlaps(effects),
        bodies=Counter(Slot(effect.job, effect.slot) for effect in effects if effect.what == "start"),
        outcomes=Counter(run.outcome for run in runs),
    )


def _missing_slots(runs: Sequence[RunView], rows: dict[UUID, JobView], ends: Counter[Slot]) -> list[Slot]:
    """Numbers without an end, below the current one or of a job whose row is gone."""
    last = Counter({job: row.slot_no - 1 for job, row in rows.items()})
    for run in runs:
        if run.job_id not in rows:
            last[run.job_id] = max(last[run.job_id], run.slot_no)
    return [slot for job, newest in last.items() for n in range(1, newest + 1) if (slot := Slot(job, n)) not in ends]


def _fence_gaps(runs: Sequence[RunView], rows: dict[UUID, JobView], accounted: set[Hold]) -> list[Hold]:
    last = Counter({job: row.fence for job, row in rows.items()})
    for run in runs:
        last[run.job_id] = max(last[run.job_id], run.fence)
    return [
        hold for job, newest in last.items() for n in range(1, newest + 1) if (hold := Hold(job, n)) not in accounted
    ]


def _overlaps(effects: Sequence[Effect]) -> list[tuple[Hold, Hold]]:
    """Pairs of bodies of one job where the second began before the first ended.

    A killed body ended at its kill.
    """
    bodies: dict[UUID, list[Effect]] = defaultdict(list)
    for effect in effects:
        bodies[effect.job].append(effect)
    return [pair for lines in bodies.values() for pair in _overlaps_of_one(lines)]


def _overlaps_of_one(lines: list[Effect]) -> list[tuple[Hold, Hold]]:
    found: list[tuple[Hold, Hold]] = []
    inside: dict[int, Effect] = {}
    leaves = {effect.fence for effect in lines if effect.what != "start"}
    for line in lines:
        if line.what != "start":
            inside.pop(line.fence, None)
            continue
        found += [(Hold(line.job, other), Hold(line.job, line.fence)) for other in inside]
        if line.fence in leaves:
            inside[line.fence] = line
    return found
