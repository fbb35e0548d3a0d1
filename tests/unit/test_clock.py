"""Which clock measures deadlines."""

from __future__ import annotations

import time

import pytest

from reltask.model.clock import SystemClock, choose_monotonic

BOOTTIME = 7


def test_a_suspended_machine_loses_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux: CLOCK_BOOTTIME goes on while the machine is suspended, as the locks in the database do."""
    monkeypatch.setattr(time, "CLOCK_BOOTTIME", BOOTTIME, raising=False)
    monkeypatch.setattr(time, "clock_gettime", {BOOTTIME: 3600.0}.__getitem__)
    assert choose_monotonic()() == 3600.0


def test_without_that_clock_it_is_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS, Windows, an old kernel, a sandbox."""

    def refuse(_clock: int) -> float:
        raise OSError

    monkeypatch.setattr(time, "CLOCK_BOOTTIME", BOOTTIME, raising=False)
    monkeypatch.setattr(time, "clock_gettime", refuse)
    assert choose_monotonic() is time.monotonic
    monkeypatch.delattr(time, "CLOCK_BOOTTIME")
    assert choose_monotonic() is time.monotonic


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="only Linux has this clock")
def test_the_system_clock_counts_suspended_time() -> None:
    """It is one call of C, as each claim and each beat reads it."""
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    assert before <= SystemClock().monotonic() <= time.clock_gettime(time.CLOCK_BOOTTIME)
