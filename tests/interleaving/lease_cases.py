"""Races for a lease.

Most of them are about the order of commits. A comparison with serial orders cannot see that: an old
term's write that commits after the takeover looks as if it had happened before.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.interleaving.driver import Driver
from tests.interleaving.lease_operations import TTL, acquire, beat, lead, prune, release_lease, resign
from tests.interleaving.operations import Operation, T
from tests.interleaving.steps import Case, begun, committed, do, expect, opened, stopped

Make = Callable[[], Operation]


def a_leaders_write_keeps_the_lease(write: Make) -> Case:
    """While a write under a term is uncommitted, a try for the lease is refused without waiting."""

    async def case(driver: Driver) -> None:
        async with opened(driver.first):
            expect("the leader writes", bool(await do(write(), driver.first)), True)
            expect("a try is refused", await committed(acquire(), driver.second), None)
        expect("the next try wins", await committed(acquire(), driver.second), 2)

    return case


def an_old_terms_write_finds_nothing(write: Make) -> Case:
    """A write whose snapshot shows its term, but whose lease is taken before its lock, changes nothing."""

    async def case(driver: Driver) -> None:
        before = await driver.snapshot()
        async with stopped(write(), driver.first) as answer:
            expect("the takeover", await committed(acquire(), driver.second), 2)
        expect("the write is refused", bool(await answer), False)
        expect("nothing was written", (await driver.snapshot())._replace(leases=before.leases), before)

    return case


def a_write_waits_for_a_takeover(write: Make) -> Case:
    """A write that meets an uncommitted takeover waits for it, and then finds another term."""

    async def case(driver: Driver) -> None:
        before = await driver.snapshot()
        await driver.second.begin()
        expect("the takeover", await do(acquire(), driver.second), 2)
        async with begun(write(), driver.first) as answer:
            expect("the old leader's write waits", answer.done(), False)
            await driver.second.commit()
        expect("the write is refused", bool(await answer), False)
        expect("nothing was written", (await driver.snapshot())._replace(leases=before.leases), before)

    return case


async def a_beat_passes_its_leaders_transaction(driver: Driver) -> None:
    """A leader's long transaction does not make its heartbeats wait, so it keeps its lease."""
    driver.second.now = T
    async with opened(driver.first):
        expect("guarded", await do(lead(), driver.first), True)
        expect("renewed", await committed(beat(), driver.second), True)


async def a_lease_given_back_under_a_transaction(driver: Driver) -> None:
    """A lease released while its leader still writes is free only when the write is committed."""
    async with opened(driver.first):
        expect("guarded", await do(lead(), driver.first), True)
        expect("released", await committed(release_lease(), driver.second), True)
        expect("not free yet", await committed(acquire(), driver.second), None)
    expect("free", await committed(acquire(), driver.second), 2)


async def a_try_meets_a_renewal(driver: Driver) -> None:
    """A lease that had ended in the try's snapshot but was renewed before its lock is left alone."""
    driver.first.now = T
    async with stopped(acquire(), driver.second) as answer:
        expect("renewed", await committed(beat(), driver.first), True)
    expect("refused", await answer, None)
    (lease,) = (await driver.snapshot()).leases
    expect("alice leads", (lease["holder"], lease["term"]), ("alice", 1))


async def a_beat_meets_a_takeover(driver: Driver) -> None:
    """A lease that was held in the heartbeat's snapshot but taken before its lock is not renewed."""
    driver.first.now = T
    async with stopped(beat(), driver.first) as answer:
        expect("the takeover", await committed(acquire(), driver.second), 2)
    expect("lost", await answer, False)


async def two_tries_with_the_same_snapshot(driver: Driver) -> None:
    """Both tries saw the lease free. One gets it, the other is refused."""
    async with stopped(acquire(), driver.first) as answer:
        expect("the quick one", await committed(acquire(), driver.second), 2)
    expect("the late one", await answer, None)


async def a_resignation_hands_over_at_once(driver: Driver) -> None:
    """The first try after the resignation's commit wins, long before the lease would have ended."""
    driver.first.now = driver.second.now = T - TTL / 2
    expect("held", await committed(acquire(), driver.second), None)
    expect("resigned", await committed(resign(), driver.first), True)
    expect("taken", await committed(acquire(), driver.second), 2)


async def two_prunes_at_once(driver: Driver) -> None:
    """The second prune finds the rows locked: it does not wait, and does not delete them again."""
    async with opened(driver.first):
        expect("one row", await do(prune(), driver.first), 1)
        expect("nothing is left", await committed(prune(), driver.second), 0)
