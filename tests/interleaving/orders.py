"""All orders of two step sequences, and how one order is carried out.

    plain      BEGIN · statement · END                    each with each: 20 orders
    snapshot   BEGIN + snapshot · locks · END             the statement is stopped in the middle: 14 more

An order is a tuple of 0 and 1: which session takes the next step. A statement that waits for the
other transaction cannot take its next step. That step is owed, and taken when the other transaction
has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any

from tests.interleaving.driver import Driver, Session, Snapshot, Violation, Waiting
from tests.interleaving.operations import LATER, Operation, T, comparable

Order = tuple[int, ...]
Step = Callable[[], Awaitable[None]]


def orders(first: int, second: int) -> Iterator[Order]:
    """Every way to merge `first` steps of one session with `second` steps of the other."""
    for places in combinations(range(first + second), first):
        yield tuple(0 if place in places else 1 for place in range(first + second))


OVERLAPPING: list[Order] = [(0, 0, 1, 1, 0, 1), (0, 0, 1, 1, 1, 0), (1, 1, 0, 0, 0, 1), (1, 1, 0, 0, 1, 0)]
"""Both statements come before the first end. Enough where only the overlap matters."""
FIRST_LEADS, SECOND_LEADS = OVERLAPPING[:2], OVERLAPPING[2:]
ONE_AFTER_THE_OTHER: list[Order] = [(0, 0, 0, 1, 1, 1), (1, 1, 1, 0, 0, 0)]
OVERTAKEN: list[Order] = [(0, 1, 1, 1, 0, 0), (1, 0, 0, 0, 1, 1)]
"""Of (snapshot, locks, end): the other transaction runs between a snapshot and its locks."""


def split_orders() -> Iterator[Order]:
    """Orders of (snapshot, locks, end) in which something happens between a snapshot and its locks."""
    return (order for order in orders(3, 3) if not (_adjacent(order, 0) and _adjacent(order, 1)))


def _adjacent(order: Order, who: int) -> bool:
    start = order.index(who)
    return order[start + 1] == who


@dataclass(frozen=True)
class Plan:
    """What one session does."""

    operation: Operation
    commits: bool = True
    pauses: bool = False
    """Stops between the snapshot and the locks of its last statement."""

    @property
    def steps(self) -> int:
        return 3 if self.pauses else 2 + len(self.operation.statements)


@dataclass
class Result:
    """Both answers, the tables afterwards, and the steps that led there."""

    answers: list[Any]
    after: Snapshot
    opposed: list[bool]
    """Whether each statement met the other's open transaction, at its snapshot or at its locks."""
    overlapped: bool = False
    log: list[str] = field(default_factory=list)


