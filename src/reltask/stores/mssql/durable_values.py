"""Converts the values of durable functions to SQL Server's types and back: see `values.py` for the conventions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from reltask.model.durable import (
    ChildEnd,
    ChildView,
    NewSignal,
    Recording,
    SignalView,
    StepKind,
    StepRecord,
    StepState,
    StepView,
    Waits,
)
from reltask.model.job import Outcome, Suspension
from reltask.stores.mssql.values import Columns, Row, batch, hold, text, written

# Arguments of verbs


def recordings(given: Sequence[Recording]) -> Columns:
    """As record_steps.sql wants them: the claims, and the steps of all of them, in their order."""
    steps = ((recording, step) for recording in given for step in recording.steps)
    return {
        "recordings": batch({**hold(one.hold), "progress": int(one.progress)} for one in given),
        "steps": batch({**hold(one.hold), "nth": nth, **_step(step)} for nth, (one, step) in enumerate(steps)),
    }


def _step(step: StepRecord) -> Columns:
    return {
        "name": step.name,
        "kind": step.kind,
        "state": step.state,
        "value": step.value,
        "error": text(step.error),
        "fingerprint": step.fingerprint,
        "attempt": step.attempt,
        "started_at": written(step.started_at),
        "wake_at": written(step.wake_at),
        "signal": step.signal,
        "signal_id": step.signal_id,
        "pending": step.pending,
    }


def suspensions(given: Iterable[Suspension]) -> Columns:
    """As suspend_jobs.sql wants them."""
    return {"suspensions": batch(map(_suspension, given))}


def _suspension(given: Suspension) -> Columns:
    return {**hold(given.hold), "seen": given.seen, "wake_at": written(given.wake_at)}


def signals(given: Iterable[NewSignal]) -> Columns:
    """As send_signals.sql wants them, numbered: they are stored in this order."""
    return {"signals": batch({**_signal(signal), "nth": nth} for nth, signal in enumerate(given))}


def _signal(given: NewSignal) -> Columns:
    return {
        "id": given.id,
        "name": given.name,
        "value": given.value,
        "job_id": None if given.job_id is None else str(given.job_id),
        "task": given.task,
        "key": given.key,
    }


# Rows


def sent(rows: Iterable[Row]) -> dict[str, UUID]:
    """The jobs by the ids of their signals."""
    return {row["signal_id"]: row["id"] for row in rows}


def waits(rows: Sequence[Row], job_id: UUID, slot_no: int) -> Waits | None:
    """All that has come for a slot; without rows it is over."""
    if not rows:
        return None
    return Waits(
        wake_seq=rows[0]["wake_seq"],
        signals=[_waiting_signal(row, job_id, slot_no) for row in rows if row["kind"] == "signal"],
        ends=[_child_end(row) for row in rows if row["kind"] == "end"],
    )


def _waiting_signal(row: Row, job_id: UUID, slot_no: int) -> SignalView:
    return SignalView(
        job_id=job_id,
        slot_no=slot_no,
        name=row["name"],
        id=row["signal_id"],
        value=row["value"],
        sent_at=row["sent_at"],
        consumed_by=None,
    )


def _child_end(row: Row) -> ChildEnd:
    return ChildEnd(
        step=row["name"],
        nth=row["nth"],
        job_id=row["child_id"],
        outcome=Outcome(row["outcome"]),
        value=row["value"],
        error=row["error"],
    )


def step_view(row: Row) -> StepView:
    """A recorded step."""
    return StepView(**{**row, "kind": StepKind(row["kind"]), "state": StepState(row["state"])})


def signal_view(row: Row) -> SignalView:
    """A signal."""
    return SignalView(**row)


def child_view(row: Row) -> ChildView:
    """A child of a job."""
    return ChildView(**row)
