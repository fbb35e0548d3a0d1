"""The part of the store interface that limits need: see `model/limit.py` for the idea."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Protocol

from reltask.model.audit import Miscount
from reltask.model.job import ClaimAnswer, ClaimRequest
from reltask.model.limit import LimitKeyView, LimitRule, LimitView, Rate, shown_rate

BATCH = 1_000
ALL = 2**62
"""No list is longer."""
_MILLISECOND = timedelta(milliseconds=1)


class LimitStore(Protocol):
    """Limits, their keys, and the claims of jobs that have some."""

    async def claim_limited(self, request: ClaimRequest) -> ClaimAnswer:
        """Take up to `limit` due jobs whose limits all have room: a place of each key, and a token of each rate.

        Looks only at keys that have a mark. `limited_at` says when it is worth asking again.
        """
        ...

    async def read_limits(self) -> list[LimitRule]:
        """The limits as they are set."""
        ...

    async def write_limit(self, rule: LimitRule, *, seen: str | None) -> bool:
        """Set a limit if its declaration is still `seen`, None: there is none; and look at the jobs that wait for it.

        Claims that begin afterwards go by it.
        """
        ...

    async def list_limits(self, *, most: int = ALL) -> list[LimitView]:
        """The limits, and how much of each is in use. Of the jobs that wait for one, `most` are counted."""
        ...

    async def list_limit_keys(self, name: str, *, limit: int = 100) -> list[LimitKeyView]:
        """The keys of a limit, those with the most waiting jobs first."""
        ...

    async def recount_limits(self, *, limit: int = BATCH) -> int:
        """Heal: count places again, mark keys with room and due jobs, forget idle keys; return how many were wrong."""
        ...

    async def audit_limits(self, *, limit: int = BATCH) -> Sequence[Miscount]:
        """The keys whose count is not that of their claimed jobs, or whose due jobs have room and no mark."""
        ...


def limit_rule(row: Mapping[str, Any]) -> LimitRule:
    """A row of read_limits.sql."""
    return LimitRule(
        name=row["name"],
        running=row["running"],
        rate=Rate.of(row["rate_count"], row["rate_period_ms"]),
        burst=row["burst"],
        declaration=row["declaration"],
        app_version=row["app_version"],
    )


def limit_view(row: Mapping[str, Any]) -> LimitView:
    """A row of list_limits.sql."""
    return LimitView(
        name=row["name"],
        running=row["running"],
        rate=shown_rate(row["rate_count"], row["rate_period_ms"]),
        burst=row["burst"],
        keys=row["keys"],
        in_use=row["in_use"],
        waiting=row["waiting"],
        tokens=row["tokens"],
    )


def rule_columns(rule: LimitRule) -> dict[str, object]:
    """The parameters of write_limit.sql that a rule gives. A period is of whole milliseconds, rounded up."""
    return {
        "name": rule.name,
        "running": rule.running,
        "rate_count": None if rule.rate is None else rule.rate.count,
        "rate_period_ms": None if rule.rate is None else -(-rule.rate.period // _MILLISECOND),
        "burst": rule.burst,
        "declaration": rule.declaration,
        "app_version": rule.app_version,
    }
