"""How much more a worker may claim."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast
from uuid import UUID

from reltask.model.job import Hold
from reltask.worker.places import Places
from reltask.worker.run import Run


class FakeRun(SimpleNamespace):
    """As much of a run as places look at."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def run(number: int) -> Run:
    claim = SimpleNamespace(queue="default", isolated=False)
    return cast("Run", FakeRun(hold=Hold(UUID(int=number), 1), claim=claim))


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
