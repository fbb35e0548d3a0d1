"""How much more a worker may claim."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import cast
from uuid import UUID

import pytest

from reltask.model.job import ClaimRequest, Hold
from reltask.worker.places import Places, Room
from reltask.worker.run import Run


class FakeRun(SimpleNamespace):
    """As much of a run as places look at."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def run(number: int, *, queue: str = "default", isolated: bool = False) -> Run:
    claim = SimpleNamespace(queue=queue, isolated=isolated)
    return cast("Run", FakeRun(hold=Hold(UUID(int=number), 1), claim=claim, is_limited=False))


def test_unsettled_runs_use_up_the_room() -> None:
    """A database that records nothing is not asked for more and more work."""
    places = Places(concurrency=1, queues=("default",), per_queue={})
    for number in range(2):
        assert places.free == 1
        places.take([run(number)])
        assert places.free == 0
        places.vacate(list(places))
    assert places.free == 0


def test_held_outcomes_do_not() -> None:
    """A row that another session has locked may wait for hours: the worker goes on."""
    places = Places(concurrency=1, queues=("default",), per_queue={})
    woken: list[int] = []
    places.on_vacated = lambda: woken.append(places.free)
    for number in range(5):
        places.take([run(number)])
        places.vacate(list(places))
        places.hold_back(Hold(UUID(int=number), 1))
        assert places.free == 1
    assert woken[-1] == 1, "the poller looks again"
    places.give_back(list(places))
    assert (len(places), places.free) == (0, 1)
    places.hold_back(Hold(UUID(int=1), 1))
    assert places.free == 1, "it has been recorded meanwhile"


def shards(count: int) -> list[Places]:
    room, queues = Room(), ("default", "few")
    return [Places(concurrency=5, queues=queues, per_queue={"few": 1}, room=room) for _ in range(count)]


def asking(places: Places, *, queue: str = "default", limit: int = 1) -> ClaimRequest:
    """A claim as the poller sends it."""
    request = SimpleNamespace(limit=limit, queues=[queue], isolated=places.takes_isolated())
    return cast("ClaimRequest", request)


@pytest.mark.parametrize("count", [1, 2])
def test_the_next_isolated_job_is_claimed_when_the_last_ones_body_has_ended(count: int) -> None:
    """One at a time in a worker, of all its shards: who has left one looks again, although its outcome is held."""
    members = shards(count)
    first, last = members[0], members[-1]
    looks: list[Places] = []
    for places in members:
        places.on_short = lambda places=places: looks.append(places)  # type: ignore[misc]
    (isolated,) = runs = [run(1, isolated=True)]
    assert not first.claimed(runs, asking(first))
    assert not last.takes_isolated()
    first.vacate([isolated])
    first.hold_back(isolated.hold)
    assert set(looks) == {first, last}
    assert last.takes_isolated()


async def test_one_shard_claims_an_isolated_job_at_a_time() -> None:
    """The other one is told when there was none."""
    first, second = shards(2)
    looks: list[str] = []
    first.on_short, second.on_short = lambda: looks.append("first"), lambda: looks.append("second")
    request = asking(first)
    with first.claiming(request):
        assert (request.isolated, second.takes_isolated()) == (True, False)
    first.claimed([], request)
    assert looks == ["second"]
    assert second.takes_isolated()


async def test_shards_share_the_places_of_a_queue() -> None:
    """A claim under way keeps them; one that failed gives them back; what comes too late has none."""
    first, second = shards(2)
    looks: list[str] = []
    first.on_short, second.on_short = lambda: looks.append("first"), lambda: looks.append("second")
    few = asking(first, queue="few")
    with suppress(TimeoutError), first.claiming(few):
        assert ["few"] not in [plan.queues for plan in second.plans()]
        raise TimeoutError
    assert looks == ["second"]
    assert ["few"] in [plan.queues for plan in second.plans()]
    assert not second.claimed([run(1, queue="few")], asking(second, queue="few"))
    late = run(2, queue="few")
    assert first.claimed([late], few) == [late]


async def test_a_full_queue_is_looked_at_once() -> None:
    """Shards that cannot serve it do not wake each other."""
    first, second = shards(2)
    looks: list[str] = []
    first.on_short, second.on_short = lambda: looks.append("first"), lambda: looks.append("second")
    few = asking(first, queue="few")
    first.claimed([run(1, queue="few")], few)
    for places in (first, second):
        assert ["few"] not in [plan.queues for plan in places.plans()]
    for places in (first, second):
        request = asking(places)
        with places.claiming(request):
            pass
        places.claimed([], request)
    assert not looks
    first.vacate(list(first))
    assert sorted(looks) == ["first", "second"]
