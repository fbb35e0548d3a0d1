"""What the ledger says afterwards. Nothing is assumed: each slot is counted in the rows.

slot   1        2        3                 4
runs   ✓        ✓        lost, then ✓      released, then ✓
                         └ takeover ┘      └ hand-over ┘
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from statistics import median

from msgspec import Struct

from reltask.model.job import Outcome
from reltask.model.views import JobView, RunView


class Blow(Struct, frozen=True, kw_only=True):
    """What was done to a worker that held a slot."""

    worker: str
    slot_no: int
    fence: int
    struck_at: datetime
    """By the database's clock."""
    lock_ends_at: datetime | None


class Succession(Struct, frozen=True, kw_only=True):
    """How a slot passed from the worker that was struck to the next."""

    slot_no: int
    before: str
    after: str
    seconds_after_blow: float
    seconds_after_free: float
    """From the end of the lock, or from its release, to the next claim."""


class Summary(Struct, frozen=True, kw_only=True):
    """The demonstration in numbers."""

    completed: int
    duplicates: int
    lost: int
    takeover: Succession | None
    hand_over: Succession | None
    lateness_p50: float
    """Seconds between a slot's due time and its first claim. A slot due while the one before it waits for a takeover
    is late for that reason."""
    lateness_max: float
    latest_slot: int

    @property
    def is_good(self) -> bool:
        """No slot twice, none missing, and both blows really happened."""
        return self.duplicates == self.lost == 0 and None not in (self.takeover, self.hand_over)


def summarise(job: JobView | None, runs: list[RunView], *, killed: Blow | None, stopped: Blow | None) -> Summary:
    """Count the slots, and measure how the struck ones passed on."""
    successes = Counter(run.slot_no for run in runs if run.outcome is Outcome.SUCCEEDED)
    late = lateness(runs)
    return Summary(
        completed=len(successes),
        duplicates=sum(count - 1 for count in successes.values()),
        lost=len(lost_slots(job, runs)),
        takeover=succession(killed, runs, Outcome.LOST),
        hand_over=succession(stopped, runs, Outcome.RELEASED),
        lateness_p50=median(late.values()) if late else 0.0,
        lateness_max=max(late.values(), default=0.0),
        latest_slot=max(late, key=late.__getitem__, default=0),
    )


def lost_slots(job: JobView | None, runs: list[RunView]) -> list[int]:
    """Slots that neither ended in the ledger nor wait in the job's row. Without a row even the next one is lost."""
    newest = max((run.slot_no for run in runs), default=0)
    waiting = newest + 2 if job is None else job.slot_no
    ended = {run.slot_no for run in runs if run.outcome.ends_slot}
    return [slot for slot in range(1, max(waiting, newest)) if slot not in ended]


def succession(blow: Blow | None, runs: list[RunView], outcome: Outcome) -> Succession | None:
    """How the slot went on, if its run ended as it should have and somebody else completed the slot."""
    if blow is None:
        return None
    slot = sorted((run for run in runs if run.slot_no == blow.slot_no), key=lambda run: run.fence)
    struck = next((run for run in slot if run.fence == blow.fence and run.outcome is outcome), None)
    heir = next((run for run in slot if run.fence > blow.fence), None)
    completed = any(run.outcome is Outcome.SUCCEEDED and run.worker != blow.worker for run in slot)
    if struck is None or heir is None or heir.claimed_at is None or not completed:
        return None
    free_at = struck.finished_at if outcome is Outcome.RELEASED or blow.lock_ends_at is None else blow.lock_ends_at
    return Succession(
        slot_no=blow.slot_no,
        before=blow.worker,
        after=heir.worker or "",
        seconds_after_blow=(heir.claimed_at - blow.struck_at).total_seconds(),
        seconds_after_free=(heir.claimed_at - free_at).total_seconds(),
    )


def lateness(runs: list[RunView]) -> dict[int, float]:
    """By slot, the seconds between its due time and its first claim."""
    first: dict[int, RunView] = {}
    for run in sorted(runs, key=lambda run: run.fence, reverse=True):
        first[run.slot_no] = run
    claims = ((slot, run.nominal_time, run.claimed_at) for slot, run in first.items())
    return {slot: (claimed - due).total_seconds() for slot, due, claimed in claims if claimed is not None}
