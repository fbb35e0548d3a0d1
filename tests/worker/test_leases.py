"""`app.lease(…)` in virtual time: waiting, heartbeats, losing, leaving, with a database that fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from reltask import events
from reltask.errors import AmbiguousError, LeaseTaken, PermanentError, TransientError, UsageError
from reltask.leases.holding import lease_options
from reltask.leases.leader import Leader
from reltask.model.lease import Term
from reltask.model.views import LeaseView
from tests.worker.worker_harness import HarnessApp, WorkerHarness

TRUST = 10 - 10 / 6
"""How long a lease of 10 s is trusted, in seconds after the sending of its last good heartbeat."""


async def lease_of(app: HarnessApp) -> LeaseView:
    (lease,) = await app.leases()
    return lease


def test_one_at_a_time_and_each_with_the_next_term(harness: WorkerHarness) -> None:
    """Three candidates, three terms, never two holders; a resigned lease need not expire."""
    inside, terms = 0, []

    async def candidate(app: HarnessApp) -> None:
        nonlocal inside
        async with app.lease("reports") as lease:
            inside += 1
            assert (inside, lease.held, lease.lost.is_set()) == (1, True, False)
            terms.append(lease.term)
            await asyncio.sleep(60)
            assert lease.held, "beats keep it"
            inside -= 1
        assert (lease.held, lease.lost.reason) == (False, "resigned")

    async def scenario() -> None:
        await asyncio.gather(*(candidate(harness.app()) for _ in range(3)))

    harness.run(scenario())
    assert terms == [1, 2, 3]


def test_wait_false_tries_once_and_leaves_no_trace(harness: WorkerHarness) -> None:
    """The error names the holder, and what to do."""
    first, second = harness.app(), harness.app()

    async def scenario() -> None:
        async with first.lease("reports") as lease:
            with pytest.raises(LeaseTaken, match=rf"Lease reports is held by {lease.holder}, term 1\. wait=True"):
                async with second.lease("reports", wait=False):
                    pass
            assert (await lease_of(first)).waiting == 0
        async with second.lease("reports", wait=False) as lease:
            assert lease.term == 2

    harness.run(scenario())
    assert second.faults.calls["acquire_lease"] == 2


def test_wait_for_a_while(harness: WorkerHarness) -> None:
    """After that time the same error is raised, and the lease is not acquired afterwards."""
    first, second = harness.app(), harness.app()

    async def scenario() -> None:
        async with first.lease("reports"):
            before = harness.seconds()
            with pytest.raises(LeaseTaken, match="after a wait of 30s"):
                async with second.lease("reports", wait="30s"):
                    pass
            assert harness.seconds() - before == pytest.approx(30, abs=0.01)
            assert (await lease_of(first)).waiting == 1
        await asyncio.sleep(60)
        assert not (await lease_of(first)).held

    harness.run(scenario())


def test_a_cancelled_wait_ends(harness: WorkerHarness) -> None:
    """The lease is not given to a caller that was cancelled."""
    first, second = harness.app(), harness.app()

    async def wait() -> None:
        async with second.lease("reports"):
            raise AssertionError

    async def scenario() -> None:
        async with first.lease("reports"):
            waiting = asyncio.create_task(wait())
            await asyncio.sleep(15)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        await asyncio.sleep(60)
        assert not (await lease_of(first)).held

    harness.run(scenario())


def test_a_cancelled_caller_waits_for_the_resignation(harness: WorkerHarness) -> None:
    """A cancelled caller leaves the block at once, after what a running try wins has been resigned."""
    app = harness.app()
    app.faults.slow["acquire_lease"] = 2.0

    async def scenario() -> None:
        store = app.sound_store()
        await store.open()
        wish = lease_options("reports", ttl="1m", wait=True, rotate_after=None, max_stall=None)
        holding = app._lease_host._holding(wish)
        taking = asyncio.create_task(holding.take(store))
        await asyncio.sleep(1)
        taking.cancel()
        await asyncio.sleep(0)
        await holding.give_back()
        assert not (await lease_of(app)).held
        await asyncio.wait({taking})
        await store.close()

    harness.run(scenario())
    assert [type(event) for event in app.log.events] == [events.LeaseAcquired, events.LeaseResigned]


# Losing


def test_a_lease_that_cannot_be_renewed_is_announced_before_it_ends(harness: WorkerHarness) -> None:
    """Trust counts from the sending of the last good heartbeat, and ends a margin before the TTL."""
    app = harness.app()

    async def scenario() -> None:
        async with app.lease("reports") as lease:
            await asyncio.sleep(5)
            app.faults.hanging.add("heartbeat_lease")
            assert await lease.lost == "it could not be renewed in time"
            assert harness.seconds() == pytest.approx(4 + TRUST, abs=0.02), "the last good beat was sent at 4 s"
            assert not lease.held
            assert (await lease_of(app)).held, "for the database the lease is still held"
            app.faults.hanging.clear()
            app.faults.calls.clear()
            await asyncio.sleep(20)
            assert app.faults.calls["heartbeat_lease"] == 0, "announced as lost: never renewed"

    harness.run(scenario())
    assert [event.reason for event in app.log.of(events.LeaseLost)] == ["it could not be renewed in time"]


@pytest.mark.parametrize(
    ("options", "seconds", "reason"),
    [({"rotate_after": "1m"}, 60, "rotate_after has passed"), ({"max_stall": "40s"}, 70, "finished for max_stall")],
)
def test_rotation_and_stall(harness: WorkerHarness, options: dict[str, str], seconds: float, reason: str) -> None:
    """Both are announced, and heartbeats stop; leaving the block resigns the lease at once."""
    app = harness.app()

    async def scenario() -> None:
        async with app.lease("reports", **options) as lease:
            before = harness.seconds()
            await asyncio.sleep(30)
            lease.worked(items=5)
            assert reason in await lease.lost
            assert harness.seconds() - before == pytest.approx(seconds, abs=0.02)
        view = await lease_of(app)
        assert (view.held, view.holder, view.expires_at <= view.now) == (False, None, True)

    harness.run(scenario())


def test_an_operator_takes_the_lease_away(harness: WorkerHarness) -> None:
    """The next heartbeat is refused, and the lease is lost."""
    app = harness.app()

    async def scenario() -> None:
        async with app.lease("reports") as lease:
            assert await app.release_lease(Term("reports", lease.term))
            assert await lease.lost == "the database says that this term is over"
            assert harness.seconds() < 2.1

    harness.run(scenario())


# Leaving


@pytest.mark.parametrize("fault", ["hangs", "refuses"])
def test_leaving_does_not_hang_and_does_not_hide_the_bodys_error(harness: WorkerHarness, fault: str) -> None:
    """If the database is down when the block ends, resigning is tried for a few seconds; then the lease expires."""
    app = harness.app()

    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await fail()
        assert harness.seconds() < 5

    async def fail() -> None:
        async with app.lease("reports"):
            if fault == "hangs":
                app.faults.hanging.add("*")
            else:
                app.faults.error = lambda: TransientError("down")
            raise ZeroDivisionError

    harness.run(scenario())
    assert len(app.log.of(events.LeaseLeftToExpire)) == 1


def test_a_resignation_without_an_answer_is_sent_again(harness: WorkerHarness) -> None:
    """The lease is resigned, whether or not the first answer arrived."""
    app = harness.app()

    async def scenario() -> None:
        async with app.lease("reports"):
            app.faults.losing["resign_lease"] = 1
        assert not (await lease_of(app)).held

    harness.run(scenario())
    assert len(app.log.of(events.LeaseResigned)) == 1


# Failures while acquiring


def test_a_lost_answer_to_the_try_finds_what_was_won(harness: WorkerHarness) -> None:
    """The same acquisition is sent again: one term, not two."""
    app = harness.app()

    async def scenario() -> None:
        app.faults.losing["acquire_lease"] = 2
        async with app.lease("reports") as lease:
            assert lease.term == 1

    harness.run(scenario())


def test_giving_up_in_doubt_resigns_what_may_have_been_won(harness: WorkerHarness) -> None:
    """The answer was lost and the caller has gone: the lease must not stay taken for a TTL."""
    app = harness.app()

    async def scenario() -> None:
        app.faults.losing["acquire_lease"] = 1
        with pytest.raises(AmbiguousError):
            async with app.lease("reports", wait=False):
                pass
        assert not (await lease_of(app)).held

    harness.run(scenario())


@pytest.mark.parametrize(
    ("error", "wait", "raised"),
    [
        (TransientError, False, TransientError),
        (TransientError, "5s", TransientError),
        (PermanentError, True, PermanentError),
    ],
)
def test_a_database_error_is_not_hidden(
    harness: WorkerHarness, error: type[Exception], wait: Any, raised: type[Exception]
) -> None:
    """An error does not say whether the lease is held, so it is raised as it is.

    A permanent one is not retried.
    """
    app = harness.app()

    async def scenario() -> None:
        await app.status()
        app.faults.verbs, app.faults.error = {"acquire_lease"}, lambda: error("no")
        with pytest.raises(raised):
            async with app.lease("reports", wait=wait):
                pass

    harness.run(scenario())


def test_an_outage_is_waited_for(harness: WorkerHarness) -> None:
    """With wait=True: the wait goes on until the database is back."""
    app = harness.app()

    async def scenario() -> None:
        await app.status()
        app.faults.verbs, app.faults.error = {"acquire_lease"}, lambda: TransientError("down")
        asyncio.get_running_loop().call_later(100, setattr, app.faults, "error", None)
        async with app.lease("reports") as lease:
            assert 100 <= harness.seconds() < 112
            assert lease.term == 1

    harness.run(scenario())


# Publishing


def test_metadata_is_sent_with_the_next_heartbeat(harness: WorkerHarness) -> None:
    """Once, and again when it has changed; a new term starts without any."""
    app = harness.app()

    async def scenario() -> None:
        async with app.lease("reports") as lease:
            lease.metadata["region"] = "eu"
            lease.worked(items=3)
            lease.worked(items=4, errors=1)
            await asyncio.sleep(2.5)
            published = json.loads((await lease_of(app)).metadata)
            assert published["last_run"].startswith("2026-01-01T00:00:00")
            assert {**published, "last_run": ""} == {"region": "eu", "last_run": "", "items": 7, "errors": 1}
        async with app.lease("reports"):
            await asyncio.sleep(2.5)
            assert json.loads((await lease_of(app)).metadata) == {}

    harness.run(scenario())


# A leader that continues, as in the maintenance


def test_a_leader_that_lost_its_lease_waits_for_it_again(harness: WorkerHarness) -> None:
    """Rotation: the other one leads, then the first again; both get each loss and each win."""
    app = harness.app()
    heard: list[tuple[str, object]] = []

    def note(name: str) -> Callable[[object], None]:
        return lambda what: heard.append((name, what))

    async def scenario() -> None:
        await app.status()
        leaders = [leader(name) for name in ("a", "b")]
        running = [asyncio.create_task(one.run()) for one in leaders]
        await asyncio.sleep(150)
        for one in leaders:
            one.finish()
        await asyncio.gather(*running)
        assert not (await lease_of(app)).held

    def leader(name: str) -> Leader:
        return Leader(
            app.sound_store(),
            name="reports",
            holder=name,
            ttl=timedelta(seconds=10),
            clock=app._clock,
            rng=app._rng,
            emit=app.emit,
            rotate_after=timedelta(minutes=1),
            acquired=note(name),
            lost=note(name),
        )

    harness.run(scenario())
    won = [(name, what.number) for name, what in heard if isinstance(what, Term)]
    assert [number for _, number in won] == [1, 2, 3]
    assert [name for name, _ in won] in (["a", "b", "a"], ["b", "a", "b"])
    assert [what for _, what in heard if isinstance(what, str)] == [
        *(["rotate_after has passed"] * 2),
        "resigned",
    ]


# Options that are refused


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("", {}, "cannot be the name"),
        ("x" * 201, {}, "cannot be the name"),
        ("a\nb", {}, "cannot be the name"),
        ("reltask:maintenance", {}, "are reserved"),
        ("reports", {"ttl": "100ms"}, "too short"),
        ("reports", {"ttl": 10}, "not a duration"),
        ("reports", {"wait": "soon"}, "not a duration"),
        ("reports", {"rotate_after": "-1s"}, "not a duration"),
    ],
)
def test_impossible_options_are_refused(
    harness: WorkerHarness, name: str, options: dict[str, Any], message: str
) -> None:
    """They raise at once, before anything connects."""
    app = harness.app()
    for form in (app.lease, app.lease_sync):
        with pytest.raises(UsageError, match=message):
            form(name, **options)
