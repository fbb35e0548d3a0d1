"""Leases as operations: tries, beats, resignations, and writes under a term."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any
from uuid import UUID

from reltask.model.lease import Grant, LeaseRequest, Term
from tests.interleaving.driver import Session
from tests.interleaving.operations import A, Operation

LEASE = "reports"
TTL = timedelta(seconds=10)
TERM = Term(LEASE, 1)
"""Alice's term. In some setups the lease has a later one."""
GRANT = Grant(term=TERM, acquisition=UUID(int=1))


def lease_request(holder: str, acquisition: UUID) -> LeaseRequest:
    return LeaseRequest(name=LEASE, holder=holder, acquisition=acquisition, ttl=TTL)


def _operation(name: str, statement: Callable[[Session], Awaitable[Any]], **fields: Any) -> Operation:
    return Operation(name, (statement,), **{"jobs": (), "leases": (LEASE,), **fields})


# Holders


def acquire() -> Operation:
    """The session's worker tries to get the lease, and never waits."""

    async def statement(session: Session) -> Any:
        return await session.store.acquire_lease(
            lease_request(session.worker, UUID(bytes=session.worker[:1].encode() * 16))
        )

    return _operation("acquire", statement, never_waits=True)


def beat() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.heartbeat_lease(GRANT, metadata='{"items": 1}')

    return _operation("beat", statement)


def resign() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.resign_lease(GRANT)

    return _operation("resign", statement)


def release_lease() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.release_lease(TERM)

    return _operation("release lease", statement)


# Writes under Alice's term


def lead() -> Operation:
    """A leader's own transaction: its write, then the guard. If the guard fails, it is rolled back."""

    async def write(session: Session) -> Any:
        await session.write_effect(A, "lead")

    async def guard(session: Session) -> Any:
        return await session.transaction.guard_lease(TERM)

    return Operation("lead", (write, guard), jobs=(), leases=(LEASE,), fenced_end=True)


def mark_dead() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.mark_dead_workers(leader=TERM)

    return _operation("mark dead", statement, workers=("alice",))


def prune() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.prune_runs(older_than=timedelta(0), most=1_000, leader=TERM)

    return _operation("prune", statement)


def prune_records() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.prune_records(workers=timedelta(0), metrics=timedelta(0), leader=TERM)

    return _operation("prune records", statement)


def roll_up() -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.roll_up_runs(leader=TERM)

    return _operation("roll up", statement)


LED = {"mark dead": mark_dead, "prune": prune, "prune records": prune_records, "roll up": roll_up}
