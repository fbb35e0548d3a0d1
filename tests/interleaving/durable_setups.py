"""The setups of durable functions, as in `setups.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from itertools import product

from msgspec.structs import replace

from reltask.model.durable import StepRecord
from reltask.model.job import Failure, Hold
from tests.interleaving.driver import Session
from tests.interleaving.durable_operations import (
    ANSWERED,
    CHILDREN,
    RUN_ALL,
    WAIT,
    cancel_children,
    die,
    end,
    fold,
    forget,
    record,
    send,
    suspend,
)
from tests.interleaving.operations import (
    HOLD,
    A,
    B,
    C,
    Operation,
    cancel,
    claim,
    complete,
    discard,
    fail,
    heartbeat,
    pause,
    reclaim,
    release,
    run_now,
)
from tests.interleaving.setups import KEYED, LONG_AGO, RECENTLY, Setup, committed, every_pair

Prepare = Callable[[Session], Awaitable[None]]


async def _do(session: Session, now: datetime, *operations: Operation) -> None:
    async with committed(session, now):
        for operation in operations:
            await operation.statements[-1](session)


async def _claimed(session: Session, since: datetime) -> None:
    async with committed(session, since):
        await session.store.enqueue_jobs([KEYED])
    await _do(session, since, claim(worker="alice"))


def running(*steps: StepRecord, since: datetime, signalled: bool = False) -> Prepare:
    """Alice runs A, which has recorded these steps; the signal has come, and its mark is not folded."""

    async def prepare(session: Session) -> None:
        await _claimed(session, since)
        if steps:
            await _do(session, since, record(*steps))
        if signalled:
            await _do(session, since, send())

    return prepare


def suspended(*, signalled: bool = False, folded: bool = False) -> Prepare:
    """A waits for the signal."""

    async def prepare(session: Session) -> None:
        await _claimed(session, LONG_AGO)
        await _do(session, LONG_AGO, record(WAIT), suspend())
        if signalled:
            await _do(session, LONG_AGO, send())
        if folded:
            await _do(session, LONG_AGO, fold())

    return prepare


def waiting_again(delay: timedelta) -> Prepare:
    """A run that waits for the signal has failed: it backs off, and is not suspended."""

    async def prepare(session: Session) -> None:
        await _claimed(session, LONG_AGO)
        await _do(session, LONG_AGO, record(WAIT, progress=False))
        async with committed(session, LONG_AGO):
            await session.store.fail_jobs("alice", [Failure(hold=HOLD, error="boom", delay=delay)])

    return prepare


def with_children(
    *, since: datetime, ended: bool = False, asleep: bool = True, max_attempts: int | None = None
) -> Prepare:
    """A waits for B and C, which alice has claimed, and is suspended if `asleep`; B has ended, if `ended`."""
    children = [replace(child, max_attempts=max_attempts) for child in CHILDREN]

    async def prepare(session: Session) -> None:
        await _claimed(session, since)
        async with committed(session, since):
            await session.store.enqueue_jobs(children)
            await record(RUN_ALL).statements[0](session)
        await _do(session, since, *([suspend()] if asleep else []), claim(2, worker="alice"))
        if ended:
            await _do(session, since, end(B))

    return prepare


async def orphaned(session: Session) -> None:
    """A was discarded; its child B is unclaimed, and C runs."""
    await with_children(since=LONG_AGO)(session)
    async with committed(session, LONG_AGO):
        await session.store.discard_job(A)
        await release(Hold(B, 1)).statements[0](session)


RUNNING = [
    record(),
    record(ANSWERED).renamed("answer"),
    suspend(),
    send(),
    fold(),
    heartbeat(),
    complete(again=False),
    fail(),
    reclaim(),
]
SUSPENDED = [claim(), fold(), send(), forget(), discard, cancel, pause, run_now]
FAMILY = [end(B), end(C), die(B), fold(), reclaim((B, C)), cancel_children(B, C), discard, cancel]

DURABLE_SETUPS = [
    Setup("running", running(WAIT, since=RECENTLY), every_pair(cancel, *RUNNING[:5])),
    Setup(
        "running, signalled, expired",
        running(WAIT, since=LONG_AGO, signalled=True),
        [*product([record(), suspend(), fold()], RUNNING)],
    ),
    Setup("suspended", suspended(), every_pair(claim(), fold(), send(), forget(), discard, cancel)),
    Setup("suspended, signalled", suspended(signalled=True), every_pair(*SUSPENDED)),
    Setup("woken", suspended(signalled=True, folded=True), [*product([claim()], [*SUSPENDED])]),
    Setup("children run", with_children(since=LONG_AGO), every_pair(*FAMILY)),
    Setup("one child has ended", with_children(since=LONG_AGO, ended=True), [*product([fold(), end(C)], FAMILY)]),
    Setup("orphaned", orphaned, every_pair(cancel_children(B, C), claim(jobs=(B,)), end(C), fold())),
]
