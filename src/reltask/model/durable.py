"""Durable functions as values: steps, suspensions, signals and the ends of children.

    body ── ctx.step("charge", …) ──► Recording(hold, [StepRecord]) ──► steps: one row per name, written once
         ── ctx.sleep, ctx.wait_for ► a StepRecord that is WAITING, then Suspension ──► jobs: suspended, wake time
    later ─ a claim as any other ───► read_steps ──► the body starts again; recorded steps return their records

    sender ── Signal ──► signals + marks ┐
    child ends ────────► child_ends + marks ┴─► fold_marks: wake_seq + 1; due now, if it is suspended and waits for that

A sender and a child never write the row of the job that they wake: a transaction that is open for
seconds would keep heartbeats and settlements from it. They leave a *mark*, and a worker folds marks
in a statement of its own.

`wake_seq` counts the marks that were folded for a job. A run that is about to suspend reads it
together with everything that it waits for, and suspends with the number that it saw: if another
mark was folded meanwhile, the job is due at once.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

from msgspec import Struct

from reltask.model.job import Hold, Outcome

CALLS = frozenset({"step", "transact", "using", "sleep", "wait_for", "run", "run_all", "start"})
"""The context's durable calls."""
LONGEST_NAME = 200
"""Characters in the name of a step or a signal."""


class StepKind(StrEnum):
    """Which call of the context a step is."""

    STEP = "step"
    TRANSACT = "transact"
    SLEEP = "sleep"
    WAIT = "wait"
    """For a signal."""
    RUN = "run"
    """Children that are waited for."""
    START = "start"
    """A child that is not."""


class StepState(StrEnum):
    """How far a step is."""

    WAITING = "waiting"
    """For its wake time, its signal or its children; a step that failed waits for its next attempt."""
    DONE = "done"
    FAILED = "failed"
    """Its failure was caught by the body, and is raised again at each replay."""


class StepRecord(Struct, frozen=True, kw_only=True):
    """One step as it is written. A WAITING one may be written again; DONE and FAILED are final."""

    name: str
    """Unique in its slot: a repeated name has a suffix, as in `label#2`."""
    kind: StepKind
    state: StepState
    started_at: datetime
    """The database's time, as the worker estimates it; so are the other times."""
    value: str | None = None
    """JSON of what the step returned; `null` is a value, None is none."""
    error: str | None = None
    """`Kind: message` of what it raised."""
    fingerprint: str = ""
    """A hash of function and arguments, by which a replay with others is noticed."""
    attempt: int = 1
    """Of the step itself, not of the run."""
    wake_at: datetime | None = None
    """When a waiting step goes on without anything else; None: never."""
    signal: str | None = None
    """The name of the signal that a WAIT waits for."""
    signal_id: str | None = None
    """The signal that this record consumes."""
    pending: int = 0
    """Children that have not ended yet, for a RUN that is WAITING."""


class Recording(Struct, frozen=True, kw_only=True):
    """Steps of one run, recorded together while its claim holds."""

    hold: Hold
    steps: tuple[StepRecord, ...]
    progress: bool = True
    """Whether the slot's attempts are counted anew from here; a failed attempt of a step is no progress."""


class StepView(Struct, frozen=True, kw_only=True):
    """One row of the steps table."""

    job_id: UUID
    slot_no: int
    name: str
    kind: StepKind
    state: StepState
    value: str | None
    error: str | None
    fingerprint: str
    attempt: int
    fence: int
    """Of the run that wrote it."""
    started_at: datetime
    recorded_at: datetime
    wake_at: datetime | None
    signal: str | None
    pending: int


def waits(step: StepView, slot_no: int | None) -> bool:
    """Whether a step waits in the job's current slot; None: the job has ended.

    A slot may end while its record still says so: a sleep that is over is recorded with the next
    step, and a cancelled wait never.
    """
    return step.state is StepState.WAITING and step.slot_no == slot_no


class NewSignal(Struct, frozen=True, kw_only=True):
    """A signal to send: to the job with this id, or else to the one with this task and key."""

    id: str
    """Made by the sender: the same one sent twice is one signal."""
    name: str
    value: str
    """JSON."""
    job_id: UUID | None = None
    task: str | None = None
    key: str | None = None


class SignalView(Struct, frozen=True, kw_only=True):
    """One row of the signals table."""

    job_id: UUID
    slot_no: int
    name: str
    id: str
    value: str
    sent_at: datetime
    consumed_by: str | None
    """The step that consumed it; None: it waits."""


class ChildEnd(Struct, frozen=True, kw_only=True):
    """How a child of a RUN ended."""

    step: str
    nth: int
    """Its place in the list that was given to `run_all`; 0 is the first."""
    job_id: UUID
    outcome: Outcome
    """succeeded, cancelled, discarded; `failed`: it is dead."""
    value: str | None
    error: str | None


class ChildView(Struct, frozen=True, kw_only=True):
    """A child of a job, as it is shown: one that has ended, or the row of one that has not."""

    step: str
    nth: int
    job_id: UUID
    task: str | None
    """None once it has ended."""
    state: str
    """Its job's state, or its outcome."""


class Waits(Struct, frozen=True, kw_only=True):
    """All that may have come for a slot, read in one statement."""

    wake_seq: int
    signals: list[SignalView]
    """Those not consumed yet, in the order of their arrival."""
    ends: list[ChildEnd]
