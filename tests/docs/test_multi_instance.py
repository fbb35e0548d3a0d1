"""docs/multi-instance.md does what it says: three workers, one killed, one stopped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from reltask import App
from reltask.model.job import Outcome, State
from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import PATIENCE, Terminal

T = TypeVar("T")
PAGE = ROOT / "docs" / "multi-instance.md"


def wait_until(happened: Callable[[], T | None]) -> T:
    """Wait for an answer that is neither None nor false, and return it."""
    until = time.monotonic() + PATIENCE
    while not (answer := happened()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return answer


def holder(app: App) -> int | None:
    """The process id of the holder of the claim, from the worker's id, as a reader would find it."""
    claimed = [job.locked_by for job in app.jobs_sync(state=State.CLAIMED) if job.locked_by]
    return int(claimed[0].split("_")[-2]) if claimed else None


def fresh_holder(app: App) -> int:
    """The holder of a claim that has just begun, so that there is time to kill it in the middle."""
    wait_until(lambda: holder(app) is None)
    return wait_until(lambda: holder(app))


def taken_over(app: App) -> bool:
    """Whether a lost run's slot has succeeded since."""
    runs = app.runs_sync()
    lost = {run.slot_no for run in runs if run.outcome is Outcome.LOST}
    return any(run.slot_no in lost and run.outcome is Outcome.SUCCEEDED for run in runs)


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="the page kills by POSIX signals")
def test_page_runs_as_written(terminal: Terminal, tmp_path: Path) -> None:
    """The killed worker's slot is taken over, the stopped worker ends with status 0, and each slot is done once."""
    app = App(f"sqlite:///{tmp_path}/several.db")
    for block in blocks(PAGE):
        if "kill -" in block.text:
            terminal.instead[block.text.split()[-1]] = str(fresh_holder(app))
        terminal.read(block)
        if "kill -KILL" in block.text:
            wait_until(lambda: taken_over(app))
    app.close()
    killed, stopped = terminal.instead.values()
    statuses = dict(zip((str(one.process.pid) for one in terminal.background), terminal.close(), strict=True))
    assert statuses.pop(killed) == -9
    assert statuses.pop(stopped) == 0
    assert list(statuses.values()) == [0]
