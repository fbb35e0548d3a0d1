"""The checker of the cluster tests finds each kind of fault in a forged ledger."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

from reltask.model.job import Outcome, State
from reltask.model.views import JobView, RunView
from tests.cluster.checker import Hold, Slot, check
from tests.cluster.effects import Effect

START = datetime(2026, 1, 1, tzinfo=UTC)
JOB = uuid4()


def run(slot: int, fence: int, outcome: Outcome = Outcome.SUCCEEDED, job: UUID = JOB) -> RunView:
    moment = START + timedelta(seconds=fence)
    return RunView(
        job_id=job,
        fence=fence,
        slot_no=slot,
        task="tick",
        key=None,
        queue="default",
        worker="w",
        attempt=1,
        nominal_time=moment,
        due_at=moment,
        claimed_at=moment,
        finished_at=moment,
        outcome=outcome,
        error=None,
        result=None,
        steps=None,
    )


def row(slot: int, fence: int, locked_by: str | None = None) -> JobView:
    return JobView(
        id=JOB,
        task="tick",
        key=None,
        queue="default",
        priority=5,
        state=State.READY if locked_by is None else State.CLAIMED,
        schedule='{"every":"1s"}',
        slot_no=slot,
        next_run_time=START,
        due_at=START,
        last_run_time=None,
        attempt=0,
        max_attempts=None,
        fence=fence,
        locked_by=locked_by,
        locked_at=None,
        heartbeat_at=None,
        lock_expires_at=None,
        progress=None,
        isolated=False,
        created_at=START,
        steps=0,
        parent_id=None,
    )


def line(what: str, slot: int, fence: int, at: float = 0.0) -> Effect:
    return Effect(what, "tick", JOB, slot, fence, 1, "w", 1, at)


def body(slot: int, fence: int) -> list[Effect]:
    return [line("start", slot, fence), line("end", slot, fence)]


HEALTHY = [run(1, 1), run(2, 2, Outcome.LOST), run(2, 3), run(3, 4)]


def test_a_healthy_ledger_has_no_faults() -> None:
    """A lost run whose slot ended later is no fault; a running claim needs no ledger row."""
    effects = [*body(1, 1), line("start", 2, 2), *body(2, 3), *body(3, 4), line("start", 4, 5)]
    report = check(HEALTHY, [row(4, 5, locked_by="w")], effects)
    assert report.faults == {}
    assert report.overlapping == []
    assert (report.once, report.outcomes[Outcome.LOST], report.bodies[Slot(JOB, 2)]) == (3, 1, 2)


def test_a_slot_that_ended_twice_is_named() -> None:
    """Two ends of one slot are a fault, whatever their outcomes."""
    report = check([*HEALTHY, run(3, 5, Outcome.CANCELLED)], [row(4, 5)], [])
    assert report.faults == {"twice": [Slot(JOB, 3)]}
    assert report.once == 2


def test_a_slot_that_was_skipped_is_named() -> None:
    """The job is at slot 4, and slot 2 has only a lost run: it has no end."""
    report = check([run(1, 1), run(2, 2, Outcome.LOST), run(3, 3)], [row(4, 3)], [])
    assert report.faults == {"missing": [Slot(JOB, 2)]}


def test_a_one_off_that_left_without_an_end_is_named() -> None:
    """The row is gone, and the ledger has only a failure, or nothing."""
    other = uuid4()
    report = check([run(1, 1, Outcome.FAILED)], [], [], enqueued=[JOB, other])
    assert report.faults == {"missing": [Slot(JOB, 1)], "vanished": sorted([JOB, other])}


def test_a_claim_without_a_ledger_row_is_named() -> None:
    """Fence 2 was given out; the row is not held, and the ledger has no row for it."""
    assert check([run(1, 1), run(2, 3)], [row(3, 3)], []).faults == {"fence_gaps": [Hold(JOB, 2)]}
    assert check([run(1, 1)], [row(2, 2)], []).faults == {"fence_gaps": [Hold(JOB, 2)]}
    assert check([run(1, 1)], [row(2, 2, locked_by="w")], []).faults == {}


def test_a_body_that_starts_twice_under_one_claim_is_named() -> None:
    """A run has one body, and a body has a claim."""
    report = check([run(1, 1)], [row(2, 1)], [*body(1, 1), *body(1, 1), *body(1, 9)])
    assert report.faults == {"repeated": [Hold(JOB, 1)], "unclaimed": [Hold(JOB, 9)]}


def test_bodies_of_one_job_that_overlap_are_named() -> None:
    """The second began before the first ended.

    A body without an end was killed, and overlaps with none.
    """
    effects = [line("start", 1, 1), line("start", 1, 2), line("stopped", 1, 1), line("end", 1, 2), *body(2, 3)]
    report = check([run(1, 1, Outcome.LOST), run(1, 2), run(2, 3)], [row(3, 3)], effects)
    assert report.overlapping == [(Hold(JOB, 1), Hold(JOB, 2))]
    killed = [line("start", 1, 1), *body(1, 2)]
    assert check([run(1, 1, Outcome.LOST), run(1, 2)], [row(2, 2)], killed).overlapping == []
