"""Shards in simulated time: one that is away stalls itself alone."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from reltask.worker import places
from reltask.worker.places import Places, Room
from tests.simulation.shards import ShardWorld, Violation

SEEDS = range(20)
CUT_OFF = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A history that ends with a violation leaves its workers as they were; Python remarks on that when it frees them."""


@pytest.mark.parametrize("seed", SEEDS)
def test_the_rules_hold(seed: int, tmp_path: Path) -> None:
    """Places are not exceeded, each slot ends once, and no job on a shard that answers waits for another shard."""
    ShardWorld(seed, tmp_path).run()


def is_noticed(tmp_path: Path) -> bool:
    """Whether one of the histories breaks a rule."""
    for seed in SEEDS:
        (tmp_path / str(seed)).mkdir()
        try:
            ShardWorld(seed, tmp_path / str(seed)).run()
        except Violation:
            return True
        finally:
            gc.collect()  # here, where the remarks are expected
    return False


@CUT_OFF
def test_a_reservation_that_never_lapses_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a shard that is away keeps the places until its call fails, again and again."""
    monkeypatch.setattr(places, "RESERVED", 1e9)
    assert is_noticed(tmp_path)


@CUT_OFF
def test_places_that_are_never_announced_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: a shard is not notified that another one's bodies have ended."""
    monkeypatch.setattr(Room, "announce", lambda _: None)
    assert is_noticed(tmp_path)


@CUT_OFF
def test_a_queue_that_has_room_again_but_is_not_announced_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant: a shard is not told that the queue that it found full has room: its job waits for the poll."""
    monkeypatch.setattr(Room, "call_short", lambda *_, **__: None)
    assert is_noticed(tmp_path)


@CUT_OFF
def test_claims_without_reservations_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant: two shards fill the same places, and nothing is released."""
    monkeypatch.setattr(Room, "fair", lambda _self, _places, room: max(0, room))
    monkeypatch.setattr(Places, "claimed", lambda self, runs, _request: self.take(runs) or ())
    assert is_noticed(tmp_path)
