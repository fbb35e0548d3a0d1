"""Leases in every order: tries, beats, resignations, and what is written under a term.

Two operations are a second apart, so a lease that ends in between is held for the first and free for the second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import product
from typing import Any
from uuid import UUID

from reltask.model.job import Completion
from reltask.model.lease import Grant, LeaseRequest, Term
from tests.interleaving.driver import Session
from tests.interleaving.operations import LATER, A, B, Operation, T, claim, one_off, record
from tests.interleaving.setups import LONG_AGO, Setup, committed, every_pair

LEASE = "reports"
TTL = timedelta(seconds=10)
TERM = Term(LEASE, 1)
"""Alice's, and perhaps no longer the lease's."""
GRANT = Grant(term=TERM, acquisition=UUID(int=1))
HISTORY = {A: T - timedelta(hours=2), B: T - timedelta(minutes=5)}
"""When each of these jobs ran: one is old enough to be pruned, the other young enough to be counted."""


def _request(holder: str, acquisition: UUID) -> LeaseRequest:
    return LeaseRequest(name=LEASE, holder=holder, acquisition=acquisition, ttl=TTL)


def _operation(name: str, statement: Callable[[Session], Awaitable[Any]], **fields: Any) -> Operation:
    return Operation(name, (statement,), **{"jobs": (), "leases": (LEASE,), **fields})


# Holders


def acquire() -> Operation:
    """Whoever owns the session tries, and never waits."""

    async def statement(session: Session) -> Any:
        return await session.store.acquire_lease(_request(session.worker, UUID(bytes=session.worker[:1].encode() * 16)))

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
    """A leader's own transaction: its write, and the guard without which it is rolled back."""

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


# Scenes


async def with_history(session: Session) -> None:
    """Something to prune, something to count, and a worker who stopped."""
    for job_id, when in HISTORY.items():
        async with committed(session, when):
            await session.store.enqueue_jobs([one_off(job_id, run_at=when)])
            (taken,) = (await claim(worker="alice").statements[0](session)).claims
            await session.store.complete_jobs("alice", [Completion(hold=taken.hold)])
    async with committed(session, LONG_AGO):
        await session.store.register_worker(record("zoe"))
        await session.store.stop_worker("zoe")


def leased(until: timedelta) -> Callable[[Session], Awaitable[None]]:
    """Alice's lease, which ends so long after T."""

    async def prepare(session: Session) -> None:
        await with_history(session)
        async with committed(session, T + until - TTL):
            await session.store.acquire_lease(_request("alice", GRANT.acquisition))

    return prepare


HOLDERS = [acquire(), beat(), resign(), release_lease(), lead()]

LEASE_SETUPS = [
    Setup("no lease", with_history, every_pair(acquire(), beat(), lead())),
    Setup(
        "lease ended",
        leased(-LATER),
        [*every_pair(*HOLDERS), *product([acquire(), resign()], [verb() for verb in LED.values()])],
    ),
    Setup("lease ends in between", leased(LATER / 2), [*product(HOLDERS, [acquire()]), (acquire(), beat())]),
]
