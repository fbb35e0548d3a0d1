"""Audits and the doctor's facts on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from reltask.model.audit import BEFORE_ALL, LAST_OF_ALL, Break, LossCount, TaskCount, Wait
from reltask.model.doctor import Facts
from reltask.stores.audit import AT_ONCE
from reltask.stores.sqlite import values
from reltask.stores.sqlite.connections import Session
from reltask.stores.sqlite.examine import examine

T = TypeVar("T")
Rows = list[Any]


class AuditVerbs(ABC):
    """The verbs that look for mistakes."""

    _session: Session

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _call(self, verb: str, work: Callable[[], T]) -> T: ...

    async def audit_tasks(self, *, task: str | None = None) -> list[TaskCount]:
        (rows,) = await self._read("audit_tasks", task=task)
        return [TaskCount(**dict(row)) for row in rows]

    async def audit_slice(self, *, after: UUID, rows: int) -> UUID | None:
        (found,) = await self._read("audit_slice", after=str(after), rows=rows)
        return UUID(found[0]["ends_with"]) if found else None

    async def audit_slots(
        self,
        *,
        task: str | None = None,
        kept_for: timedelta,
        after: UUID = BEFORE_ALL,
        upto: UUID = LAST_OF_ALL,
        limit: int = AT_ONCE,
    ) -> list[Break]:
        bounds = {"after": str(after), "upto": str(upto), "limit": limit}
        (rows,) = await self._read("audit_slots", task=task, kept_for=values.length(kept_for), **bounds)
        return [values.found_break(row) for row in rows]

    async def audit_durable(
        self,
        *,
        task: str | None = None,
        kept_for: timedelta,
        after: UUID = BEFORE_ALL,
        upto: UUID = LAST_OF_ALL,
        limit: int = AT_ONCE,
    ) -> list[Break]:
        bounds = {"after": str(after), "upto": str(upto), "limit": limit}
        (rows,) = await self._read("audit_durable", task=task, kept_for=values.length(kept_for), **bounds)
        return [values.found_break(row) for row in rows]

    async def audit_waiting(self, *, task: str | None = None, lock_timeout: timedelta) -> list[Wait]:
        (rows,) = await self._read("audit_waiting", task=task, lock_timeout=values.length(lock_timeout))
        return [values.found_wait(row) for row in rows]

    async def audit_losses(self, *, task: str | None = None, limit: int = AT_ONCE) -> list[LossCount]:
        (rows,) = await self._read("audit_losses", task=task, limit=limit)
        return [values.loss(row) for row in rows]

    async def examine(self) -> Facts:
        return await self._call("examine", lambda: examine(self._session))
