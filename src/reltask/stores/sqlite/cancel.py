"""Cancelling on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from reltask.model.job import Cancellation, Hold, Orphans
from reltask.stores.cancel import BATCH
from reltask.stores.sqlite import values


class CancelVerbs(ABC):
    """The verbs that cancel jobs."""

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[list[Any]]: ...

    @abstractmethod
    async def _write(self, verb: str, **parameters: object) -> list[list[Any]]: ...

    async def cancel_job(self, job_id: UUID, *, fence: int | None = None) -> Cancellation | None:
        *_, ended, marked = await self._write("cancel_job", job_id=str(job_id), fence=fence)
        if ended:
            return Cancellation.CANCELLED
        return Cancellation.STOPPING if marked else None

    async def cancel_children(self, *, parents: Sequence[UUID] | None = None, limit: int = BATCH) -> Orphans:
        wanted = None if parents is None else values.batch(map(str, parents))
        _, ended, stopping = await self._write("cancel_children", parents=wanted, limit=limit)
        return Orphans(ended=[UUID(row["id"]) for row in ended], stopping=[UUID(row["id"]) for row in stopping])

    async def read_cancelled(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        (rows,) = await self._read("read_cancelled", worker=worker, holds=values.holds(holds))
        return set(map(values.hold, rows))
