"""Races that deserve a name, told step by step. Each is a function of the suite, so that mutants can be run on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from reltask.job import Hold, NewJob, Outcome
from tests.interleaving.checks import broken
from tests.interleaving.driver import Driver, Row, Session, Violation, Waiting
from tests.interleaving.explore import Suite
from tests.interleaving.operations import (
    HOLD,
    LATER,
    A,
    B,
    C,
    Operation,
    T,
    claim,
    complete,
    declare,
    enqueue,
    fail,
    heartbeat,
    one_off,
    reclaim,
    recurring,
    release,
    said,
)
from tests.interleaving.scenes import KEYED, LONG_AGO, REDECLARED, RIVAL, ROWS, Scene, held, ready

Story = Callable[[Driver], Awaitable[None]]

EXPIRED = Scene("directed: expired", held(recurring(), since=LONG_AGO), [])
READY = Scene("directed: ready", ready(recurring()), [])
LANE = Scene("directed: two in a lane", ready(*ROWS[:2]), [])
THREE = Scene("directed: three held", held(*ROWS, since=LONG_AGO), [])
EMPTY = Scene("directed: empty", ready(), [])


def expect(rule: str, found: object, expected: object) -> None:
    """An assert that explains itself; pytest explains those of test modules only."""
    if found != expected:
        raise Violation(f"{rule}: {found!r}, expected {expected!r}")


async def tell(suite: Suite, scene: Scene, story: Story) -> None:
    """The story from its scene. The tables are sound at its end, and nothing is left open whatever happened."""
    driver = suite.stages[0]
    await suite.prepare(scene)
    await driver.restore(scene.name)
    driver.first.now, driver.second.now, driver.gate.now = T, T + LATER, T
    try:
        await story(driver)
    except BaseException:
        for session in (driver.first, driver.second, driver.gate):
            await session.rollback()
        raise
    expect("sound tables", list(broken(await driver.snapshot())), [])


@asynccontextmanager
async def opened(session: Session) -> AsyncIterator[Session]:
    """A transaction, committed at the end of the block, or rolled back if that raises."""
    await session.begin()
    try:
        yield session
    except BaseException:
        await session.rollback()
        raise
    await session.commit()


async def start(operation: Operation, session: Session) -> asyncio.Task[Any]:
    """Send an operation's last statement in the open transaction, until it is done, waits or is stopped."""
    task = asyncio.create_task(_sent(operation, session))
    while not task.done() and await session.waits_for() is Waiting.NOTHING:
        pass
    return task


async def _sent(operation: Operation, session: Session) -> Any:
    return said(await operation.statements[-1](session))


async def do(operation: Operation, session: Session) -> Any:
    """The same for a statement that waits for nobody."""
    task = await start(operation, session)
    if not task.done():
        await _cancelled(task)
        raise Violation(f"{operation} waits, and must not")
    return await task


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def committed(operation: Operation, session: Session) -> Any:
    """The same in a transaction of its own."""
    async with opened(session):
        return await do(operation, session)


@asynccontextmanager
async def begun(operation: Operation, session: Session) -> AsyncIterator[asyncio.Task[Any]]:
    """An operation whose statement is under way; after the block nothing holds it back, and it is committed."""
    async with opened(session):
        task = await start(operation, session)
        try:
            yield task
        except BaseException:
            await _cancelled(task)
            raise
        await task


@asynccontextmanager
async def stopped(operation: Operation, session: Session) -> AsyncIterator[asyncio.Task[Any]]:
    """The same for one that has its snapshot and takes its locks after the block."""
    await session.pause_next()
    async with begun(operation, session) as task:
        try:
            yield task
        finally:
            await session.go_on()


async def rows(driver: Driver) -> dict[UUID, Row]:
    return {UUID(row["id"]): row for row in (await driver.snapshot()).jobs}


async def ledger(driver: Driver) -> list[tuple[UUID, int, str]]:
    return [(UUID(run["job_id"]), run["fence"], run["outcome"]) for run in (await driver.snapshot()).runs]


# 1


