"""The setups: which rows are in the tables, and which pairs of operations run on them.

A setup is created once, by the store's own verbs. Its rows are copied back before each run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import combinations_with_replacement, product

from reltask.model.job import Hold, NewJob
from tests.interleaving.driver import Driver, Session
from tests.interleaving.operations import (
    LOCK,
    OTHER,
    A,
    B,
    C,
    Operation,
    T,
    cancel,
    chunk,
    claim,
    complete,
    declare,
    discard,
    enqueue,
    fail,
    heartbeat,
    one_off,
    pause,
    progress,
    reclaim,
    record,
    recurring,
    register,
    release,
    resume,
    retry,
    run_now,
    stop,
    transaction,
)

Pair = tuple[Operation, Operation]

LONG_AGO = T - timedelta(minutes=5)
"""A claim made at this time has expired."""
RECENTLY = T - timedelta(seconds=30)
KEYED = one_off(key="k")
RIVAL = one_off(OTHER, key="k")
ROWS = [
    recurring(job_id, key=job_id.hex, run_at=T - timedelta(minutes=10 - age)) for age, job_id in enumerate((A, B, C))
]
"""Three rows of one lane, due one after the other."""


@dataclass(frozen=True)
class Setup:
    """A state of the tables, and the pairs of operations that run on it."""

    name: str
    prepare: Callable[[Session], Awaitable[None]]
    pairs: list[Pair]

    async def save(self, driver: Driver) -> None:
        """Create the rows, and keep a copy."""
        await driver.clear()
        async with committed(driver.first, LONG_AGO) as session:
            await session.store.register_worker(record("alice"))
        await self.prepare(driver.first)
        await driver.save(self.name)


@asynccontextmanager
async def committed(session: Session, now: datetime) -> AsyncIterator[Session]:
    """A transaction at that time, committed at the end of the block."""
    session.now = now
    await session.begin()
    yield session
    await session.commit()


async def _insert(session: Session, *jobs: NewJob) -> None:
    async with committed(session, LONG_AGO):
        await session.store.enqueue_jobs(jobs)


async def _claim(session: Session, now: datetime, limit: int = 1) -> None:
    async with committed(session, now):
        await claim(limit, worker="alice").statements[0](session)


def ready(*jobs: NewJob) -> Callable[[Session], Awaitable[None]]:
    async def prepare(session: Session) -> None:
        await _insert(session, *jobs)

    return prepare


def held(*jobs: NewJob, since: datetime) -> Callable[[Session], Awaitable[None]]:
    async def prepare(session: Session) -> None:
        await _insert(session, *jobs)
        await _claim(session, since, len(jobs))

    return prepare


async def paused(session: Session) -> None:
    await _insert(session, recurring())
    async with committed(session, LONG_AGO):
        await session.store.pause_job(A)


async def dead(session: Session) -> None:
    await _insert(session, recurring(max_attempts=1))
    await _claim(session, LONG_AGO)
    async with committed(session, LONG_AGO):
        await fail().statements[0](session)


async def taken_again(session: Session) -> None:
    """Alice lost her first claim and has claimed the job again: same owner, another fence."""
    await _insert(session, recurring())
    await _claim(session, LONG_AGO - LOCK)
    async with committed(session, LONG_AGO + timedelta(seconds=1)):
        await session.store.reclaim_jobs()
    await _claim(session, LONG_AGO + timedelta(seconds=1))


def every_pair(*operations: Operation) -> list[Pair]:
    """Each operation with each other, and with itself."""
    return list(combinations_with_replacement(operations, 2))


REDECLARED = recurring(declaration="v2", schedule='{"every":"5m"}', run_at=T + timedelta(hours=1))
SECOND = Hold(A, 2)
BOTH, REVERSED = (Hold(A, 1), Hold(B, 1)), (Hold(B, 1), Hold(A, 1))
OVERLAPPING = (Hold(C, 1), Hold(B, 1))
STALE = [
    heartbeat(),
    complete(again=True),
    complete(again=False),
    fail(),
    release(),
    progress(),
    transaction(again=True),
    chunk(),
]
CURRENT = [heartbeat(SECOND), complete(SECOND, again=True), release(SECOND), reclaim()]


def _held_by_alice(*, again: bool) -> list[Operation]:
    return [
        heartbeat(),
        complete(again=again),
        fail(),
        release(),
        reclaim(),
        transaction(again=again),
        chunk(),
        progress(),
        claim(),
        pause,
        run_now,
        discard,
        cancel,
    ]


def _batches() -> list[Pair]:
    """The same rows in opposite orders, and batches that share one row."""
    rows, verbs = (A, B, C), [heartbeat, fail, release]
    first = [verb(*BOTH) for verb in verbs] + [complete(*BOTH, again=again) for again in (True, False)]
    second = [verb(*given) for given in (REVERSED, OVERLAPPING) for verb in verbs]
    second += [complete(*given, again=again) for given in (REVERSED, OVERLAPPING) for again in (True, False)]
    return list(product(first, [*second, reclaim(rows), claim(2, rows)]))


SAME_ID = enqueue(KEYED, name="enqueue the same id")
SAME_KEY = enqueue(RIVAL, name="enqueue the same key")

SETUPS = [
    Setup(
        "ready", ready(recurring()), every_pair(claim(), declare(REDECLARED), pause, resume, run_now, discard, cancel)
    ),
    Setup(
        "ready one-off",
        ready(KEYED),
        [
            *product([claim(), run_now, pause, discard, cancel], [SAME_ID, SAME_KEY]),
            *product([cancel], [claim(), run_now, pause, discard, cancel]),
        ],
    ),
    Setup("paused", paused, every_pair(claim(), declare(REDECLARED), pause, resume, run_now, discard, cancel)),
    Setup("dead", dead, every_pair(claim(), declare(REDECLARED), retry, pause, run_now, discard, cancel)),
    Setup(
        "held one-off",
        held(KEYED, since=RECENTLY),
        # new beside the setup "expired": what removes the row or brings it back
        [
            *product([complete(again=False), transaction(again=False)], _held_by_alice(again=False)),
            *product(_held_by_alice(again=False), [SAME_ID, SAME_KEY]),
        ],
    ),
    Setup(
        "expired",
        held(recurring(), since=LONG_AGO),
        [
            *every_pair(*_held_by_alice(again=True)),
            *product(_held_by_alice(again=True), [declare(REDECLARED)]),
        ],
    ),
    Setup(
        "expired at its last attempt",
        held(one_off(max_attempts=1), since=LONG_AGO),
        every_pair(heartbeat(), complete(again=False), fail(), reclaim(), retry, discard, claim(), cancel),
    ),
    Setup("taken again", taken_again, [*product(STALE, CURRENT)]),
    Setup("absent", ready(), every_pair(SAME_ID, SAME_KEY, claim(), discard, pause)),
    Setup(
        "workers",
        held(recurring(), since=LONG_AGO),
        every_pair(heartbeat(), claim(worker="alice"), register("alice"), stop("alice"), register("dora")),
    ),
    Setup(
        "two rows ready",
        ready(*ROWS[:2]),
        [
            (claim(1, (A, B)), claim(1, (A, B))),
            (claim(2, (A, B)), claim(2, (A, B))),
            (claim(1, (A, B)), claim(2, (A, B))),
        ],
    ),
    Setup(
        "three rows expired",
        held(*ROWS, since=LONG_AGO),
        _batches(),
    ),
]
