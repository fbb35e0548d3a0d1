"""Leases and maintenance on PostgreSQL.

A leader's statement locks the lease's row in share mode with its term, and its writes depend on that row:

    old leader   key share on (lease, term 7) ── writes ── COMMIT
    try                     for update skip locked: refused      ── term 8
    beat                    passes: it changes no key

So no other worker can take the lease over before the write is committed. After a takeover the row
with the old term is not found, and nothing is written.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any

from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.shards import ShardMark
from reltask.model.views import LeaseView, MetricView
from reltask.stores.postgres import values
from reltask.stores.postgres.advisory import advisory_lock
from reltask.stores.postgres.connections import PostgresOptions
from reltask.stores.prune_cutoff import PruneCutoff
from reltask.stores.store import BATCH

PARTITIONS_EVERY = 60.0
"""Seconds between two looks at the ledger's partitions, at least."""


class MaintenanceVerbs(ABC):
    """The verbs that leaders and maintenance need."""

    _url: str
    _options: PostgresOptions

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Any]: ...

    @abstractmethod
    async def _ask_quietly(self, verb: str, **columns: object) -> None: ...

    def __init__(self) -> None:
        self._surplus: PruneCutoff[datetime] = PruneCutoff(lambda: asyncio.get_running_loop().time())
        self._partitions_at = 0.0

    # Leases

    async def acquire_lease(self, request: LeaseRequest) -> LeaseAnswer:
        return values.lease_answer(await self._ask("acquire_lease", **values.lease_request(request)))

    async def heartbeat_lease(self, grant: Grant, *, metadata: str | None = None) -> bool:
        return bool(await self._ask("heartbeat_lease", **values.grant(grant), metadata=metadata))

    async def resign_lease(self, grant: Grant) -> bool:
        return bool(await self._ask("resign_lease", **values.grant(grant)))

    async def signal_lease(self, name: str) -> None:
        await self._ask_quietly("signal_lease", lease=name)

    async def release_lease(self, term: Term) -> bool:
        return bool(await self._ask("release_lease", **values.leader(term)))

    async def list_leases(self) -> list[LeaseView]:
        return [values.lease_view(row) for row in await self._ask("list_leases")]

    # Shards

    async def read_shard(self) -> ShardMark:
        (row,) = await self._ask("read_shard")
        return ShardMark(row["shard"], bool(row["draining"]))

    async def mark_shard(self, number: int) -> bool:
        return bool(await self._ask("mark_shard", shard=number))

    async def drain_shard(self, *, draining: bool) -> None:
        await self._ask("drain_shard", draining=draining)

    # Maintenance

    async def mark_dead_workers(self, *, leader: Term | None) -> list[str]:
        rows = await self._ask("mark_dead_workers", **values.leader(leader))
        return [worker for (worker,) in rows]

    async def prune_runs(self, *, older_than: timedelta, most: int, leader: Term | None, limit: int = BATCH) -> int:
        surplus_before = await self._surplus.before(most, lambda: self._read_surplus(most))
        cutoff = {**values.leader(leader), "older_than": older_than, "surplus_before": surplus_before}
        dropped = await self._renew_partitions(cutoff)
        return dropped + _number(await self._ask("prune_runs", **cutoff, limit=limit))

    async def _renew_partitions(self, cutoff: dict[str, Any]) -> int:
        """The rows that went with whole partitions: none where the ledger is not divided."""
        now = asyncio.get_running_loop().time()
        if now < self._partitions_at:
            return 0
        self._partitions_at = now + PARTITIONS_EVERY
        rows = await self._ask("renew_partitions", **cutoff)
        return (rows[0][0] or 0) if rows else 0

    async def _read_surplus(self, most: int) -> datetime | None:
        rows = await self._ask("read_surplus", most=most)
        return rows[0][0] if rows else None

    async def prune_records(self, *, workers: timedelta, metrics: timedelta, leader: Term | None) -> int:
        lengths = {"workers": workers, "metrics": metrics, "limit": BATCH}
        return _number(await self._ask("prune_records", **values.leader(leader), **lengths))

    async def roll_up_runs(self, *, leader: Term | None) -> int:
        return _number(await self._ask("roll_up_runs", **values.leader(leader)))

    async def list_metrics(self, *, since: timedelta, task: str | None = None) -> list[MetricView]:
        return [values.metric_view(row) for row in await self._ask("list_metrics", since=since, task=task)]

    def advisory_lock(self, name: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[bool]] | None]:
        return advisory_lock(self._url, self._options, name)


def _number(rows: list[Any]) -> int:
    ((number,),) = rows
    return int(number)
