"""The demo's verdict counts slots in the given rows, and finds what is wrong."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from reltask.cli.demo.ledger import Blow, lateness, lost_slots, succession, summarise
from reltask.model.job import Outcome, State
from reltask.model.views import JobView, RunView

JOB = UUID("01890000-0000-7000-8000-000000000007")
START = datetime(2030, 1, 31, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def run(
    slot: int, fence: int, outcome: Outcome = Outcome.SUCCEEDED, *, worker: str = "alpha_1", **times: float
) -> RunView:
    return RunView(
        job_id=JOB,
        fence=fence,
        slot_no=slot,
        task="SampleTask",
        key=None,
        queue="default",
        worker=worker,
        attempt=1,
        nominal_time=at(times.get("due", slot)),
        due_at=at(times.get("due", slot)),
        claimed_at=at(times.get("claimed", slot)),
        finished_at=at(times.get("finished", slot + 0.5)),
        outcome=outcome,
        error=None,
        result=None,
        steps=None,
    )


def job(slot: int) -> JobView:
    unset: dict[str, Any] = dict.fromkeys(
        ["key", "schedule", "last_run_time", "max_attempts", "locked_by", "locked_at", "heartbeat_at", "progress"]
    )
    return JobView(
        id=JOB,
        task="SampleTask",
        queue="default",
        priority=5,
        state=State.READY,
        slot_no=slot,
        next_run_time=START,
        due_at=START,
        attempt=0,
        fence=9,
        lock_expires_at=None,
        isolated=False,
        created_at=START,
        steps=0,
        parent_id=None,
        **unset,
    )


def blow(slot: int, fence: int) -> Blow:
    return Blow(worker="alpha_1", slot_no=slot, fence=fence, struck_at=at(2), lock_ends_at=at(4))


KILLED = [run(1, 1), run(2, 2, Outcome.LOST), run(2, 3, worker="bravo_1", claimed=4.25), run(3, 4)]
STOPPED = [run(4, 5, Outcome.RELEASED, finished=2.5), run(4, 6, worker="bravo_1", claimed=2.75)]


def test_a_good_ledger() -> None:
    """Success means: each slot once, one takeover, one hand-over."""
    summary = summarise(job(5), KILLED + STOPPED, killed=blow(2, 2), stopped=blow(4, 5))
    assert (summary.completed, summary.duplicates, summary.lost, summary.is_good) == (4, 0, 0, True)
    assert summary.takeover is not None
    assert (summary.takeover.seconds_after_free, summary.takeover.seconds_after_blow) == (0.25, 2.25)
    assert summary.hand_over is not None
    assert (summary.hand_over.seconds_after_free, summary.hand_over.seconds_after_blow) == (0.25, 0.75)


def test_a_slot_completed_twice_is_a_duplicate() -> None:
    """Whichever worker completed it."""
    runs = [*KILLED, *STOPPED, run(3, 7, worker="bravo_1")]
    summary = summarise(job(5), runs, killed=blow(2, 2), stopped=blow(4, 5))
    assert (summary.duplicates, summary.is_good) == (1, False)


def test_a_slot_without_an_end_is_lost() -> None:
    """A slot that the job has passed must have ended in the ledger; the current one need not."""
    assert lost_slots(job(4), [run(1, 1), run(3, 2)]) == [2]
    assert lost_slots(job(2), [run(1, 1), run(2, 2, Outcome.LOST)]) == []


def test_a_job_whose_row_is_gone_has_lost_its_next_slot() -> None:
    """A recurring job never ends."""
    assert lost_slots(None, [run(1, 1)]) == [2]


def test_a_kill_that_hit_no_run_is_no_success() -> None:
    """If the run had ended before the worker was killed, nothing was taken over."""
    assert succession(blow(2, 2), [run(2, 2)], Outcome.LOST) is None
    assert succession(blow(2, 2), [run(2, 2, Outcome.LOST)], Outcome.LOST) is None
    assert succession(None, KILLED, Outcome.LOST) is None


def test_lateness_is_that_of_the_first_claim() -> None:
    """A slot that was claimed again after a crash is not late because of it."""
    assert lateness([run(2, 3, claimed=9), run(2, 2, Outcome.LOST, claimed=2.5)]) == {2: 0.5}
