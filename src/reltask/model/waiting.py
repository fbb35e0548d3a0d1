"""Why a job is not running: the question that every page of a job answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from shlex import quote

from msgspec import Struct

from reltask.model.durable import StepState, StepView
from reltask.model.job import LATEST, State
from reltask.model.limit import JobLimit
from reltask.model.overview import PauseSummary
from reltask.model.problems import duration
from reltask.model.views import JobView, WorkerView


class Reason(Struct, frozen=True):
    """One reason, and what to do about it; nothing to do: it is as it should be."""

    text: str
    remedy: str = ""


def why_waiting(
    job: JobView,
    *,
    now: datetime,
    workers: Sequence[WorkerView],
    steps: Sequence[StepView] = (),
    pauses: Sequence[PauseSummary] = (),
    limits: Sequence[JobLimit] = (),
) -> list[Reason]:
    """The reasons, the most important first; none if it is running."""
    if job.state is State.CLAIMED:
        return [] if (job.lock_expires_at or now) >= now else [_expired(job, now)]
    if job.state is State.DEAD:
        return [
            Reason(f"It is dead: {job.attempt} of {_attempts(job)} attempts failed.", "Fix the cause, then retry it.")
        ]
    found: list[Reason] = []
    if job.state is State.PAUSED:
        found.append(Reason("It is paused.", "Resume it."))
    found += [
        Reason(
            f"{pause.kind.capitalize()} {pause.name} is paused by {pause.by}{_because(pause)}.",
            f"Resume the {pause.kind}.",
        )
        for pause in pauses
        if pause.covers(queue=job.queue, task=job.task)
    ]
    found += _steps(steps, now) if job.state is State.SUSPENDED else []
    if job.due_at > now:
        found += [] if found and job.state is State.SUSPENDED else [_later(job, now)]
        return found
    full = [Reason(f"Limit {limit.full}.", _raise(limit)) for limit in limits if limit.full]
    return found + _unserved(job, workers) + full + _busy(job, workers, found + full)


def _raise(limit: JobLimit) -> str:
    """It goes on by itself; or the limit is raised at run time."""
    name = limit.key.partition(":")[0]
    change = f"reltask limits change {quote(name)} --running N --app MODULE:app"
    return f"It starts when there is room. To change the limit: {change}"


def _attempts(job: JobView) -> str:
    return "unlimited" if job.max_attempts is None else str(job.max_attempts)


def _because(pause: PauseSummary) -> str:
    return f': "{pause.reason}"' if pause.reason else ""


def _expired(job: JobView, now: datetime) -> Reason:
    age = duration(now - (job.lock_expires_at or now))
    return Reason(
        f"Its lock expired {age} ago: {job.locked_by} has stopped answering.",
        "A live worker takes it over at its next poll.",
    )


def _later(job: JobView, now: datetime) -> Reason:
    if job.due_at >= LATEST - timedelta(days=1):
        return Reason("It waits for a signal or for its children, without a time limit.")
    what = "It failed, and waits for its next attempt" if job.attempt else "It is not due yet"
    return Reason(
        f"{what}: due in {duration(job.due_at - now)}.", "Run it now, if it must not wait." if job.attempt else ""
    )


def _steps(steps: Sequence[StepView], now: datetime) -> list[Reason]:
    """What a durable function waits for."""
    found = []
    for step in steps:
        if step.state is not StepState.WAITING:
            continue
        until = "" if step.wake_at is None else f" until {step.wake_at:%Y-%m-%d %H:%M:%S} UTC"
        if step.signal is not None:
            found.append(Reason(f"It waits for signal {step.signal}{until}.", "Send the signal."))
        elif step.pending:
            found.append(Reason(f"It waits for {step.pending} of its children (step {step.name})."))
        elif step.wake_at is not None and step.wake_at > now:
            found.append(Reason(f"It sleeps{until} (step {step.name})."))
    return found


def _unserved(job: JobView, workers: Sequence[WorkerView]) -> list[Reason]:
    alive = [worker for worker in workers if worker.state == "alive"]
    if not alive:
        return [Reason("No worker is alive.", "Start one: reltask worker MODULE:app")]
    if not any(job.task in worker.tasks for worker in alive):
        return [Reason(f"No live worker knows task {job.task}.", "Deploy it, or keep the old name in aliases=.")]
    if not any(job.queue in worker.queues and job.task in worker.tasks for worker in alive):
        return [
            Reason(
                f"No live worker that knows the task serves queue {job.queue}.", f"Start one with --queues {job.queue}."
            )
        ]
    return []


def _busy(job: JobView, workers: Sequence[WorkerView], found: list[Reason]) -> list[Reason]:
    """Nothing else keeps it: it stands in line."""
    serving = [
        worker
        for worker in workers
        if worker.state == "alive" and job.queue in worker.queues and job.task in worker.tasks
    ]
    if found or not serving:
        return []
    if job.isolated:
        return [
            Reason(
                "Its last runs lost their worker, so it runs alone: at most one such job per worker.",
                "Find out why: see its last runs.",
            )
        ]
    if all(worker.running >= worker.concurrency for worker in serving):
        return [
            Reason(
                f"All {sum(worker.concurrency for worker in serving)} places of its workers are taken.",
                "Start more workers.",
            )
        ]
    return [Reason("It is due, and a worker will claim it within moments.")]
