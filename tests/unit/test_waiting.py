"""Why a job is not running: one sentence for each reason, and what to do about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec.structs import replace

from reltask.model.durable import StepKind, StepState, StepView
from reltask.model.job import State
from reltask.model.limit import JobLimit
from reltask.model.overview import PauseSummary
from reltask.model.views import JobView, WorkerView
from reltask.model.waiting import why_waiting

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
JOB = JobView(
    id=UUID(int=1),
    task="send",
    key=None,
    queue="mail",
    priority=5,
    state=State.READY,
    schedule=None,
    slot_no=1,
    next_run_time=NOW - MINUTE,
    due_at=NOW - MINUTE,
    last_run_time=None,
    attempt=0,
    max_attempts=3,
    fence=0,
    locked_by=None,
    locked_at=None,
    heartbeat_at=None,
    lock_expires_at=None,
    progress=None,
    isolated=False,
    created_at=NOW - MINUTE,
    steps=0,
    parent_id=None,
)
WORKER = WorkerView(
    id="w",
    host="web-1",
    pid=7,
    version="0.1.0",
    app_version=None,
    queues=["mail"],
    tasks=["send"],
    concurrency=2,
    running=0,
    started_at=NOW,
    heartbeat_at=NOW,
    state="alive",
)
STEP = StepView(
    job_id=JOB.id,
    slot_no=1,
    name="approval",
    kind=StepKind.WAIT,
    state=StepState.WAITING,
    value=None,
    error=None,
    fingerprint="",
    attempt=1,
    fence=1,
    started_at=NOW,
    recorded_at=NOW,
    wake_at=None,
    signal=None,
    pending=0,
)


def sentences(job: JobView, workers: list[WorkerView] | None = None, **more: Any) -> list[str]:
    return [
        reason.text for reason in why_waiting(job, now=NOW, workers=[WORKER] if workers is None else workers, **more)
    ]


def paused(kind: str, name: str, reason: str | None = None) -> PauseSummary:
    return PauseSummary(kind, name, reason, "ada", 0)


SLEEPING = replace(JOB, state=State.SUSPENDED, due_at=NOW + 60 * MINUTE)
FULL = JobLimit("bank", 2, None, None, None, 2, 3, None)
SLOW = JobLimit("bank", None, 60, 60_000, 10, 0, 1, 0.2)


@pytest.mark.parametrize(
    ("job", "given", "text"),
    [
        (JOB, {}, "It is due, and a worker will claim it within moments."),
        (replace(JOB, state=State.PAUSED), {}, "It is paused."),
        (JOB, {"pauses": [paused("queue", "mail", "down")]}, 'Queue mail is paused by ada: "down".'),
        (JOB, {"pauses": [paused("task", "send")]}, "Task send is paused by ada."),
        (JOB, {"limits": [FULL]}, "Limit bank is full: 2 of 2 running, 3 jobs wait for it."),
        (JOB, {"limits": [SLOW]}, "Limit bank is full: 60/1m have started, 0.2 tokens left, 1 job waits for it."),
        (JOB, {"workers": []}, "No worker is alive."),
        (JOB, {"workers": [replace(WORKER, state="dead")]}, "No worker is alive."),
        (JOB, {"workers": [replace(WORKER, tasks=["other"])]}, "No live worker knows task send."),
        (
            JOB,
            {"workers": [replace(WORKER, queues=["other"])]},
            "No live worker that knows the task serves queue mail.",
        ),
        (JOB, {"workers": [replace(WORKER, running=2)]}, "All 2 places of its workers are taken."),
        (
            replace(JOB, isolated=True),
            {},
            "Its last runs lost their worker, so it runs alone: at most one such job per worker.",
        ),
        (replace(JOB, due_at=NOW + MINUTE), {}, "It is not due yet: due in 60 s."),
        (
            replace(JOB, due_at=NOW + MINUTE, attempt=1),
            {},
            "It failed, and waits for its next attempt: due in 60 s.",
        ),
        (
            SLEEPING,
            {"steps": [replace(STEP, kind=StepKind.SLEEP, name="nap", wake_at=NOW + MINUTE)]},
            "It sleeps until 2026-11-18 12:01:00 UTC (step nap).",
        ),
        (SLEEPING, {"steps": [replace(STEP, signal="approved")]}, "It waits for signal approved."),
        (
            SLEEPING,
            {"steps": [replace(STEP, signal="approved", wake_at=NOW + MINUTE)]},
            "It waits for signal approved until 2026-11-18 12:01:00 UTC.",
        ),
        (SLEEPING, {"steps": [replace(STEP, pending=2)]}, "It waits for 2 of its children (step approval)."),
        (replace(JOB, state=State.DEAD, attempt=3), {}, "It is dead: 3 of 3 attempts failed."),
        (
            replace(JOB, state=State.CLAIMED, locked_by="w", lock_expires_at=NOW - MINUTE),
            {},
            "Its lock expired 60 s ago: w has stopped answering.",
        ),
    ],
)
def test_each_reason_has_its_sentence(job: JobView, given: dict[str, Any], text: str) -> None:
    """One reason, and no other beside it."""
    assert sentences(job, **given) == [text]


def test_a_running_job_has_no_reason() -> None:
    """Its lock is valid: it runs."""
    assert sentences(replace(JOB, state=State.CLAIMED, locked_by="w", lock_expires_at=NOW + MINUTE)) == []


def test_all_reasons_are_named() -> None:
    """A job of a paused queue that no worker serves needs both: resuming the queue alone would not help."""
    assert sentences(JOB, workers=[], pauses=[paused("queue", "mail")]) == [
        "Queue mail is paused by ada.",
        "No worker is alive.",
    ]
