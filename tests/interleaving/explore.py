"""All interleavings of one pair in one setup, each of them checked."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from tests.interleaving.checks import Oracle, check, make_oracle
from tests.interleaving.driver import Driver
from tests.interleaving.orders import (
    FIRST_LEADS,
    ONE_AFTER_THE_OTHER,
    OVERLAPPING,
    OVERTAKEN,
    SECOND_LEADS,
    Order,
    Plan,
    interleave,
    orders,
    split_orders,
)
from tests.interleaving.setups import Pair, Setup

Run = tuple[tuple[Plan, Plan], Order]

ran: Counter[str] = Counter()
"""How many interleavings of the shipped statements this process has run, by kind."""


class Suite:
    """The drivers that run interleavings, and one more that finds the serial results."""

    def __init__(self, oracle: Driver, drivers: list[Driver], *, brief: bool = False) -> None:
        """The oracle always runs the shipped statements; mutants change the drivers'.

        `brief`: few orders.
        """
        self._brief = brief
        self.drivers = drivers
        self._oracle = oracle
        self._saved: set[str] = set()
        self._oracles: dict[tuple[str, Pair], Oracle] = {}

    async def explore(self, setup: Setup, pair: Pair) -> Counter[str]:
        """Run every order, or a few of each kind if only one of the two can act.

        Returns counts by kind.
        """
        oracle = await self._oracle_for(setup, pair)
        planned = list(runs(pair, thorough=oracle.both_act and not self._brief))
        todo = deque(planned)
        ends = await asyncio.gather(*(_work(driver, oracle, todo) for driver in self.drivers), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return Counter(_kind(plans) for plans, _ in planned)

    async def prepare(self, setup: Setup) -> None:
        """Create the setup's rows on every database, once."""
        if setup.name not in self._saved:
            for driver in (self._oracle, *self.drivers):
                await setup.save(driver)
            self._saved.add(setup.name)

    async def _oracle_for(self, setup: Setup, pair: Pair) -> Oracle:
        await self.prepare(setup)
        if (setup.name, pair) not in self._oracles:
            self._oracles[setup.name, pair] = await make_oracle(self._oracle, setup.name, pair)
        return self._oracles[setup.name, pair]

    @contextmanager
    def mutated(self, verb: str, *changes: tuple[str, str]) -> Iterator[None]:
        """Change the text of a statement on every driver."""
        with ExitStack() as stack:
            for driver in self.drivers:
                stack.enter_context(driver.changed(verb, *changes))
            yield


async def _work(driver: Driver, oracle: Oracle, todo: deque[Run]) -> None:
    """Take runs until none is left. A violation stops all drivers."""
    while todo:
        plans, order = todo.popleft()
        try:
            result = await interleave(driver, oracle.setup, plans, order)
            await check(oracle, plans, result, first_ended=_first_to_end(order))
        except BaseException:
            todo.clear()
            raise


def runs(pair: Pair, *, thorough: bool) -> Iterator[Run]:
    """The plans and orders of a pair.

    Both committed, in every order; both stopped after the snapshot, in every order; and the leading
    one rolled back.
    """
    first, second = pair
    both = Plan(first), Plan(second)
    stopped = Plan(first, pauses=True), Plan(second, pauses=True)
    if thorough:
        yield from ((both, order) for order in orders(both[0].steps, both[1].steps))
        yield from ((stopped, order) for order in split_orders())
    else:
        yield from ((both, padded(order, both)) for order in OVERLAPPING + ONE_AFTER_THE_OTHER)
        yield from ((stopped, order) for order in OVERTAKEN)
    for plans, leading in (
        ((Plan(first, commits=False), Plan(second)), FIRST_LEADS),
        ((Plan(first), Plan(second, commits=False)), SECOND_LEADS),
    ):
        yield from ((plans, padded(order, plans)) for order in leading)


def padded(order: Order, plans: tuple[Plan, Plan]) -> Order:
    """Stretch an order of three steps each to longer operations: the statements of one stay together."""
    longer: list[int] = []
    for place, who in enumerate(order):
        is_statement = order[:place].count(who) == 1
        longer += [who] * (plans[who].steps - 2 if is_statement else 1)
    return tuple(longer)


def _first_to_end(order: Order) -> int:
    """Which session has taken all its steps first."""
    return 1 - order[-1]


def _kind(plans: tuple[Plan, Plan]) -> str:
    if not all(plan.commits for plan in plans):
        return "with a rollback"
    return "stopped after the snapshot" if plans[0].pauses else "committed"
