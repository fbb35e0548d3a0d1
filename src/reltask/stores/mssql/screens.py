"""The dashboard's reads on SQL Server, and the log of actions."""

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
from reltask.stores.mssql import values
from reltask.stores.mssql.values import Row
from reltask.stores.screens import ERROR_END, PAGE

_COUNTS = ("queue", "task", "jobs", "lately", "at")
_PARTS = {
    "lanes": (
        *("queue", "task", "due", "more_due", "oldest", "later", "more_later", "suspended", "failing", "soonest"),
    ),
    "claimed": _COUNTS,
    "paused": _COUNTS,
    "dead": _COUNTS,
    "recurring": ("task", "jobs", "last_run_time", "due_at"),
    "fleet": ("queues", "tasks", "version", "app_version", "workers", "places"),
    "states": ("state", "workers", "lately", "heartbeat_at"),
    "leases": ("name", "holder", "term", "held", "waiting", "expires_at"),
    "minutes": ("minute", "succeeded", "failed"),
    "tasks": ("task", "succeeded", "failed", "seconds", "late", "late_most"),
    "pauses": ("kind", "name", "reason", "paused_by", "paused_at"),
}
"""The columns of read_overview.sql, and the names in their JSON, in the order of the values' fields."""


class ScreenVerbs(ABC):
    """The verbs that the dashboard needs."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Row]: ...

    async def read_overview(self, *, most: int = MOST) -> Overview:
        (row,) = await self._ask("read_overview", most=most + 1)
        parts = {name: [_fields(one, names) for one in _objects(row[name])] for name, names in _PARTS.items()}
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
        columns = {
            "state": state,
            "task": task,
            "queue": queue,
            "after_at": None if after is None else values.moment(after.at),
            "after_id": None if after is None else str(after.id),
        }
        rows = await self._ask("page_jobs", **columns, limit=limit + 1)
        return page_of([_listed(row) for row in rows], limit)

    async def find_jobs(self, key: str, *, limit: int = PAGE) -> list[JobView]:
        return [values.job_view(row) for row in await self._ask("find_jobs", key=key, limit=limit)]

    async def list_schedules(self, *, after: tuple[str, UUID] | None = None, limit: int = PAGE) -> list[JobView]:
        task, job_id = after or (None, None)
        columns = {"after_task": task, "after_id": None if job_id is None else str(job_id)}
        return [values.job_view(row) for row in await self._ask("list_schedules", **columns, limit=limit)]

    async def list_dead_errors(self, *, most: int = MOST, characters: int = ERROR_END) -> list[DeadLetter]:
        rows = await self._ask("list_dead_errors", most=most, characters=characters)
        return [DeadLetter(**row) for row in rows]

    async def sample_runs(self, *, since: timedelta, limit: int = MOST) -> list[RunSample]:
        rows = await self._ask("sample_runs", since=values.length(since), limit=limit)
        return [RunSample(**row) for row in rows]

    async def read_payload(self, job_id: UUID) -> Payload | None:
        rows = await self._ask("read_payload", id=str(job_id))
        return Payload(**rows[0]) if rows else None

    async def read_job_limits(self, job_id: UUID, *, most: int = MOST) -> list[JobLimit]:
        rows = await self._ask("read_job_limits", id=str(job_id), most=most)
        return [JobLimit(**row) for row in rows]

    async def record_action(self, action: NewAction) -> None:
        await self._ask("record_action", **{**msgspec.structs.asdict(action), "id": str(action.id)})

    async def end_action(self, action_id: UUID, *, outcome: str, changed: int) -> bool:
        return bool(await self._ask("end_action", id=str(action_id), outcome=outcome, changed=changed))

    async def list_actions(self, *, after: tuple[datetime, UUID] | None = None, limit: int = PAGE) -> list[Action]:
        at, action_id = after or (None, None)
        columns = {"after_at": values.moment(at), "after_id": None if action_id is None else str(action_id)}
        return [Action(**row) for row in await self._ask("list_actions", **columns, limit=limit)]


def _listed(row: Row) -> ListedJob:
    return ListedJob(row["at"], values.job_view({name: value for name, value in row.items() if name != "at"}))


def _objects(text: str | None) -> list[dict[str, Any]]:
    """An array of FOR JSON; NULL if it would be empty."""
    return msgspec.json.decode(text, type=list[dict[str, Any]]) if text else []


def _fields(one: dict[str, Any], names: tuple[str, ...]) -> list[Any]:
    """FOR JSON leaves out what is NULL."""
    return [one.get(name) for name in names]
