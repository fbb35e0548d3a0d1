"""Leases on every database: one holder at a time, and a term that distinguishes its writes from earlier ones."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.views import LeaseView
from reltask.stores.store import Store
from tests.store.store_harness import START, Backend, Now, StoreHarness, new_job

TTL = timedelta(seconds=10)
WAITS = timedelta(seconds=20)
LONG = timedelta(hours=1)
MOMENT = timedelta(microseconds=1)


def asked(holder: str = "alice", **fields: Any) -> LeaseRequest:
    return LeaseRequest(**{"name": "reports", "holder": holder, "acquisition": uuid4(), "ttl": TTL, **fields})


async def won(store: Store, holder: str = "alice", **fields: Any) -> Grant:
    """Acquire a lease that must be free."""
    request = asked(holder, **fields)
    answer = await store.acquire_lease(request)
    assert answer.term is not None
    return Grant(term=Term(request.name, answer.term), acquisition=request.acquisition)


async def waits(store: Store, holder: str) -> LeaseAnswer:
    return await store.acquire_lease(asked(holder, waits=WAITS))


async def seen(store: Store) -> LeaseView:
    (view,) = await store.list_leases()
    return view


# Acquiring


async def test_a_lease_has_one_holder(harness: StoreHarness, rival: Store) -> None:
    """The second try is refused, gets the end of the lease, and changes nothing."""
    await won(harness.store)
    before = await harness.snapshot()
    answer = await rival.acquire_lease(asked("bob"))
    assert (answer.term, answer.now, answer.expires_at) == (None, START, START + TTL)
    assert await harness.snapshot() == before


async def test_the_term_grows_at_every_acquisition(harness: StoreHarness, rival: Store) -> None:
    """After a resignation, after an end, and for the same holder: each leadership has its own number."""
    first = await won(harness.store)
    await harness.store.resign_lease(first)
    second = await won(rival, "bob")
    harness.now.value += TTL
    third = await won(rival, "bob")
    assert [grant.term.number for grant in (first, second, third)] == [1, 2, 3]


async def test_a_try_sent_again_finds_what_it_has_won(harness: StoreHarness) -> None:
    """The answer was lost: the same acquisition gets the same term, counted from now."""
    request = asked()
    first = await harness.store.acquire_lease(request)
    harness.now.advance(seconds=1)
    again = await harness.store.acquire_lease(request)
    assert (again.term, again.expires_at) == (first.term, harness.now() + TTL)
    assert (await seen(harness.store)).acquired_at == START


async def test_a_try_sent_again_after_the_end_is_a_new_leadership(harness: StoreHarness) -> None:
    """An ended lease never continues, not even for its last holder."""
    request = asked()
    await harness.store.acquire_lease(request)
    harness.now.value += TTL
    assert (await harness.store.acquire_lease(request)).term == 2


async def test_an_ended_lease_can_be_acquired_and_not_before(harness: StoreHarness, rival: Store) -> None:
    """By the database's clock, after a TTL without a renewal."""
    await won(harness.store)
    harness.now.value = START + TTL - MOMENT
    assert (await rival.acquire_lease(asked("bob"))).term is None
    harness.now.value += MOMENT
    assert (await won(rival, "bob")).term == Term("reports", 2)


async def test_leases_of_other_names_are_free(store: Store) -> None:
    """Each name has its own terms."""
    await won(store)
    assert (await won(store, name="cleanup")).term == Term("cleanup", 1)
    assert [view.name for view in await store.list_leases()] == ["cleanup", "reports"]


async def test_of_many_tries_at_once_one_wins(backend: Backend, now: Now) -> None:
    """One term, one holder, also for a lease that was never held."""
    stores = [backend.store(now) for _ in range(6)]
    await asyncio.gather(*(store.open() for store in stores))
    answers = await asyncio.gather(
        *(store.acquire_lease(asked(f"holder {number}", waits=WAITS)) for number, store in enumerate(stores))
    )
    await asyncio.gather(*(store.close() for store in stores))
    assert sorted(str(answer.term) for answer in answers) == ["1", *["None"] * 5]


