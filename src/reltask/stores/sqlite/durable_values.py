"""Converts the values of durable functions to SQLite's types and back."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import Any
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
)
from reltask.model.job import Outcome, Suspension
from reltask.stores.sqlite.values import micros, moment, optional_micros, optional_moment, text

# Arguments of verbs


def recording_row(recording: Recording) -> dict[str, object]:
    """As record_steps.sql wants it."""
    return {
        "id": str(recording.hold.job_id),
        "fence": recording.hold.fence,
        "progress": recording.progress,
        "steps": [_step_row(step) for step in recording.steps],
    }


def _step_row(step: StepRecord) -> dict[str, object]:
    return {
        "name": step.name,
        "kind": step.kind,
        "state": step.state,
        "value": step.value,
        "error": text(step.error),
        "fingerprint": step.fingerprint,
        "attempt": step.attempt,
        "started_at": micros(step.started_at),
        "wake_at": optional_micros(step.wake_at),
        "signal": step.signal,
        "signal_id": step.signal_id,
        "pending": step.pending,
    }


def suspension_row(suspension: Suspension) -> dict[str, object]:
    """As suspend_jobs.sql wants it."""
    return {
        "id": str(suspension.hold.job_id),
        "fence": suspension.hold.fence,
        "seen": suspension.seen,
        "wake_at": optional_micros(suspension.wake_at),
    }


def signal_row(signal: NewSignal) -> dict[str, object]:
    """As send_signals.sql wants it."""
    return {
        "id": signal.id,
        "name": signal.name,
        "value": signal.value,
        "job_id": None if signal.job_id is None else str(signal.job_id),
        "task": signal.task,
        "key": signal.key,
    }


# Rows


def sent(rows: Iterable[Any]) -> dict[str, UUID]:
    """The rows of send_signals.sql: jobs by the ids of signals."""
    return {signal_id: UUID(job_id) for signal_id, job_id in rows}


def step_view(row: sqlite3.Row) -> StepView:
    """A row of read_steps.sql."""
    return StepView(
        job_id=UUID(row["job_id"]),
        slot_no=row["slot_no"],
        name=row["name"],
        kind=StepKind(row["kind"]),
        state=StepState(row["state"]),
        value=row["value"],
        error=row["error"],
        fingerprint=row["fingerprint"],
        attempt=row["attempt"],
        fence=row["fence"],
        started_at=moment(row["started_at"]),
        recorded_at=moment(row["recorded_at"]),
        wake_at=optional_moment(row["wake_at"]),
        signal=row["signal"],
        pending=row["pending"],
    )


def signal_view(row: sqlite3.Row) -> SignalView:
    """A row of read_waits.sql or list_signals.sql."""
    return SignalView(**{**dict(row), "job_id": UUID(row["job_id"]), "sent_at": moment(row["sent_at"])})


def child_end(row: sqlite3.Row) -> ChildEnd:
    """A row of read_waits.sql."""
    return ChildEnd(**{**dict(row), "job_id": UUID(row["job_id"]), "outcome": Outcome(row["outcome"])})


def child_view(row: sqlite3.Row) -> ChildView:
    """A row of list_children.sql."""
    return ChildView(**{**dict(row), "job_id": UUID(row["job_id"])})
