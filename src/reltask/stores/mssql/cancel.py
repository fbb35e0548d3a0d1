"""Cancelling on SQL Server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from uuid import UUID

from reltask.model.job import Cancellation, Hold, Orphans
from reltask.stores.cancel import BATCH
from reltask.stores.mssql import values
from reltask.stores.mssql.values import Row


class CancelVerbs(ABC):
    """The verbs that cancel jobs."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Row]: ...

    async def cancel_job(self, job_id: UUID, *, fence: int | None = None) -> Cancellation | None:
        rows = await self._ask("cancel_job", id=str(job_id), fence=fence)
        if not rows:
            return None
        return Cancellation.CANCELLED if rows[0]["ended"] else Cancellation.STOPPING

    async def cancel_children(self, *, parents: Sequence[UUID] | None = None, limit: int = BATCH) -> Orphans:
        wanted = None if parents is None else values.batch(map(str, parents))
        rows = await self._ask("cancel_children", parents=wanted, limit=limit)
        return Orphans(
            ended=[row["id"] for row in rows if row["ended"]],
            stopping=[row["id"] for row in rows if not row["ended"]],
        )

    async def read_cancelled(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        rows = await self._ask("read_cancelled", worker=worker, holds=values.holds(holds))
        return {values.held(row) for row in rows}
