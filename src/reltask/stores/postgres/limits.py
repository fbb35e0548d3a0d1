"""Limits on PostgreSQL. The header of claim_limited.sql says which races it excludes, and how."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Any

from reltask.errors import TransientError
from reltask.model.audit import Miscount
from reltask.model.job import ClaimAnswer, ClaimRequest
from reltask.model.limit import LimitKeyView, LimitRule, LimitView
from reltask.stores.limits import ALL, BATCH, limit_rule, limit_view, rule_columns
from reltask.stores.postgres import values
from reltask.stores.postgres.errors import SKIP_FOR


class LimitVerbs(ABC):
    """The verbs that limits need."""

    _skip_keys_until = 0.0

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Any]: ...

    @abstractmethod
    async def _patiently(self, verb: str, **columns: object) -> list[Any] | None: ...

    async def claim_limited(self, request: ClaimRequest) -> ClaimAnswer:
        """Wait for keys that other claims have locked. One that stays locked is skipped, for a while at once."""
        columns, rows = values.request(request), None
        loop = asyncio.get_running_loop()
        if loop.time() >= self._skip_keys_until:
            rows = await self._patiently("claim_limited", skips=False, **columns)
        if rows is None:
            self._skip_keys_until = max(self._skip_keys_until, loop.time() + SKIP_FOR)
            rows = await self._patiently("claim_limited", skips=True, **columns)
        if rows is None:
            raise TransientError("another session has inserted the key of a limit, and has not committed it.")
        return values.claim_answer(rows)

    async def read_limits(self) -> list[LimitRule]:
        return [limit_rule(row) for row in await self._ask("read_limits")]

    async def write_limit(self, rule: LimitRule, *, seen: str | None) -> bool:
        return bool(await self._ask("write_limit", **rule_columns(rule), seen=seen))

    async def list_limits(self, *, most: int = ALL) -> list[LimitView]:
        return [limit_view(row) for row in await self._ask("list_limits", most=most)]

    async def list_limit_keys(self, name: str, *, limit: int = 100) -> list[LimitKeyView]:
        rows = await self._ask("list_limit_keys", name=name, limit=limit)
        return [LimitKeyView(key=key, in_use=used, waiting=due, tokens=tokens) for key, used, due, tokens in rows]

    async def recount_limits(self, *, limit: int = BATCH) -> int:
        ((number,),) = await self._ask("recount_limits", limit=limit)
        return int(number)

    async def audit_limits(self, *, limit: int = BATCH) -> list[Miscount]:
        return [
            Miscount(key, counted, claimed, stranded)
            for key, counted, claimed, stranded in await self._ask("audit_limits", limit=limit)
        ]
