"""Limits on SQL Server. What is read after the keys are locked is true until the commit: see claim_limited.sql."""

from __future__ import annotations

from abc import ABC, abstractmethod

from reltask.model.audit import Miscount
from reltask.model.job import ClaimAnswer, ClaimRequest
from reltask.model.limit import LimitKeyView, LimitRule, LimitView
from reltask.stores.limits import ALL, BATCH, limit_rule, limit_view, rule_columns
from reltask.stores.mssql import values
from reltask.stores.mssql.values import Row


class LimitVerbs(ABC):
    """The verbs that limits need."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Row]: ...

    async def claim_limited(self, request: ClaimRequest) -> ClaimAnswer:
        return values.claim_answer(await self._ask("claim_limited", **values.request(request)))

    async def read_limits(self) -> list[LimitRule]:
        return [limit_rule(row) for row in await self._ask("read_limits")]

    async def write_limit(self, rule: LimitRule, *, seen: str | None) -> bool:
        return bool(await self._ask("write_limit", **rule_columns(rule), seen=seen))

    async def list_limits(self, *, most: int = ALL) -> list[LimitView]:
        return [limit_view(row) for row in await self._ask("list_limits", most=most)]

    async def list_limit_keys(self, name: str, *, limit: int = 100) -> list[LimitKeyView]:
        rows = await self._ask("list_limit_keys", name=name, limit=limit)
        return [
            LimitKeyView(key=row["key"], in_use=row["in_use"], waiting=row["waiting"], tokens=row["tokens"])
            for row in rows
        ]

    async def recount_limits(self, *, limit: int = BATCH) -> int:
        return values.number(await self._ask("recount_limits", limit=limit))

    async def audit_limits(self, *, limit: int = BATCH) -> list[Miscount]:
        """Only what is wrong twice in a row: the rows are not read at one moment."""
        first = await self._ask("audit_limits", limit=limit)
        again = {row["key"]: row for row in await self._ask("audit_limits", limit=limit)} if first else {}
        found = [again[row["key"]] for row in first if row["key"] in again]
        return [Miscount(row["key"], row["counted"], row["claimed"], bool(row["stranded"])) for row in found]
