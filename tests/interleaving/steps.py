"""How a race is told step by step: transactions that stay open, statements that wait, and what is expected of them."""

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
    """An assert that explains itself; pytest explains those of test modules only."""
    if found != expected:
        raise Violation(f"{rule}: {found!r}, expected {expected!r}")


async def run_case(suite: Suite, setup: Setup, case: Case) -> None:
    """The story from its scene. The tables are sound at its end, and nothing is left open whatever happened."""
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
    task = asyncio.create_task(sent(operation, session))
    while not task.done() and await session.waits_for() is Waiting.NOTHING:
        pass
    return task


async def sent(operation: Operation, session: Session) -> Any:
    return comparable(await operation.statements[-1](session))


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
