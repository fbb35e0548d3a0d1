"""What the ledger says after the demo: every number is counted from its rows.

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
    """The kill or stop of a worker that held a slot."""

    worker: str
    slot_no: int
    fence: int
    struck_at: datetime
    """By the database's clock."""
    lock_ends_at: datetime | None


class Succession(Struct, frozen=True, kw_only=True):
    """How a slot passed from the interrupted worker to the next."""

    slot_no: int
    before: str
    after: str
    seconds_after_blow: float
    seconds_after_free: float
    """From the end of the lock, or from its release, to the next claim."""


class Summary(Struct, frozen=True, kw_only=True):
    """The demo in numbers."""

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
        """No slot twice, none missing, and both interruptions hit a running task."""
        return self.duplicates == self.lost == 0 and None not in (self.takeover, self.hand_over)


def summarise(job: JobView | None, runs: list[RunView], *, killed: Blow | None, stopped: Blow | None) -> Summary:
    """Count the slots, and measure how the interrupted ones passed on."""
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
    """Slots that neither ended in the ledger nor wait in the job's row. Without a row the next slot is lost, too."""
    newest = max((run.slot_no for run in runs), default=0)
    waiting = newest + 2 if job is None else job.slot_no
    ended = {run.slot_no for run in runs if run.outcome.ends_slot}
    return [slot for slot in range(1, max(waiting, newest)) if slot not in ended]


def succession(blow: Blow | None, runs: list[RunView], outcome: Outcome) -> Succession | None:
    """How the slot passed on; None unless its run ended with `outcome` and another worker completed the slot."""
    if blow is None:
        return None
    slot = sorted((run for run in runs if run.slot_no == blow.slot_no), key=lambda run: run.fence)
    interrupted = next((run for run in slot if run.fence == blow.fence and run.outcome is outcome), None)
    following = next((run for run in slot if run.fence > blow.fence), None)
    completed = any(run.outcome is Outcome.SUCCEEDED and run.worker != blow.worker for run in slot)
    if interrupted is None or following is None or following.claimed_at is None or not completed:
        return None
    expires_at = None if outcome is Outcome.RELEASED else blow.lock_ends_at
    free_at = expires_at or interrupted.finished_at
    return Succession(
        slot_no=blow.slot_no,
        before=blow.worker,
        after=following.worker or "",
        seconds_after_blow=(following.claimed_at - blow.struck_at).total_seconds(),
        seconds_after_free=(following.claimed_at - free_at).total_seconds(),
    )


def lateness(runs: list[RunView]) -> dict[int, float]:
    """By slot, the seconds between its due time and its first claim."""
    first: dict[int, RunView] = {}
    for run in sorted(runs, key=lambda run: run.fence, reverse=True):
        first[run.slot_no] = run
    claims = ((slot, run.nominal_time, run.claimed_at) for slot, run in first.items())
    return {slot: (claimed - due).total_seconds() for slot, due, claimed in claims if claimed is not None}