class Runner:
    """Carries out one session's plan, step by step."""

    def __init__(self, index: int, session: Session, plan: Plan, log: list[str]) -> None:
        session.now = T + index * LATER
        self.answer: Any = None
        self.ended = False
        self.started = False
        self.waits = False
        self.opposed = False
        """Whether its last statement ran while the other's transaction was open, and may have skipped rows."""
        self.owed = 0
        self.unopposed: Callable[[], bool] = lambda: False
        """Whether no other transaction is open that this one could wait for."""
        self._name = f"{plan.operation}{'' if index == 0 else ' (2)'}"
        self._session = session
        self._plan = plan
        self._log = log
        self._steps: deque[Step] = deque(self._split() if plan.pauses else self._plain())
        self._task: asyncio.Task[Any] | None = None

    def _plain(self) -> Iterator[Step]:
        yield self._begin
        for statement in self._plan.operation.statements:
            yield partial(self._run, statement)
        yield self._end

    def _split(self) -> Iterator[Step]:
        yield self._begin_and_stop
        yield self._go_on
        yield self._end

    def is_out_of_the_way(self) -> bool:
        """Whether it holds no lock that another statement could wait for."""
        return self.ended or not self.started

    async def advance(self) -> None:
        """Take the next step, or count it as owed."""
        if self.waits:
            self.owed += 1
            return
        await self._steps.popleft()()

    async def catch_up(self) -> None:
        """The other transaction has ended: finish the statement and take the steps that are owed."""
        if self.waits:
            self.waits = False
            await self._finish()
        while self.owed:
            self.owed -= 1
            await self._steps.popleft()()

    async def _begin(self) -> None:
        self._log.append(f"{self._name}: begin")
        await self._session.begin()

    async def _run(self, statement: Callable[[Session], Awaitable[Any]]) -> None:
        self.started = True
        self._task = asyncio.ensure_future(statement(self._session))
        await self._settle()

    async def _begin_and_stop(self) -> None:
        """Run everything up to the snapshot of the last statement."""
        *before, last = self._plan.operation.statements
        await self._begin()
        for statement in before:
            await statement(self._session)
        await self._session.pause_next()
        self.started = True
        self._task = asyncio.ensure_future(last(self._session))
        while not await _done_soon(self._task):
            if await self._session.waits_for() is Waiting.PAUSE:
                break
        else:
            raise LookupError(f"{self._name} did not stop after its snapshot, and said {await self._task}")
        self._log.append(f"{self._name}: has its snapshot")

    async def _go_on(self) -> None:
        await self._session.go_on()
        await self._settle()

    async def _settle(self) -> None:
        """Wait until the statement is done or waits for a lock, as the database reports it."""
        assert self._task is not None
        self.opposed = not self.unopposed()
        if not self.opposed:
            await asyncio.wait([self._task])
        while not await _done_soon(self._task):
            waiting = await self._session.waits_for()
            if waiting is Waiting.LOCK and not self._task.done():
                self._wait()
                return
        await self._finish()

    def _wait(self) -> None:
        self.waits = True
        self._log.append(f"{self._name}: waits")
        if self._plan.operation.never_waits and self._session.skips:
            raise Violation(f"{self._name} waits, and must never")

    async def _finish(self) -> None:
        assert self._task is not None
        self.answer = comparable(await self._task)
        self._log.append(f"{self._name}: says {self.answer}")

    async def _end(self) -> None:
        self.ended = True
        refused = self._plan.operation.fenced_end and not self.answer
        if self._plan.commits and not refused:
            self._log.append(f"{self._name}: commit")
            await self._session.commit()
        else:
            self._log.append(f"{self._name}: rollback")
            await self._session.rollback()

    async def abort(self) -> None:
        """End the open transaction after a violation."""
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)
        await self._session.rollback()


async def _done_soon(task: asyncio.Task[Any]) -> bool:
    """Whether it is done. The pause of 1 ms keeps the load on the database low."""
    done, _ = await asyncio.wait([task], timeout=0.001)
    return bool(done)


async def interleave(driver: Driver, setup: str, plans: tuple[Plan, Plan], order: Order) -> Result:
    """Carry out one order, starting from the setup's rows."""
    await driver.restore(setup)
    log: list[str] = []
    sessions = (driver.first, driver.second)
    runners = [Runner(index, sessions[index], plans[index], log) for index in (0, 1)]
    for runner, other in zip(runners, reversed(runners), strict=True):
        runner.unopposed = other.is_out_of_the_way
    overlapped = False
    try:
        for who in order:
            runner, other = runners[who], runners[1 - who]
            await runner.advance()
            overlapped = overlapped or (runner.started and other.started and not runner.ended and not other.ended)
            if runner.ended:
                await other.catch_up()
            if other.ended:
                await runner.catch_up()
    except Exception as error:
        await _abort(driver, runners)
        error.add_note("\n".join(log))
        raise
    opposed = [runner.opposed or (plan.pauses and overlapped) for runner, plan in zip(runners, plans, strict=True)]
    return Result([runner.answer for runner in runners], await driver.snapshot(), opposed, overlapped, log)


async def _abort(driver: Driver, runners: list[Runner]) -> None:
    """End both. The one that waits goes last: the other's rollback lets it finish."""
    for session in (driver.first, driver.second):
        await session.go_on()
    for runner in sorted(runners, key=lambda runner: runner.waits):
        await runner.abort()
