"""The steps of a case: transactions that stay open, statements that wait, and expectations."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

from tests.interleaving.checks import broken
from tests.interleaving.driver import Driver, Row, Session, Violation, Waiting
from tests.interleaving.explore import Suite
from tests.interleaving.operations import LATER, Operation, T, comparable
from tests.interleaving.setups import Setup

Case = Callable[[Driver], Awaitable[None]]


def expect(rule: str, found: object, expected: object) -> None:
    """Compare, and name the rule that failed. pytest explains asserts in test modules only."""
    if found != expected:
        raise Violation(f"{rule}: {found!r}, expected {expected!r}")


async def run_case(suite: Suite, setup: Setup, case: Case) -> None:
    """Run one case from its setup.

    No transaction stays open, and the tables are consistent at the end.
    """
    driver = suite.drivers[0]
    await suite.prepare(setup)
    await driver.restore(setup.name)
    driver.first.now, driver.second.now, driver.gate.now = T, T + LATER, T
    try:
        await case(driver)
    except BaseException:
        for session in (driver.first, driver.second, driver.gate):
            await session.rollback()
        raise
    expect("sound tables", list(broken(await driver.snapshot())), [])


@asynccontextmanager
async def opened(session: Session) -> AsyncIterator[Session]:
    """A transaction: committed when the block ends, rolled back if it raises."""
    await session.begin()
    try:
        yield session
    except BaseException:
        await session.rollback()
        raise
    await session.commit()


async def start(operation: Operation, session: Session) -> asyncio.Task[Any]:
    """Send the operation's last statement, and return when it is done, waits for a lock, or is stopped."""
    task = asyncio.create_task(sent(operation, session))
    while not task.done() and await session.waits_for() is Waiting.NOTHING:
        pass
    return task


async def sent(operation: Operation, session: Session) -> Any:
    return comparable(await operation.statements[-1](session))


async def do(operation: Operation, session: Session) -> Any:
    """Send the operation's last statement, which must not wait; return its answer."""
    task = await start(operation, session)
    if not task.done():
        await _cancelled(task)
        raise Violation(f"{operation} waits, and must not")
    return await task


async def _cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.wait([task])


async def committed(operation: Operation, session: Session) -> Any:
    """Run one operation, which must not wait, in its own transaction."""
    async with opened(session):
        return await do(operation, session)


@asynccontextmanager
async def begun(operation: Operation, session: Session) -> AsyncIterator[asyncio.Task[Any]]:
    """An operation whose statement has been sent and may wait.

    It finishes and commits after the block.
    """
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
    """An operation stopped between snapshot and first lock. It goes on and commits after the block."""
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
