"""What a view looks like where it is printed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec

from reltask.model.job import Outcome, State
from reltask.model.views import RunView
from tests.unit.test_waiting import JOB, NOW


def test_job_is_shown_in_one_line() -> None:
    """Which task, which job, in which state, due when, at which attempt; what the other fields hold is for programs."""
    ready = msgspec.structs.replace(JOB, state=State.READY, due_at=NOW, attempt=0, max_attempts=5)
    shown = repr(ready)
    assert shown == f"<job {JOB.id} of {JOB.task}: ready, due {NOW:%Y-%m-%d %H:%M:%S} UTC, attempt 0 of 5>"
    assert str(ready) == shown


def test_running_job_names_its_worker() -> None:
    """A claimed job says who holds it."""
    running = msgspec.structs.replace(JOB, state=State.CLAIMED, locked_by="a worker", attempt=2, max_attempts=None)
    assert repr(running).endswith(", attempt 2, on 'a worker'>")


def test_run_is_shown_in_one_line() -> None:
    """How it ended, when, and on which worker. Neither its error nor its result is shown: a log may get the line."""
    finished = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    run = RunView(
        job_id=JOB.id, fence=3, slot_no=2, task="p\x1bay", key=None, queue="default", worker="w\n1", attempt=1,
        nominal_time=finished, due_at=finished, claimed_at=finished - timedelta(seconds=1), finished_at=finished,
        outcome=Outcome.FAILED, error="secret", result="secret", steps=None,
    )  # fmt: skip
    assert (
        repr(run)
        == f"<run 3 of job {JOB.id} of p\\u001bay, slot 2: failed at 2026-01-02 03:04:05 UTC, attempt 1, on 'w\\n1'>"
    )