async def beat_meets_own_completion(driver: Driver) -> None:
    """A beat that meets its worker's own completion before the commit: suspect, still ours; then ended, not lost."""
    finishing, beating = driver.first, driver.second
    async with opened(finishing):
        await do(complete(again=True), finishing)
        async with opened(beating):
            renewed, _ = await do(heartbeat(), beating)
            expect("the row is missing from the beat's answer", renewed, [])
            holds = await beating.store.read_holds("alice", [HOLD])
            expect("the committed row is still ours", holds, {HOLD})
    async with opened(beating):
        expect("no longer ours", await beating.store.read_holds("alice", [HOLD]), set())
        outcomes = await beating.store.read_outcomes([HOLD])
        expect("the ledger knows how it ended", outcomes, {HOLD: Outcome.SUCCEEDED})


async def read_holds_knows_the_fence(driver: Driver) -> None:
    """A claim that was lost and taken again by the same worker is not the claim that was lost."""
    session = driver.first
    await committed(reclaim(), session)
    await committed(claim(worker="alice"), session)
    async with opened(session):
        given = [HOLD, Hold(A, 2)]
        expect("only the new fence", await session.store.read_holds("alice", given), {Hold(A, 2)})


# 2


async def reclaim_meets_a_renewal(driver: Driver) -> None:
    """A claim that looked expired in reclaim's snapshot and was renewed before its lock is left alone."""
    reclaiming, beating = driver.first, driver.second
    async with stopped(reclaim(), reclaiming) as answer:
        renewed, _ = await committed(heartbeat(), beating)
        expect("the beat renews", renewed, [HOLD])
    expect("reclaim takes nothing", await answer, [])
    expect("alice holds it", (await rows(driver))[A]["locked_by"], "alice")


async def beat_meets_a_reclaim(driver: Driver) -> None:
    """A claim that was ours in the beat's snapshot and was taken before its lock is not renewed."""
    beating, reclaiming = driver.first, driver.second
    async with stopped(heartbeat(), beating) as answer:
        expect("reclaim takes it", len(await committed(reclaim(), reclaiming)), 1)
    expect("nothing renewed", (await answer)[0], [])
    expect("nobody holds it", (await rows(driver))[A]["locked_by"], None)


# 3


async def two_claims_share_a_lane(driver: Driver) -> None:
    """Two claims of one row each get different rows, the head of the lane once."""
    async with opened(driver.first), opened(driver.second):
        (first,) = await do(claim(1), driver.first)
        (second,) = await do(claim(1), driver.second)
    expect("different rows", [first.job_id, second.job_id], [A, B])


async def a_claim_with_an_old_snapshot(driver: Driver) -> None:
    """A head that a rival took after the snapshot is passed over, and the next row is taken."""
    late, quick = driver.first, driver.second
    async with stopped(claim(1), late) as answer:
        (taken,) = await committed(claim(1), quick)
    expect("the rival has the head", taken.job_id, A)
    expect("the next one is left", [one.job_id for one in await answer], [B])


async def two_claims_of_everything(driver: Driver) -> None:
    """Of two claims of all rows the second gets none and does not wait."""
    async with opened(driver.first), opened(driver.second):
        expect("all", len(await do(claim(2), driver.first)), 2)
        expect("none", await do(claim(2), driver.second), [])


async def a_skipped_head_is_asked_for_again(driver: Driver) -> None:
    """A claim that passed over a due row says that it is worth asking again at once: the rival may roll back."""
    async with opened(driver.first), opened(driver.second):
        await do(claim(2), driver.first)
        answer = await claim(2).statements[0](driver.second)
        expect("due already", answer.next_due is not None and answer.next_due <= answer.now, True)


# 4


async def old_owner_waits_behind_a_reclaim(driver: Driver) -> None:
    """A late completion that waits for a reclaim's commit finds that it has lost."""
    for late in (complete(again=True), fail(), release()):
        await driver.restore(EXPIRED.name)
        await driver.first.begin()
        expect("reclaim takes it", len(await do(reclaim(), driver.first)), 1)
        async with begun(late, driver.second) as answer:
            expect(f"{late} waits", answer.done(), False)
            await driver.first.commit()
        expect(f"{late} changes nothing", await answer, [])
        expect("one ledger row", await ledger(driver), [(A, 1, "lost")])


