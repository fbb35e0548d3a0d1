"""The dashboard's reads on SQLite, and the log of actions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, TypeVar
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
from reltask.stores.screens import ERROR_END, PAGE
from reltask.stores.sqlite import values
from reltask.stores.sqlite.connections import FileTransaction, Session

T = TypeVar("T")
Rows = list[Any]

_PARTS = (
    *("lanes", "claimed", "paused", "dead", "recurring", "fleet", "states", "leases", "minutes", "tasks", "pauses"),
)
"""The statements of read_overview.sql, in their order."""


class ScreenVerbs(ABC):
    """The verbs that the dashboard needs."""

    _session: Session

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _write(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _wins(self, verb: str, **parameters: object) -> bool: ...

    @abstractmethod
    async def _call(self, verb: str, work: Callable[[], T]) -> T: ...

    async def read_overview(self, *, most: int = MOST) -> Overview:
        def read(transaction: FileTransaction) -> tuple[int, list[Rows]]:
            return transaction.now, transaction.verb("read_overview", most=most + 1)

        now, answers = await self._call("read_overview", lambda: self._session.read(read))
        lanes = answers[0]
        parts = {name: [tuple(row) for row in rows] for name, rows in zip(_PARTS, answers, strict=True)}
        parts["lanes"] = [row[:-1] for row in parts["lanes"]]
        return read_overview(now, lanes[0]["most"] if lanes else most + 1, parts)

    async def page_jobs(
        self,
        state: ListedState,
        *,
        task: str | None = None,
        queue: str | None = None,
        after: Cursor | None = None,
        limit: int = PAGE,
    ) -> Page[ListedJob]:
        (rows,) = await self._read(
            "page_jobs",
            state=str(state),
            task=task,
            queue=queue,
            after_at=None if after is None else values.micros(after.at),
            after_id=None if after is None else str(after.id),
            limit=limit + 1,
        )
        return page_of([ListedJob(values.moment(row["at"]), values.job_view(row)) for row in rows], limit)

    async def find_jobs(self, key: str, *, limit: int = PAGE) -> list[JobView]:
        (rows,) = await self._read("find_jobs", key=key, limit=limit)
        return [values.job_view(row) for row in rows]

    async def list_schedules(self, *, after: tuple[str, UUID] | None = None, limit: int = PAGE) -> list[JobView]:
        task, job_id = after or (None, None)
        (rows,) = await self._read(
            "list_schedules", after_task=task, after_id=None if job_id is None else str(job_id), limit=limit
        )
        return [values.job_view(row) for row in rows]

    async def list_dead_errors(self, *, most: int = MOST, characters: int = ERROR_END) -> list[DeadLetter]:
        (rows,) = await self._read("list_dead_errors", most=most, characters=characters)
        return [
            DeadLetter(**{**dict(row), "id": UUID(row["id"]), "dead_at": values.moment(row["dead_at"])}) for row in rows
        ]

    async def sample_runs(self, *, since: timedelta, limit: int = MOST) -> list[RunSample]:
        (rows,) = await self._read("sample_runs", since=values.length(since), limit=limit)
        return [RunSample(*row) for row in rows]

    async def read_payload(self, job_id: UUID) -> Payload | None:
        (rows,) = await self._read("read_payload", job_id=str(job_id))
        return Payload(*rows[0]) if rows else None

    async def read_job_limits(self, job_id: UUID, *, most: int = MOST) -> list[JobLimit]:
        (rows,) = await self._read("read_job_limits", job_id=str(job_id), most=most)
        return [JobLimit(*row) for row in rows]

    async def record_action(self, action: NewAction) -> None:
        await self._write("record_action", **{**msgspec.structs.asdict(action), "id": str(action.id)})

    async def end_action(self, action_id: UUID, *, outcome: str, changed: int) -> bool:
        return await self._wins("end_action", id=str(action_id), outcome=outcome, changed=changed)

    async def list_actions(self, *, after: tuple[datetime, UUID] | None = None, limit: int = PAGE) -> list[Action]:
        at, action_id = after or (None, None)
        (rows,) = await self._read(
            "list_actions",
            after_at=None if at is None else values.micros(at),
            after_id=None if action_id is None else str(action_id),
            limit=limit,
        )
        return [Action(**{**dict(row), "id": UUID(row["id"]), "at": values.moment(row["at"])}) for row in rows]
