"""The part of the store interface that looks for mistakes: what `reltask audit` and `reltask doctor` read."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol
from uuid import UUID

from reltask.model.audit import BEFORE_ALL, LAST_OF_ALL, Break, LossCount, TaskCount, Wait
from reltask.model.doctor import Facts

AT_ONCE = 1_000
"""The most findings of one call, unless it names another number."""


class AuditStore(Protocol):
    """The verbs of audits, and of the doctor."""

    async def audit_tasks(self, *, task: str | None = None) -> list[TaskCount]:
        """Count slots and runs by task, and measure how late slots were first claimed."""
        ...

    async def audit_slice(self, *, after: UUID, rows: int) -> UUID | None:
        """The last job of a slice of about `rows` ledger rows that begins after this job; None: all the rest is one."""
        ...

    async def audit_slots(
        self,
        *,
        task: str | None = None,
        kept_for: timedelta,
        after: UUID = BEFORE_ALL,
        upto: UUID = LAST_OF_ALL,
        limit: int = AT_ONCE,
    ) -> list[Break]:
        """Find contradictions between ledger and rows; history younger than `kept_for` must be complete.

        Only of the jobs whose ids are greater than `after`, up to and including `upto`.
        """
        ...

    async def audit_durable(
        self,
        *,
        task: str | None = None,
        kept_for: timedelta,
        after: UUID = BEFORE_ALL,
        upto: UUID = LAST_OF_ALL,
        limit: int = AT_ONCE,
    ) -> list[Break]:
        """Find contradictions in steps, signals and children, and suspended jobs that nothing will wake.

        Parameters as of `audit_slots`.
        """
        ...

    async def audit_waiting(self, *, task: str | None = None, lock_timeout: timedelta) -> list[Wait]:
        """Find jobs that wait longer than their lock timeout, or than `lock_timeout` if they have none."""
        ...

    async def audit_losses(self, *, task: str | None = None, limit: int = AT_ONCE) -> list[LossCount]:
        """Count the runs that lost their lock by task, outcome and worker, latest first."""
        ...

    async def examine(self) -> Facts:
        """The facts that `reltask doctor` checks. Needs no open store, and no tables."""
        ...