# 5


async def a_completion_sent_twice(driver: Driver) -> None:
    """Sent again while the first sending is still open, or afterwards: one ledger row, and nothing for the second."""
    await driver.first.begin()
    expect("first", len(await do(complete(again=True), driver.first)), 1)
    async with begun(complete(again=True), driver.second) as answer:
        expect("the second waits", answer.done(), False)
        await driver.first.commit()
    expect("second", await answer, [])
    expect("third", await committed(complete(again=True), driver.second), [])
    expect("one ledger row", await ledger(driver), [(A, 1, "succeeded")])


# 6


def sent_twice(first: NewJob, second: NewJob, *, first_commits: bool) -> Story:
    """Two enqueues that exclude each other: one row, the second waits for the first, and nobody sees an error."""

    async def story(driver: Driver) -> None:
        await driver.first.begin()
        expect("first", await do(enqueue(first, name="first"), driver.first), {first.id})
        async with begun(enqueue(second, name="second"), driver.second) as answer:
            expect("the second waits", answer.done(), False)
            await (driver.first.commit() if first_commits else driver.first.rollback())
        expect("second", await answer, set() if first_commits else {second.id})
        expect("one row", list(await rows(driver)), [first.id if first_commits else second.id])

    return story


async def a_resend_meets_the_end_of_its_job(driver: Driver) -> None:
    """An enqueue sent again while its job's completion is about to commit brings nothing back."""
    await driver.first.begin()
    await do(complete(again=False), driver.first)
    async with begun(enqueue(KEYED, name="resend"), driver.second) as answer:
        await driver.first.commit()
    expect("nothing inserted", await answer, set())
    expect("gone for good", await rows(driver), {})


async def a_resend_with_an_old_snapshot(driver: Driver) -> None:
    """The same where the completion commits between the resend's snapshot and its insert."""
    async with stopped(enqueue(KEYED, name="resend"), driver.second) as answer:
        await committed(complete(again=False), driver.first)
    expect("nothing inserted", await answer, set())
    expect("gone for good", await rows(driver), {})


# 7


async def a_declaration_meets_a_claim(driver: Driver) -> None:
    """A declaration that waits for a claim rewrites the definition and leaves the claimed slot where it was."""
    before = (await rows(driver))[A]
    await driver.first.begin()
    await do(claim(), driver.first)
    async with begun(declare(REDECLARED), driver.second) as answer:
        expect("the declaration waits", answer.done(), False)
        await driver.first.commit()
    expect("declared", await answer, True)
    after = (await rows(driver))[A]
    expect("the slot stays", (after["next_run_time"], after["due_at"]), (before["next_run_time"], before["due_at"]))
    expect("a new definition", after["declaration"], "v2")


async def a_claim_meets_a_declaration(driver: Driver) -> None:
    """A claim does not wait for a declaration: it passes over the row, and the slot may still move."""
    async with opened(driver.first):
        expect("declared", await do(declare(REDECLARED), driver.first), True)
        expect("nothing to claim", await committed(claim(), driver.second), [])


# 8. Batches in opposite orders: a third party holds the row that both want second


async def both(driver: Driver, operations: Sequence[Operation], let_go: Callable[[], Awaitable[None]]) -> list[Any]:
    """Two operations wait, a third party lets go, and each commits as soon as it is done."""

    async def run(operation: Operation, session: Session) -> Any:
        async with opened(session):
            return await _sent(operation, session)

    tasks = []
    for operation, session in zip(operations, (driver.first, driver.second), strict=True):
        task = asyncio.create_task(run(operation, session))
        while not task.done() and await session.waits_for() is Waiting.NOTHING:
            pass
        tasks.append(task)
    await let_go()
    await asyncio.wait(tasks)
    return [await task for task in tasks]


FORWARDS, BACKWARDS = (
    [Hold(A, 1), Hold(C, 1), Hold(B, 1)],
    [Hold(B, 1), Hold(C, 1), Hold(A, 1)],
)
"""Both want C second. Whoever takes rows in the order given holds A, or B, while it waits for C: a deadlock."""


