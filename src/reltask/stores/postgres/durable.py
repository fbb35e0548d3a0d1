"""Durable functions on PostgreSQL: steps, suspensions, signals and the ends of children.

    record_steps, suspend_jobs   lock the job's row, and read its fence and wake_seq under that lock
    send_signals, ends of children   lock no job: they insert what came, and a mark
    fold_marks                   locks the jobs of marks, skips those that are locked, counts and wakes

The header of each statement says which races it excludes, and how.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar
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
from reltask.model.job import Hold, Outcome, Settled, Suspension
from reltask.stores.durable import BATCH
from reltask.stores.postgres.values import Columns, Row, as_uuid, optional, storable


class WithHold(Protocol):
    """What a run sends: it names the claim."""

    @property
    def hold(self) -> Hold: ...


S = TypeVar("S", bound=WithHold)


class DurableVerbs(ABC):
    """The verbs that durable functions need."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Any]: ...

    @abstractmethod
    async def _patiently(self, verb: str, **columns: object) -> list[Any] | None: ...

    @abstractmethod
    async def _settle(
        self, verb: str, worker: str, batch: Sequence[S], columns: Callable[[Sequence[S]], Columns], *, wait: bool
    ) -> list[Settled]: ...

    async def record_steps(self, worker: str, recordings: Sequence[Recording], *, wait: bool = False) -> list[Settled]:
        return await self._settle("record_steps", worker, recordings, recorded, wait=wait)

    async def suspend_jobs(
        self, worker: str, suspensions: Sequence[Suspension], *, wait: bool = False
    ) -> list[Settled]:
        return await self._settle("suspend_jobs", worker, suspensions, suspended, wait=wait)

    async def read_steps(self, job_id: UUID, slot_no: int | None = None) -> list[StepView]:
        return [step_view(row) for row in await self._ask("read_steps", job_id=job_id, slot_no=slot_no)]

    async def read_waits(self, job_id: UUID, slot_no: int) -> Waits | None:
        rows = await self._ask("read_waits", job_id=job_id, slot_no=slot_no)
        return waits(rows, job_id, slot_no) if rows else None

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        return receivers(await self._ask("send_signals", **sent(signals))) if signals else {}

    async def fold_marks(self, *, limit: int = BATCH) -> int:
        rows = await self._patiently("fold_marks", limit=limit)
        return 0 if rows is None else _number(rows)

    async def forget_steps(self, job_id: UUID, name: str, *, and_after: bool = False) -> int:
        return _number(await self._ask("forget_steps", id=job_id, name=name, and_after=and_after))

    async def list_signals(self, job_id: UUID) -> list[SignalView]:
        rows = await self._ask("list_signals", job_id=job_id)
        return [SignalView(**dict(zip(SignalView.__struct_fields__, row, strict=True))) for row in rows]

    async def list_children(self, job_id: UUID) -> list[ChildView]:
        rows = await self._ask("list_children", job_id=job_id)
        return [ChildView(**dict(zip(ChildView.__struct_fields__, row, strict=True))) for row in rows]


# Arguments of verbs


def recorded(given: Sequence[Recording]) -> Columns:
    """One column per field and one row per step; a recording without steps is one row without a name."""
    rows = _steps(given)

    def column(name: str) -> list[Any]:
        return [None if step is None else getattr(step, name) for _, step in rows]

    return {
        "patience": None,
        "ids": [recording.hold.job_id for recording, _ in rows],
        "fences": [recording.hold.fence for recording, _ in rows],
        "progress": [recording.progress for recording, _ in rows],
        "names": column("name"),
        "kinds": column("kind"),
        "states": column("state"),
        "values": optional(column("value")),
        "errors": [storable(error) for error in optional(column("error"))],
        "fingerprints": column("fingerprint"),
        "attempts": column("attempt"),
        "started_ats": column("started_at"),
        "wake_ats": optional(column("wake_at")),
        "signals": optional(column("signal")),
        "signal_ids": optional(column("signal_id")),
        "pendings": column("pending"),
    }


def _steps(given: Sequence[Recording]) -> list[tuple[Recording, StepRecord | None]]:
    """The last record of each name: one statement cannot write a row twice. A final one stays."""
    rows: dict[tuple[Hold, str | None], tuple[Recording, StepRecord | None]] = {}
    for recording in given:
        for step in recording.steps or (None,):
            key = (recording.hold, None if step is None else step.name)
            before = rows.get(key, (recording, None))[1]
            if before is None or before.state is StepState.WAITING:
                rows[key] = (recording, step)
    return list(rows.values())


def suspended(given: Sequence[Suspension]) -> Columns:
    """One column per field."""
    return {
        "ids": [suspension.hold.job_id for suspension in given],
        "fences": [suspension.hold.fence for suspension in given],
        "seen": [suspension.seen for suspension in given],
        "wake_ats": optional([suspension.wake_at for suspension in given]),
    }


def sent(given: Sequence[NewSignal]) -> Columns:
    """One column per field."""
    return {
        "ids": [signal.id for signal in given],
        "names": [signal.name for signal in given],
        "values": [signal.value for signal in given],
        "job_ids": optional([signal.job_id for signal in given]),
        "tasks": optional([signal.task for signal in given]),
        "keys": optional([signal.key for signal in given]),
    }


# Rows


def step_view(row: Row) -> StepView:
    """A step's view."""
    fields = dict(zip(StepView.__struct_fields__, row, strict=True))
    return StepView(**{**fields, "kind": StepKind(fields["kind"]), "state": StepState(fields["state"])})


def waits(rows: Sequence[Row], job_id: UUID, slot_no: int) -> Waits:
    """The first row has the number of folded marks; the others are signals and ends of children."""
    (_, wake_seq, *_), *came = rows
    signals, ends = [], []
    for part, _, name, signal_id, value, sent_at, nth, child, outcome, error in came:
        if part == "signal":
            signals.append(
                SignalView(
                    job_id=job_id,
                    slot_no=slot_no,
                    name=name,
                    id=signal_id,
                    value=value,
                    sent_at=sent_at,
                    consumed_by=None,
                )
            )
        else:
            ends.append(ChildEnd(step=name, nth=nth, job_id=child, outcome=Outcome(outcome), value=value, error=error))
    return Waits(wake_seq=wake_seq, signals=signals, ends=ends)


def receivers(rows: Sequence[Row]) -> dict[str, UUID]:
    """The jobs that signals went to, by the signals' ids."""
    return {signal_id: as_uuid(job_id) for signal_id, job_id in rows}


def _number(rows: list[Any]) -> int:
    ((number,),) = rows
    return int(number)
