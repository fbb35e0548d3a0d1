"""Steps, suspensions, signals and children on SQLite.

There is one writer at a time, so no row is locked: a verb is a few statements in one transaction, and `wait` has
nothing to wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from reltask.model.durable import ChildView, NewSignal, Recording, SignalView, StepView, Waits
from reltask.model.job import Settled, Suspension
from reltask.stores.sqlite import durable_values, values
from reltask.stores.store import BATCH

Rows = list[Any]


class DurableVerbs(ABC):
    """The verbs that durable functions need."""

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _write(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _settle(self, verb: str, worker: str, name: str, rows: Rows, *, answer: int) -> Rows: ...

    # Running

    async def record_steps(
        self,
        worker: str,
        recordings: Sequence[Recording],
        *,
        wait: bool = False,  # noqa: ARG002 - no rows are locked
    ) -> list[Settled]:
        rows = [durable_values.recording_row(recording) for recording in recordings]
        accepted = await self._settle("record_steps", worker, "recordings", rows, answer=3)
        return [Settled(values.hold(row)) for row in accepted]

    async def suspend_jobs(
        self,
        worker: str,
        suspensions: Sequence[Suspension],
        *,
        wait: bool = False,  # noqa: ARG002 - as above
    ) -> list[Settled]:
        rows = [durable_values.suspension_row(suspension) for suspension in suspensions]
        accepted = await self._settle("suspend_jobs", worker, "suspensions", rows, answer=1)
        return [values.settled(row) for row in accepted]

    async def read_steps(self, job_id: UUID, slot_no: int | None = None) -> list[StepView]:
        (rows,) = await self._read("read_steps", job_id=str(job_id), slot_no=slot_no)
        return [durable_values.step_view(row) for row in rows]

    async def read_waits(self, job_id: UUID, slot_no: int) -> Waits | None:
        found, signals, ends = await self._read("read_waits", job_id=str(job_id), slot_no=slot_no)
        if not found:
            return None
        return Waits(
            wake_seq=found[0]["wake_seq"],
            signals=[durable_values.signal_view(row) for row in signals],
            ends=[durable_values.child_end(row) for row in ends],
        )

    # Waking

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        rows = values.batch(map(durable_values.signal_row, signals))
        return durable_values.sent((await self._write("send_signals", signals=rows))[-1])

    async def fold_marks(self, *, limit: int = BATCH) -> int:
        return len((await self._write("fold_marks", limit=limit))[-1])

    # Operators

    async def forget_steps(self, job_id: UUID, name: str, *, and_after: bool = False) -> int:
        removed = await self._write("forget_steps", job_id=str(job_id), step=name, and_after=int(and_after))
        return len(removed[0])

    async def list_signals(self, job_id: UUID) -> list[SignalView]:
        (rows,) = await self._read("list_signals", job_id=str(job_id))
        return [durable_values.signal_view(row) for row in rows]

    async def list_children(self, job_id: UUID) -> list[ChildView]:
        (rows,) = await self._read("list_children", job_id=str(job_id))
        return [durable_values.child_view(row) for row in rows]
