"""Steps, suspensions, signals and children on SQL Server.

A statement that skips locked rows cannot tell a job that is locked from one that is gone. Where that matters, the
ledger decides: see "ended slot" in SQL.md.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeVar
from uuid import UUID

from reltask.model.durable import ChildView, NewSignal, Recording, SignalView, StepView, Waits
from reltask.model.job import Settled, Settlement, Suspension
from reltask.stores.mssql import durable_values
from reltask.stores.mssql.values import Columns, Row, number
from reltask.stores.store import BATCH

S = TypeVar("S", bound=Settlement | Recording)


class DurableVerbs(ABC):
    """The verbs that durable functions need."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Row]: ...

    @abstractmethod
    async def _settle(
        self, verb: str, worker: str, batch: Sequence[S], columns: Callable[[Sequence[S]], Columns], *, wait: bool
    ) -> list[Settled]: ...

    # Running

    async def record_steps(self, worker: str, recordings: Sequence[Recording], *, wait: bool = False) -> list[Settled]:
        return await self._settle("record_steps", worker, recordings, durable_values.recordings, wait=wait)

    async def suspend_jobs(
        self, worker: str, suspensions: Sequence[Suspension], *, wait: bool = False
    ) -> list[Settled]:
        return await self._settle("suspend_jobs", worker, suspensions, durable_values.suspensions, wait=wait)

    async def read_steps(self, job_id: UUID, slot_no: int | None = None) -> list[StepView]:
        rows = await self._ask("read_steps", job_id=str(job_id), slot_no=slot_no)
        return [durable_values.step_view(row) for row in rows]

    async def read_waits(self, job_id: UUID, slot_no: int) -> Waits | None:
        rows = await self._ask("read_waits", job_id=str(job_id), slot_no=slot_no)
        return durable_values.waits(rows, job_id, slot_no)

    # Waking

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        if not signals:
            return {}
        return durable_values.sent(await self._ask("send_signals", **durable_values.signals(signals)))

    async def fold_marks(self, *, limit: int = BATCH) -> int:
        return number(await self._ask("fold_marks", limit=limit))

    # Operators

    async def forget_steps(self, job_id: UUID, name: str, *, and_after: bool = False) -> int:
        return number(await self._ask("forget_steps", job_id=str(job_id), step=name, and_after=int(and_after)))

    async def list_signals(self, job_id: UUID) -> list[SignalView]:
        return [durable_values.signal_view(row) for row in await self._ask("list_signals", job_id=str(job_id))]

    async def list_children(self, job_id: UUID) -> list[ChildView]:
        return [durable_values.child_view(row) for row in await self._ask("list_children", job_id=str(job_id))]
