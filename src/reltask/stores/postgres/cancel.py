"""Cancelling on PostgreSQL, and the notifications that name jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from reltask.model.job import Cancellation, Hold, Orphans
from reltask.stores.cancel import BATCH
from reltask.stores.postgres import values

NAMED = 200
"""The most ids that one notification names: it has at most 8000 bytes. For more cancelled jobs, every worker looks at
all that it runs."""


class CancelVerbs(ABC):
    """The verbs that cancel jobs."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Any]: ...

    @abstractmethod
    async def _ask_quietly(self, verb: str, **columns: object) -> None: ...

    async def cancel_job(self, job_id: UUID, *, fence: int | None = None) -> Cancellation | None:
        rows = await self._ask("cancel_job", id=job_id, fence=fence)
        if not rows:
            return None
        return Cancellation.CANCELLED if rows[0]["ended"] else Cancellation.STOPPING

    async def cancel_children(self, *, parents: Sequence[UUID] | None = None, limit: int = BATCH) -> Orphans:
        rows = await self._ask("cancel_children", parents=None if parents is None else list(parents), limit=limit)
        return Orphans(ended=[one for one, ends in rows if ends], stopping=[one for one, ends in rows if not ends])

    async def read_cancelled(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        rows = await self._ask("read_cancelled", worker=worker, **values.holds(holds))
        return {Hold(job_id, fence) for job_id, fence in rows}

    async def signal_cancel(self, job_ids: Sequence[UUID]) -> None:
        await self._ask_quietly("signal_cancel", jobs=" ".join(map(str, job_ids)) if len(job_ids) <= NAMED else "")

    async def signal_awaited(self, job_ids: Sequence[UUID]) -> None:
        for start in range(0, len(job_ids), NAMED):
            await self._ask_quietly("signal_awaited", jobs=" ".join(map(str, job_ids[start : start + NAMED])))

    async def signal_ended(self, job_ids: Sequence[UUID]) -> None:
        for start in range(0, len(job_ids), NAMED):
            await self._ask_quietly("signal_ended", jobs=" ".join(map(str, job_ids[start : start + NAMED])))
