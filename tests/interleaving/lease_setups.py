"""The setups of leases.

Two operations are one second apart. A lease that ends in between is held for the first and free for
the second.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from itertools import product

from reltask.model.job import Completion
from tests.interleaving.driver import Session
from tests.interleaving.lease_operations import (
    GRANT,
    LED,
    TTL,
    acquire,
    beat,
    lead,
    lease_request,
    release_lease,
    resign,
)
from tests.interleaving.operations import LATER, A, B, T, claim, one_off, record
from tests.interleaving.setups import LONG_AGO, Setup, committed, every_pair

HISTORY = {A: T - timedelta(hours=2), B: T - timedelta(minutes=5)}
"""When each of these jobs ran: one is old enough to be pruned, the other young enough to be counted."""


async def with_history(session: Session) -> None:
    """A run to prune, a run to count, and a stopped worker."""
    for job_id, when in HISTORY.items():
        async with committed(session, when):
            await session.store.enqueue_jobs([one_off(job_id, run_at=when)])
            (taken,) = (await claim(worker="alice").statements[0](session)).claims
            await session.store.complete_jobs("alice", [Completion(hold=taken.hold)])
    async with committed(session, LONG_AGO):
        await session.store.register_worker(record("zoe"))
        await session.store.stop_worker("zoe")


def leased(until: timedelta) -> Callable[[Session], Awaitable[None]]:
    """Alice's lease, which ends `until` after T."""

    async def prepare(session: Session) -> None:
        await with_history(session)
        async with committed(session, T + until - TTL):
            await session.store.acquire_lease(lease_request("alice", GRANT.acquisition))

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
