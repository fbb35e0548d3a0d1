"""The dashboard's reads on PostgreSQL, and the log of actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from reltask.model.limit import JobLimit
from reltask.model.overview import MOST, Overview, read_overview
from reltask.model.screens import (
    Action,
    Cursor,
    DeadLetter,
    ListedJob,
    ListedState,
    NewAction,
    Page,
    Payload,
    RunSample,
    page_of,
)
from reltask.model.views import JobView
from reltask.stores.postgres import values
from reltask.stores.screens import ERROR_END, PAGE


class ScreenVerbs(ABC):
    """The verbs that the dashboard needs."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Any]: ...

    async def read_overview(self, *, most: int = MOST) -> Overview:
        (row,) = await self._ask("read_overview", most=most + 1)
        parts = {
            name: msgspec.json.decode(text) if text else [] for name, text in row.items() if name not in ("now", "most")
        }
        return read_overview(row["now"], row["most"], parts)

    async def page_jobs(
        self,
        state: ListedState,
        *,
        task: str | None = None,
        queue: str | None = None,
        after: Cursor | None = None,
        limit: int = PAGE,
    ) -> Page[ListedJob]:
        at, job_id = after or (None, None)
        columns = {"state": state, "task": task, "queue": queue, "after_at": at, "after_id": job_id}
        rows = await self._ask("page_jobs", **columns, limit=limit + 1)
        return page_of([ListedJob(row[0], values.job_view(tuple(row)[1:])) for row in rows], limit)

    async def find_jobs(self, key: str, *, limit: int = PAGE) -> list[JobView]:
        return [values.job_view(row) for row in await self._ask("find_jobs", key=key, limit=limit)]

    async def list_schedules(self, *, after: tuple[str, UUID] | None = None, limit: int = PAGE) -> list[JobView]:
        task, job_id = after or (None, None)
        rows = await self._ask("list_schedules", after_task=task, after_id=job_id, limit=limit)
        return [values.job_view(row) for row in rows]

    async def list_dead_errors(self, *, most: int = MOST, characters: int = ERROR_END) -> list[DeadLetter]:
        rows = await self._ask("list_dead_errors", most=most, characters=characters)
        return [DeadLetter(**dict(row.items())) for row in rows]

    async def sample_runs(self, *, since: timedelta, limit: int = MOST) -> list[RunSample]:
        return [RunSample(*row) for row in await self._ask("sample_runs", since=since, limit=limit)]

    async def read_payload(self, job_id: UUID) -> Payload | None:
        rows = await self._ask("read_payload", id=job_id)
        return Payload(*rows[0]) if rows else None

    async def read_job_limits(self, job_id: UUID, *, most: int = MOST) -> list[JobLimit]:
        return [JobLimit(*row) for row in await self._ask("read_job_limits", id=job_id, most=most)]

    async def record_action(self, action: NewAction) -> None:
        await self._ask("record_action", **msgspec.structs.asdict(action))

    async def end_action(self, action_id: UUID, *, outcome: str, changed: int) -> bool:
        return bool(await self._ask("end_action", id=action_id, outcome=outcome, changed=changed))

    async def list_actions(self, *, after: tuple[datetime, UUID] | None = None, limit: int = PAGE) -> list[Action]:
        at, action_id = after or (None, None)
        rows = await self._ask("list_actions", after_at=at, after_id=action_id, limit=limit)
        return [Action(**dict(row.items())) for row in rows]