# Waiting


async def test_waiters_get_their_rank(harness: StoreHarness) -> None:
    """All get the same order, in whatever order they tried; the holder is not among them."""
    await won(harness.store)
    for holder in ("dora", "bob", "carl"):
        await waits(harness.store, holder)
    answers = [await waits(harness.store, holder) for holder in ("bob", "carl", "dora")]
    assert [(answer.rank, answer.waiting) for answer in answers] == [(0, 3), (1, 3), (2, 3)]
    assert (await seen(harness.store)).waiting == 3


async def test_a_worker_that_stops_no_longer_waits(harness: StoreHarness) -> None:
    """Its turn would pass unused, and later ones would wait longer than needed."""
    await won(harness.store)
    for holder in ("bob", "carl"):
        await waits(harness.store, holder)
    await harness.store.stop_worker("bob")
    answer = await waits(harness.store, "carl")
    assert (answer.rank, answer.waiting) == (0, 1)


async def test_a_wait_that_is_not_renewed_ends(harness: StoreHarness) -> None:
    """A wait ends at its time, unless it is renewed."""
    await won(harness.store, ttl=LONG)
    await waits(harness.store, "bob")
    harness.now.value += WAITS * 0.75
    assert (await waits(harness.store, "carl")).waiting == 2
    harness.now.value += WAITS * 0.25
    answer = await waits(harness.store, "carl")
    assert (answer.rank, answer.waiting) == (0, 1)


async def test_a_try_without_waits_writes_nothing(harness: StoreHarness) -> None:
    """A refused try without `waits` writes nothing, and still gets the number of waiters."""
    await won(harness.store)
    await waits(harness.store, "bob")
    before = await harness.snapshot()
    answer = await harness.store.acquire_lease(asked("carl"))
    assert (answer.term, answer.rank, answer.waiting) == (None, 1, 2)
    assert await harness.snapshot() == before


async def test_a_wait_is_not_rewritten_at_every_try(harness: StoreHarness) -> None:
    """Each write would wake every process that watches an SQLite file; it is rewritten after half of the wait."""
    await won(harness.store, ttl=LONG)
    await waits(harness.store, "bob")
    before = await harness.snapshot()
    harness.now.value += WAITS / 2
    await waits(harness.store, "bob")
    assert await harness.snapshot() == before
    harness.now.value += MOMENT
    await waits(harness.store, "bob")
    assert await harness.snapshot() != before


async def test_an_acquisition_ends_the_waiting(harness: StoreHarness) -> None:
    """The winner waits no more, expired waits are removed, and the others stay."""
    await won(harness.store, ttl=WAITS)
    await waits(harness.store, "bob")
    harness.now.advance(seconds=5)
    for holder in ("carl", "dora"):
        await waits(harness.store, holder)
    harness.now.advance(seconds=15)
    await won(harness.store, "dora", waits=WAITS)
    assert [row[1] for row in (await harness.snapshot())["lease_waiters"]] == ["carl"]


# Keeping


async def test_a_beat_renews_and_publishes(harness: StoreHarness) -> None:
    """The lease is extended by its TTL from the heartbeat; metadata stays until other metadata is published."""
    grant = await won(harness.store)
    harness.now.advance(seconds=2)
    assert await harness.store.heartbeat_lease(grant, metadata='{"items": 3}')
    harness.now.advance(seconds=2)
    assert await harness.store.heartbeat_lease(grant)
    view = await seen(harness.store)
    assert (view.acquired_at, view.heartbeat_at) == (START, harness.now())
    assert (view.expires_at, view.ttl) == (harness.now() + TTL, TTL)
    assert (view.holder, view.held, view.metadata, view.now) == ("alice", True, '{"items": 3}', harness.now())


