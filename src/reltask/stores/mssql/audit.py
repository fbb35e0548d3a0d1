"""Audits and the doctor's facts on SQL Server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import timedelta
from uuid import UUID

from reltask.model.audit import BEFORE_ALL, LAST_OF_ALL, Break, LossCount, TaskCount, Wait
from reltask.model.doctor import Facts
from reltask.stores.audit import AT_ONCE
from reltask.stores.mssql import values
from reltask.stores.mssql.examine import examine
from reltask.stores.mssql.url import Target
from reltask.stores.mssql.values import Row


class AuditVerbs(ABC):
    """The verbs that look for mistakes."""

    _target: Target

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Row]: ...

    async def audit_tasks(self, *, task: str | None = None) -> list[TaskCount]:
        return [values.task_count(row) for row in await self._ask("audit_tasks", task=task)]

    async def audit_slice(self, *, after: UUID, rows: int) -> UUID | None:
        found = await self._ask("audit_slice", after=str(after), rows=rows)
        return found[0]["ends_with"] if found else None

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
        rows = await self._ask("audit_slots", task=task, kept_for=values.length(kept_for), **bounds)
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
        rows = await self._ask("audit_durable", task=task, kept_for=values.length(kept_for), **bounds)
        return [values.found_break(row) for row in rows]

    async def audit_waiting(self, *, task: str | None = None, lock_timeout: timedelta) -> list[Wait]:
        rows = await self._ask("audit_waiting", task=task, lock_timeout=values.length(lock_timeout))
        return [values.found_wait(row) for row in rows]

    async def audit_losses(self, *, task: str | None = None, limit: int = AT_ONCE) -> list[LossCount]:
        return [values.loss(row) for row in await self._ask("audit_losses", task=task, limit=limit)]

    async def examine(self) -> Facts:
        return await examine(self._ask, self._target.schema)