def opposite_settlements(first: Callable[..., Operation], second: Callable[..., Operation]) -> Story:
    """Two settlements of the same rows in opposite orders: one settles all of them, the other none."""

    async def story(driver: Driver) -> None:
        await driver.gate.begin()
        await driver.gate.hold_rows([C], [])
        answers = await both(driver, [first(*FORWARDS), second(*BACKWARDS)], driver.gate.rollback)
        expect("one has all, the other none", sorted(map(len, answers)), [0, 3])

    return story


async def opposite_enqueues(driver: Driver) -> None:
    """Two batches with the same ids in opposite orders: each job is inserted once."""
    jobs = {name: one_off(UUID(int=number)) for number, name in enumerate("abc", start=1)}
    await _opposite_batches(driver, [jobs[name] for name in "acb"], [jobs[name] for name in "bca"], jobs["c"])


async def opposite_keys(driver: Driver) -> None:
    """The same with keys under ids that sort the other way round, as two starting workers declare their tasks."""
    forwards = [one_off(UUID(int=number), key=key) for number, key in enumerate("acb", start=1)]
    backwards = [one_off(UUID(int=number), key=key) for number, key in enumerate("bca", start=11)]
    await _opposite_batches(driver, forwards, backwards, one_off(UUID(int=21), key="c"))


async def _opposite_batches(driver: Driver, first: list[NewJob], second: list[NewJob], held_back: NewJob) -> None:
    await driver.gate.begin()
    await do(enqueue(held_back, name="gate"), driver.gate)
    batches = [enqueue(*batch, name="batch") for batch in (first, second)]
    answers = await both(driver, batches, driver.gate.rollback)
    expect("each once", sorted(map(len, answers)), [0, 3])
    expect("three rows", len(await rows(driver)), 3)


def _complete(*holds: Hold) -> Operation:
    return complete(*holds, again=True)


ONE_OFF = Scene("directed: held one-off", held(KEYED, since=LONG_AGO), [])
SETTLEMENTS = {"complete": _complete, "fail": fail, "release": release}

STORIES: dict[str, tuple[Scene, Story]] = {
    "beat meets own completion": (EXPIRED, beat_meets_own_completion),
    "read_holds knows the fence": (EXPIRED, read_holds_knows_the_fence),
    "reclaim meets a renewal": (EXPIRED, reclaim_meets_a_renewal),
    "beat meets a reclaim": (EXPIRED, beat_meets_a_reclaim),
    "two claims share a lane": (LANE, two_claims_share_a_lane),
    "a claim with an old snapshot": (LANE, a_claim_with_an_old_snapshot),
    "two claims of everything": (LANE, two_claims_of_everything),
    "a skipped head is asked for again": (LANE, a_skipped_head_is_asked_for_again),
    "old owner waits behind a reclaim": (EXPIRED, old_owner_waits_behind_a_reclaim),
    "a completion sent twice": (EXPIRED, a_completion_sent_twice),
    "an id sent twice": (EMPTY, sent_twice(KEYED, KEYED, first_commits=True)),
    "an id sent twice, first rolled back": (EMPTY, sent_twice(KEYED, KEYED, first_commits=False)),
    "a key sent twice": (EMPTY, sent_twice(KEYED, RIVAL, first_commits=True)),
    "a key sent twice, first rolled back": (EMPTY, sent_twice(KEYED, RIVAL, first_commits=False)),
    "a resend meets the end of its job": (ONE_OFF, a_resend_meets_the_end_of_its_job),
    "a resend with an old snapshot": (ONE_OFF, a_resend_with_an_old_snapshot),
    "a declaration meets a claim": (READY, a_declaration_meets_a_claim),
    "a claim meets a declaration": (READY, a_claim_meets_a_declaration),
    **{
        f"opposite batches: {one}, {other}": (THREE, opposite_settlements(SETTLEMENTS[one], SETTLEMENTS[other]))
        for one in SETTLEMENTS
        for other in SETTLEMENTS
    },
    "opposite batches: enqueue, same ids": (EMPTY, opposite_enqueues),
    "opposite batches: enqueue, same keys": (EMPTY, opposite_keys),
}