async def test_an_ended_lease_is_not_renewed(harness: StoreHarness) -> None:
    """Even if it is still free: its loss was announced to the holder."""
    grant = await won(harness.store)
    harness.now.value = START + TTL
    before = await harness.snapshot()
    assert not await harness.store.heartbeat_lease(grant)
    assert await harness.snapshot() == before
    assert not (await seen(harness.store)).held


async def test_an_old_term_can_neither_renew_nor_resign(harness: StoreHarness, rival: Store) -> None:
    """The next leader's lease is not changed by the previous one."""
    old = await won(harness.store)
    harness.now.value += TTL
    await won(rival, "bob")
    before = await harness.snapshot()
    assert not await harness.store.heartbeat_lease(old, metadata='{"old": true}')
    assert not await harness.store.resign_lease(old)
    assert await harness.snapshot() == before


async def test_another_acquisition_of_the_same_term_is_refused(harness: StoreHarness) -> None:
    """Term and acquisition must both match."""
    grant = await won(harness.store)
    stranger = Grant(term=grant.term, acquisition=uuid4())
    assert not await harness.store.heartbeat_lease(stranger)
    assert not await harness.store.resign_lease(stranger)


async def test_the_next_holder_does_not_inherit_what_was_published(harness: StoreHarness) -> None:
    """Published metadata belongs to one holder."""
    grant = await won(harness.store)
    await harness.store.heartbeat_lease(grant, metadata='{"items": 3}')
    await harness.store.resign_lease(grant)
    await won(harness.store, "bob")
    assert (await seen(harness.store)).metadata == "{}"


# Releasing


async def test_a_resigned_lease_is_free_at_once(harness: StoreHarness, rival: Store) -> None:
    """The next candidate need not wait for its end, and the resigned holder is refused."""
    grant = await won(harness.store)
    assert await harness.store.resign_lease(grant)
    view = await seen(harness.store)
    assert (view.holder, view.held, view.expires_at) == (None, False, START)
    assert not await harness.store.resign_lease(grant)
    assert not await harness.store.heartbeat_lease(grant)
    assert (await won(rival, "bob")).term.number == 2


async def test_an_operator_releases_the_term_that_was_shown(harness: StoreHarness, rival: Store) -> None:
    """A lease with another term by now is left alone; a second release finds nothing."""
    grant = await won(harness.store)
    assert not await rival.release_lease(Term("reports", 2))
    assert await rival.release_lease(grant.term)
    assert not await rival.release_lease(grant.term)
    assert not await harness.store.heartbeat_lease(grant)
    await won(rival, "bob")
    assert not await rival.release_lease(grant.term)
    assert (await seen(rival)).holder == "bob"


# Guarding


async def guards(store: Store, term: Term) -> bool:
    async with store.transaction(timeout=TTL) as transaction:
        return await transaction.guard_lease(term)


async def test_a_guard_checks_the_term(harness: StoreHarness, rival: Store) -> None:
    """True for the leader; false for an old term, a later term, a released lease, and one that never existed."""
    grant = await won(harness.store)
    assert await guards(harness.store, grant.term)
    assert not await guards(harness.store, Term("reports", 2))
    assert not await guards(harness.store, Term("nothing", 1))
    harness.now.value += TTL
    await won(rival, "bob")
    assert not await guards(harness.store, grant.term)
    await rival.release_lease(Term("reports", 2))
    assert not await guards(rival, Term("reports", 2))


async def test_what_follows_a_failed_guard_can_be_rolled_back(harness: StoreHarness) -> None:
    """The transaction is still the caller's: its writes can be rolled back."""
    await won(harness.store)
    before = await harness.snapshot()

    async def write_as_leader() -> None:
        async with harness.store.transaction(timeout=TTL) as transaction:
            await transaction.enqueue_jobs([new_job()])
            if not await transaction.guard_lease(Term("reports", 7)):
                raise PermissionError

    with pytest.raises(PermissionError):
        await write_as_leader()
    assert await harness.snapshot() == before
