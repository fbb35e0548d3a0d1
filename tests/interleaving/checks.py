"""What must hold after every interleaving.

A serial order must explain the result: both answers, and every column of every row, are those of
one operation run after the other. There are two exceptions. A verb that never waits (claim,
heartbeat, reclaim, settlements) may have skipped rows that the other transaction held or had changed
after its snapshot; then it did nothing to them. And a transaction that was rolled back leaves the other as if
it had run alone.

Operations that did not overlap have one order only: the one in which they ran.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any
from uuid import UUID

from reltask.model.job import TRANSITIONS, Cancellation, Outcome, Verb
from tests.interleaving.driver import Driver, Row, Snapshot, Violation
from tests.interleaving.operations import LATER, Operation, T, comparable, won
from tests.interleaving.orders import Plan, Result
from tests.interleaving.setups import Pair

Explained = tuple[Any, Any, Snapshot]
"""The first answer, the second answer, and the rows."""
Held = tuple[list[UUID], list[str], list[str]]
"""Rows of jobs, of workers and of leases."""
ENDINGS = {outcome.value for outcome in Outcome if outcome.ends_slot}


async def alone(driver: Driver, index: int, operation: Operation) -> Any:
    """Run one operation with no other transaction open; return its answer."""
    session = (driver.first, driver.second)[index]
    session.now = T + index * LATER
    await session.begin()
    for statement in operation.statements:
        answer = comparable(await statement(session))
    if operation.fenced_end and not answer:
        await session.rollback()
    else:
        await session.commit()
    return answer


async def skipping(driver: Driver, index: int, operation: Operation, held: Held) -> Any:
    """Run the operation while a third session holds these rows."""
    await driver.gate.begin()
    await driver.gate.hold_rows(*held)
    answer = await alone(driver, index, operation)
    await driver.gate.rollback()
    return answer


def holdable(other: Operation) -> Iterator[Held]:
    """What the other transaction may have held: all of its rows, or some of them."""
    rows = [*other.jobs, *other.workers, *other.leases]
    for count in range(len(rows), 0, -1):
        for chosen in combinations(rows, count):
            workers, leases = ([row for row in table if row in chosen] for table in (other.workers, other.leases))
            yield [row for row in other.jobs if row in chosen], workers, leases


@dataclass
class Oracle:
    """The results that a pair may have in a setup, found by running it serially on a separate database."""

    driver: Driver
    setup: str
    pair: Pair
    before: Snapshot
    serial: tuple[Explained, Explained]
    """The first before the second, and the second before the first."""
    solo: tuple[tuple[Any, Snapshot], tuple[Any, Snapshot]]
    _found: dict[Any, Any] = field(default_factory=dict)
    """Results with skipped rows, each computed when it is first needed."""
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def both_act(self) -> bool:
        """Whether there is an order in which both change something."""
        return any(
            alone_after != self.before and serial[2] != alone_after
            for (_, alone_after), serial in zip(self.solo, self.serial, strict=True)
        )

    async def explained_by_skipping(self, came_to: Explained, opposed: list[bool]) -> bool:
        """Whether a verb that never waits skipped rows of the other, and all else fits a serial order."""
        for index in (index for index in (0, 1) if opposed[index]):
            for held in self._rows_skipped_by(index):
                for first in (True, False):
                    if came_to == await self._once(self._skip, index, held, first):
                        return True
        return False

    async def explained_by_skipping_alone(self, index: int, came_to: tuple[Any, Snapshot]) -> bool:
        """The same where the other transaction was rolled back."""
        for held in self._rows_skipped_by(index):
            if came_to == await self._once(self._skip_alone, index, held):
                return True
        return False

    def _rows_skipped_by(self, index: int) -> Iterator[Held]:
        operation = self.pair[index]
        # Where a server ignores lock hints, the lease's guard still keeps a try from waiting.
        skips = operation.never_waits and (self.driver.first.skips or bool(operation.leases))
        return holdable(self.pair[1 - index]) if skips else iter(())

    async def _once(self, find: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        key = (find.__name__, repr(arguments))
        async with self._lock:
            if key not in self._found:
                await self.driver.restore(self.setup)
                self._found[key] = await find(*arguments)
        return self._found[key]

    async def _skip(self, index: int, held: Held, first: bool) -> Explained:
        other = 1 - index
        answers: dict[int, Any] = {}
        if not first:
            answers[other] = await alone(self.driver, other, self.pair[other])
        answers[index] = await skipping(self.driver, index, self.pair[index], held)
        if first:
            answers[other] = await alone(self.driver, other, self.pair[other])
        return answers[0], answers[1], await self.driver.snapshot()

    async def _skip_alone(self, index: int, held: Held) -> tuple[Any, Snapshot]:
        return await skipping(self.driver, index, self.pair[index], held), await self.driver.snapshot()


async def make_oracle(driver: Driver, setup: str, pair: Pair) -> Oracle:
    """Run both serial orders, and each operation alone."""
    await driver.restore(setup)
    before = await driver.snapshot()
    solo, serial = [], []
    for index in (0, 1):
        answers: dict[int, Any] = {}
        await driver.restore(setup)
        answers[index] = await alone(driver, index, pair[index])
        between = await driver.snapshot()
        answers[1 - index] = await alone(driver, 1 - index, pair[1 - index])
        after = await driver.snapshot()
        check_answer(pair[index], answers[index], before, between)
        check_answer(pair[1 - index], answers[1 - index], between, after)
        solo.append((answers[index], between))
        serial.append((answers[0], answers[1], after))
    return Oracle(driver, setup, pair, before, (serial[0], serial[1]), (solo[0], solo[1]))


def check_answer(operation: Operation, answer: Any, before: Snapshot, after: Snapshot) -> None:
    """An operation that reports that it did nothing must have changed nothing."""
    unchanged = before._replace(workers=[]) == after._replace(workers=[])
    if not won(operation, answer) and not unchanged:
        raise Violation(f"{operation} says {answer} and has changed a job")


async def check(oracle: Oracle, plans: tuple[Plan, Plan], result: Result, *, first_ended: int) -> None:
    """Raise a Violation unless this result is allowed."""
    complaints = [*_unexplained(await _explains(oracle, plans, result, first_ended)), *broken(result.after)]
    if all(plan.commits for plan in plans):
        complaints += counters(oracle, result)
    if complaints:
        raise Violation("; ".join(complaints) + "\n  " + "\n  ".join(result.log) + f"\n  {result.after}")


def _unexplained(explained: bool) -> Iterator[str]:
    if not explained:
        yield "no serial order explains the answers and the rows"


async def _explains(oracle: Oracle, plans: tuple[Plan, Plan], result: Result, first_ended: int) -> bool:
    for index in (0, 1):
        if not plans[1 - index].commits:
            return await _as_if_alone(oracle, index, result)
    came_to = (result.answers[0], result.answers[1], result.after)
    if not result.overlapped:
        return came_to == oracle.serial[first_ended]
    return came_to in oracle.serial or await oracle.explained_by_skipping(came_to, result.opposed)


async def _as_if_alone(oracle: Oracle, index: int, result: Result) -> bool:
    came_to = (result.answers[index], result.after)
    if came_to == oracle.solo[index]:
        return True
    return result.opposed[index] and await oracle.explained_by_skipping_alone(index, came_to)


# Invariants of the rows


def broken(after: Snapshot) -> Iterator[str]:
    """What is inconsistent in the rows."""
    ledger = {job_id: list(runs) for job_id, runs in groupby(after.runs, key=lambda run: run["job_id"])}
    rows = {row["id"]: row for row in after.jobs}
    for job_id in {*ledger, *rows}:
        yield from _job(rows.get(job_id), ledger.get(job_id, []))
    yield from _effects(after)


def _job(row: Row | None, runs: list[Row]) -> Iterator[str]:
    """Each ended fence has its ledger row, and each slot before the current one has an end."""
    ended = [run["fence"] for run in runs]
    slots = sorted(run["slot_no"] for run in runs if run["outcome"] in ENDINGS)
    last_fence = max(ended, default=0) if row is None else row["fence"] - (row["locked_by"] is not None)
    last_slot = max(slots, default=0) if row is None else row["slot_no"] - 1
    if ended != list(range(1, last_fence + 1)):
        yield f"ledger rows for the fences {ended}, expected one for each up to {last_fence}"
    if slots != list(range(1, last_slot + 1)):
        yield f"ends of the slots {slots}, expected one for each up to {last_slot}"


def _effects(after: Snapshot) -> Iterator[str]:
    """A row that a task wrote together with its completion exists once, and only with the completion."""
    written = [effect["job_id"] for effect in after.effects if effect["kind"] == "completion"]
    succeeded = [run["job_id"] for run in after.runs if run["outcome"] == Outcome.SUCCEEDED]
    if len(written) != len(set(written)) or not set(written) <= set(succeeded):
        yield f"effects {written} beside the successes {succeeded}"


def counters(oracle: Oracle, result: Result) -> Iterator[str]:
    """Fences grow by claims, discards and cancels only, as the transition table says.

    Maintenance may prune them.
    """
    if not any(operation.verb for operation in oracle.pair):
        return
    expected = sum(
        _fence_step(operation.verb) * _ended(answer)
        for operation, answer in zip(oracle.pair, result.answers, strict=True)
        if operation.verb and won(operation, answer)
    )
    grown = _fences(result.after) - _fences(oracle.before)
    if grown != expected:
        yield f"fences grew by {grown}, expected {expected}"


def _ended(answer: Any) -> int:
    """How many jobs an answer is about; not counting those that were only marked as cancelled."""
    return sum(one is not Cancellation.STOPPING for one in (answer if isinstance(answer, list) else [answer]))


def _fence_step(verb: Verb) -> int:
    return max(transition.fence for (_, done), transition in TRANSITIONS.items() if done is verb)


def _fences(snapshot: Snapshot) -> int:
    """The sum of each job's highest fence, taken from its row, or from the ledger if the row is gone."""
    highest: dict[str, int] = {}
    for job_id, fence in [
        *((row["id"], row["fence"]) for row in snapshot.jobs),
        *((run["job_id"], run["fence"]) for run in snapshot.runs),
    ]:
        highest[job_id] = max(fence, highest.get(job_id, 0))
    return sum(highest.values())
