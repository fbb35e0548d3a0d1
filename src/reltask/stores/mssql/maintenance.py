"""Leases and maintenance on SQL Server.

A leader's batch takes the lease's guard in share mode and checks the term; acquiring the lease
takes the guard in exclusive mode. So no other worker can take the lease over before the leader's
write is committed. After a takeover the old term is not found, and nothing is written. See
guard_lease.sql.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta

from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.shards import ShardMark
from reltask.model.views import LeaseView, MetricView
from reltask.stores.mssql import values
from reltask.stores.mssql.advisory import advisory_lock
from reltask.stores.mssql.connections import Connections
from reltask.stores.mssql.values import Row
from reltask.stores.prune_cutoff import PruneCutoff
from reltask.stores.store import BATCH


class MaintenanceVerbs(ABC):
    """The verbs that leaders and maintenance need."""

    def __init__(self) -> None:
        self._surplus: PruneCutoff[datetime] = PruneCutoff(lambda: asyncio.get_running_loop().time())

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Row]: ...

    @abstractmethod
    def _single(self) -> Connections:
        """A pool with one connection, for the caller alone."""

    # Leases

    async def acquire_lease(self, request: LeaseRequest) -> LeaseAnswer:
        return values.lease_answer(await self._ask("acquire_lease", **values.lease_request(request)))

    async def heartbeat_lease(self, grant: Grant, *, metadata: str | None = None) -> bool:
        return bool(await self._ask("heartbeat_lease", **values.grant(grant), metadata=metadata))

    async def resign_lease(self, grant: Grant) -> bool:
        return bool(await self._ask("resign_lease", **values.grant(grant)))

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
        return [row["id"] for row in await self._ask("mark_dead_workers", **values.leader(leader))]

    async def prune_runs(self, *, older_than: timedelta, most: int, leader: Term | None, limit: int = BATCH) -> int:
        before = await self._surplus.before(most, lambda: self._read_surplus(most))
        lengths = {"older_than": values.length(older_than), "surplus_before": values.moment(before), "limit": limit}
        return values.number(await self._ask("prune_runs", **values.leader(leader), **lengths))

    async def _read_surplus(self, most: int) -> datetime | None:
        rows = await self._ask("read_surplus", most=most)
        return rows[0]["finished_at"] if rows else None

    async def prune_records(self, *, workers: timedelta, metrics: timedelta, leader: Term | None) -> int:
        lengths = {"workers": values.length(workers), "metrics": values.length(metrics), "limit": BATCH}
        return values.number(await self._ask("prune_records", **values.leader(leader), **lengths))

    async def roll_up_runs(self, *, leader: Term | None) -> int:
        return values.number(await self._ask("roll_up_runs", **values.leader(leader)))

    async def list_metrics(self, *, since: timedelta, task: str | None = None) -> list[MetricView]:
        rows = await self._ask("list_metrics", since=values.length(since), task=task)
        return [values.metric_view(row) for row in rows]

    def advisory_lock(self, name: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[bool]] | None]:
        return advisory_lock(self._single(), name)
