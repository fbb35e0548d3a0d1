"""Leases and maintenance on SQLite.

There is one writer at a time, so a leader's write needs no lock on its lease: the term is checked
in the transaction that writes, and no other worker can take the lease over before it is committed.
A step that finds nothing to do writes nothing, and so does not wake the workers that watch the
file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any, TypeVar

from reltask.errors import UsageError
from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.shards import ShardMark
from reltask.model.views import LeaseView, MetricView
from reltask.stores.prune_cutoff import PruneCutoff
from reltask.stores.sqlite import values
from reltask.stores.sqlite.connections import FileTransaction, Session
from reltask.stores.store import BATCH

T = TypeVar("T")
Rows = list[Any]

_LOOK, _TAKE, _WAIT_NO_MORE, _WAIT = range(4)
"""The statements of acquire_lease.sql, in their order."""


class MaintenanceVerbs(ABC):
    """The verbs that leaders and maintenance need."""

    _session: Session
    _surplus: PruneCutoff[int]

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _write(self, verb: str, **parameters: object) -> list[Rows]: ...

    @abstractmethod
    async def _wins(self, verb: str, **parameters: object) -> bool: ...

    @abstractmethod
    async def _call(self, verb: str, work: Callable[[], T]) -> T: ...

    # Leases

    async def acquire_lease(self, request: LeaseRequest) -> LeaseAnswer:
        return await self._call("acquire_lease", lambda: acquire_lease(self._session, request))

    async def heartbeat_lease(self, grant: Grant, *, metadata: str | None = None) -> bool:
        return await self._wins("heartbeat_lease", **values.grant(grant), metadata=metadata)

    async def resign_lease(self, grant: Grant) -> bool:
        return await self._wins("resign_lease", **values.grant(grant))

    async def release_lease(self, term: Term) -> bool:
        return await self._wins("release_lease", lease=term.lease, term=term.number)

    async def list_leases(self) -> list[LeaseView]:
        (rows,) = await self._read("list_leases")
        return [values.lease_view(row) for row in rows]

    # Shards

    async def read_shard(self) -> ShardMark:
        ((row,),) = await self._read("read_shard")
        return ShardMark(row["shard"], bool(row["draining"]))

    async def mark_shard(self, number: int) -> bool:
        return await self._wins("mark_shard", shard=number)

    async def drain_shard(self, *, draining: bool) -> None:
        await self._write("drain_shard", draining=draining)

    # Maintenance

    async def mark_dead_workers(self, *, leader: Term | None) -> list[str]:
        (rows,) = await self._write("mark_dead_workers", **values.leader(leader))
        return [row["id"] for row in rows]

    async def prune_runs(self, *, older_than: timedelta, most: int, leader: Term | None, limit: int = BATCH) -> int:
        *_, rows = await self._write(
            "prune_runs",
            **values.leader(leader),
            older_than=values.length(older_than),
            surplus_before=await self._surplus.before(most, lambda: self._read_surplus(most)),
            limit=limit,
        )
        return len(rows)

    async def _read_surplus(self, most: int) -> int | None:
        (rows,) = await self._read("read_surplus", most=most)
        return rows[0]["finished_at"] if rows else None

    async def prune_records(self, *, workers: timedelta, metrics: timedelta, leader: Term | None) -> int:
        lengths = {"workers": values.length(workers), "metrics": values.length(metrics)}
        removed = await self._write("prune_records", **values.leader(leader), **lengths, limit=BATCH)
        return sum(map(len, removed))

    async def roll_up_runs(self, *, leader: Term | None) -> int:
        (rows,) = await self._write("roll_up_runs", **values.leader(leader))
        return len({row["minute"] for row in rows})

    async def list_metrics(self, *, since: timedelta, task: str | None = None) -> list[MetricView]:
        (rows,) = await self._read("list_metrics", since=values.length(since), task=task)
        return [values.metric_view(row) for row in rows]

    def advisory_lock(self, name: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[bool]] | None]:
        raise UsageError(
            f"SQLite has no advisory locks, so {name!r} cannot be coordinated by one.",
            remedy='Choose the coordination "lease", "everyone" or "stealing": SQLite offers all three.',
        )


def acquire_lease(session: Session, request: LeaseRequest) -> LeaseAnswer:
    """Read first: a refused try that need not record that it waits takes no write lock."""
    asked = values.lease_request(request)
    seen, answer = session.read(lambda transaction: _look(transaction, asked))
    if seen["is_free"] or seen["must_wait"]:
        return session.write(lambda transaction: _take_or_wait(transaction, asked))
    return answer


def _look(transaction: FileTransaction, asked: dict[str, object]) -> tuple[Any, LeaseAnswer]:
    (seen,) = _run(transaction, _LOOK, asked)
    return seen, LeaseAnswer(
        term=None,
        now=values.moment(transaction.now),
        expires_at=values.moment(transaction.now if seen["expires_at"] is None else seen["expires_at"]),
        rank=seen["rank"],
        waiting=seen["waiting"],
    )


def _take_or_wait(transaction: FileTransaction, asked: dict[str, object]) -> LeaseAnswer:
    taken = _run(transaction, _TAKE, asked)
    if taken:
        _run(transaction, _WAIT_NO_MORE, asked)
        (row,) = taken
        return LeaseAnswer(
            term=row["term"], now=values.moment(transaction.now), expires_at=values.moment(row["expires_at"])
        )
    seen, answer = _look(transaction, asked)
    if seen["must_wait"]:
        _run(transaction, _WAIT, asked)
    return answer


def _run(transaction: FileTransaction, which: int, asked: dict[str, object]) -> Rows:
    return transaction.run(transaction.statements("acquire_lease")[which], **asked)
