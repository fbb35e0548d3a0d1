"""Batches of the same rows in opposite orders must not deadlock.

One statement takes its row locks too quickly to be stopped between two of them. So a third session,
the gate, holds the row that both batches take second:

    gate     holds C
    first    [A, C, B]   takes A, waits for C
    second   [B, C, A]   takes B, waits for C     the gate rolls back: first wants B, second wants C or A: a deadlock

Statements that sort their rows cannot deadlock: the second waits for A, which the first holds. Nor
can statements that skip locked rows: they leave C to a later call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from reltask.model.job import Hold, NewJob
from tests.interleaving.driver import Driver, Session, Waiting
from tests.interleaving.operations import A, B, C, Operation, enqueue, one_off
from tests.interleaving.steps import Case, do, expect, opened, rows, sent


async def both(driver: Driver, operations: Sequence[Operation], let_go: Callable[[], Awaitable[None]]) -> list[Any]:
    """Start two operations that wait, let the gate go, and commit each as soon as it is done."""

    async def run(operation: Operation, session: Session) -> Any:
        async with opened(session):
            return await sent(operation, session)

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
"""Both take C second.

Rows taken in the given order mean a deadlock: A or B is held while C is awaited.
"""


def opposite_settlements(first: Callable[..., Operation], second: Callable[..., Operation]) -> Case:
    """Two settlements of the same rows in opposite orders: each row is settled once, or skipped while it is held."""

    async def case(driver: Driver) -> None:
        await driver.gate.begin()
        await driver.gate.hold_rows([C], [])
        answers = await both(driver, [first(*FORWARDS), second(*BACKWARDS)], driver.gate.rollback)
        settled = sorted(one.hold.job_id for answer in answers for one in answer)
        expect("each row once", settled in ([A, B], [A, B, C]), True)

    return case


async def opposite_enqueues(driver: Driver) -> None:
    """Two batches with the same ids in opposite orders: each job is inserted once."""
    jobs = {name: one_off(UUID(int=number)) for number, name in enumerate("abc", start=1)}
    await _opposite_batches(driver, [jobs[name] for name in "acb"], [jobs[name] for name in "bca"], jobs["c"])


async def opposite_keys(driver: Driver) -> None:
    """The same with keys whose ids sort the other way round, as when two workers declare their tasks."""
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
