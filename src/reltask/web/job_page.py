"""The page of one job: why it is not running, which actions it allows, and one timeline of all that happened to it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from reltask.logs import short_worker
from reltask.model.durable import ChildView, SignalView, StepKind, StepState, StepView, waits
from reltask.model.job import Outcome, State
from reltask.model.limit import JobLimit
from reltask.model.overview import Overview
from reltask.model.screens import Payload
from reltask.model.views import JobView, RunView, WorkerView
from reltask.model.waiting import Reason, why_waiting
from reltask.producer.shown import Shown
from reltask.stores.store import Store
from reltask.web.forms import read_id
from reltask.web.words import masked, plural, seconds

if TYPE_CHECKING:
    from reltask.web.dashboard import Dashboard

SHOWN_RUNS = 200
SHOWN_ROWS = 5
"""Runs whose rows the page prints."""


class Entry(Struct, frozen=True, kw_only=True):
    """One thing that happened."""

    at: datetime
    kind: str
    """enqueued, run, step, signal or child: its icon and its place."""
    state: str
    """A word that says how it ended; it has a colour and an icon."""
    title: str
    detail: str = ""
    until: datetime | None = None
    text: str = ""
    """A traceback or a value, folded away."""
    children: Sequence[ChildView] = ()
    """Of a step that started jobs."""
    fence: int | None = None


class JobFacts(Struct, frozen=True):
    """All that is known of one job, read in one go."""

    job: JobView | None
    runs: list[RunView]
    steps: list[StepView]
    signals: list[SignalView]
    children: list[ChildView]
    payload: Payload | None
    workers: list[WorkerView]
    limits: list[JobLimit]
    now: datetime


async def job(dashboard: Dashboard, request: Request) -> Response:
    """One job: why it is not running, and all that happened to it."""
    job_id = read_id(request.path_params["job_id"])
    if job_id is None:
        return dashboard.failure(request, 404, "This is not a job's id.", "An id looks like 0198c1f2-….")
    facts = await dashboard.reader.ask(lambda store: read_facts(store, job_id))
    if facts.job is None and not facts.runs:
        return dashboard.failure(
            request, 404, f"No job {job_id} is known.", "It may have ended long ago: the ledger is pruned."
        )
    snapshot = await dashboard.live.overview()
    show = dashboard.show_values
    slot_no = None if facts.job is None else facts.job.slot_no
    signals = sorted({step.signal for step in facts.steps if step.signal and waits(step, slot_no)})
    return dashboard.page(
        request,
        "job.html",
        facts=facts,
        job=facts.job,
        job_id=job_id,
        last=facts.runs[0] if facts.runs else None,
        now=facts.now,
        reasons=reasons(facts, snapshot),
        timeline=timeline(facts, show_values=show),
        error=last_error(facts),
        signals_wanted=signals,
        same=dashboard.commands.job(facts.job, job_id, signals, facts.now),
        arguments=arguments(dashboard, facts.payload),
        headers=masked(facts.payload.headers, shown_in_full=show) if facts.payload and facts.payload.headers else "",
        progress=masked(facts.job.progress, shown_in_full=show) if facts.job and facts.job.progress else "",
        rows=sql_rows(facts, known_runs(dashboard, facts.runs) if show else [], show_values=show),
    )


async def read_facts(store: Store, job_id: UUID) -> JobFacts:
    """Everything about one job, over one connection."""
    found = await store.read_job(job_id)
    durable = found is None or found.steps or found.state is State.SUSPENDED
    return JobFacts(
        job=found,
        runs=await store.list_runs(job_id=job_id, limit=SHOWN_RUNS),
        steps=await store.read_steps(job_id) if durable else [],
        signals=await store.list_signals(job_id),
        children=await store.list_children(job_id) if durable else [],
        payload=await store.read_payload(job_id),
        workers=await store.list_workers() if found is not None else [],
        limits=await store.read_job_limits(job_id) if found is not None else [],
        now=await store.read_now(),
    )


def reasons(facts: JobFacts, snapshot: Overview) -> list[Reason]:
    """Why it is not running; nothing for a job that has ended."""
    if facts.job is None:
        return []
    return why_waiting(
        facts.job,
        now=facts.now,
        workers=facts.workers,
        steps=facts.steps,
        pauses=snapshot.pauses,
        limits=facts.limits,
    )


def arguments(dashboard: Dashboard, payload: Payload | None) -> str:
    """What it was given; what its task's types hide stays hidden from every viewer."""
    if payload is None or not dashboard.show_values:
        return masked(payload.args if payload else None, shown_in_full=False)
    shown = Shown(dashboard.app.registry).arguments(payload)
    return "not kept" if shown is None else msgspec.json.format(msgspec.json.encode(shown).decode(), indent=2)


def last_error(facts: JobFacts) -> RunView | None:
    """The newest run that left an error."""
    return next((run for run in facts.runs if run.error and run.outcome in (Outcome.FAILED, Outcome.LOST)), None)


def timeline(facts: JobFacts, *, show_values: bool) -> list[Entry]:
    """Everything that happened, the latest first."""
    entries = [_run(run) for run in facts.runs]
    slot_no = None if facts.job is None else facts.job.slot_no
    entries += [_step(step, slot_no, facts.children, show_values=show_values) for step in facts.steps]
    entries += [_signal(signal, show_values=show_values) for signal in facts.signals]
    if facts.job is not None:
        entries.append(Entry(at=facts.job.created_at, kind="enqueued", state="enqueued", title="Enqueued"))
        if facts.job.locked_at is not None:
            entries.append(_current(facts.job))
    return sorted(entries, key=lambda entry: (entry.until or entry.at, entry.fence or 0), reverse=True)


def _current(job: JobView) -> Entry:
    assert job.locked_at is not None
    return Entry(
        at=job.locked_at,
        kind="run",
        state="running",
        title=f"Run {job.fence} is running",
        detail=f"slot {job.slot_no}, attempt {job.attempt}, on {short_worker(job.locked_by or '')}",
        fence=job.fence,
    )


def _run(run: RunView) -> Entry:
    length = "" if run.claimed_at is None else f", {seconds((run.finished_at - run.claimed_at).total_seconds())}"
    worker = f", on {short_worker(run.worker)}" if run.worker else ""
    return Entry(
        at=run.claimed_at or run.finished_at,
        until=run.finished_at,
        kind="run",
        state=str(run.outcome),
        title=f"Run {run.fence} {run.outcome}",
        detail=f"slot {run.slot_no}, attempt {run.attempt}{length}{worker}",
        text=run.error or "",
        fence=run.fence,
    )


def _step(step: StepView, slot_no: int | None, children: Sequence[ChildView], *, show_values: bool) -> Entry:
    words = {StepKind.SLEEP: "Sleep", StepKind.WAIT: "Wait", StepKind.RUN: "Children", StepKind.START: "Start"}
    detail = f"attempt {step.attempt}" if step.attempt > 1 else ""
    state = str(step.state)
    if step.state is StepState.WAITING and not waits(step, slot_no):
        state = "over"
    elif step.state is StepState.WAITING:
        detail = f"waits for signal {step.signal}" if step.signal else detail
        detail = f"waits for {plural(step.pending, 'child job')}" if step.pending else detail
    value = "" if step.value is None else masked(step.value, shown_in_full=show_values)
    return Entry(
        at=step.started_at,
        until=step.recorded_at,
        kind="step",
        state=state,
        title=f"{words.get(step.kind, 'Step')} {step.name}: {state}",
        detail=detail,
        text=step.error or value,
        children=[child for child in children if child.step == step.name],
        fence=step.fence,
    )


def _signal(signal: SignalView, *, show_values: bool) -> Entry:
    used = f"consumed by step {signal.consumed_by}" if signal.consumed_by else "not consumed yet"
    return Entry(
        at=signal.sent_at,
        kind="signal",
        state="done" if signal.consumed_by else "waiting",
        title=f"Signal {signal.name} arrived",
        detail=used,
        text=masked(signal.value, shown_in_full=show_values),
    )


def known_runs(dashboard: Dashboard, runs: list[RunView]) -> list[RunView]:
    """Runs of a task whose types say which results are hidden; those are masked."""
    registry = dashboard.app.registry
    return [run for run in Shown(registry).runs(runs) if registry.find(run.task) is not None]


def sql_rows(facts: JobFacts, shown: list[RunView], *, show_values: bool) -> list[tuple[str, list[tuple[str, str]]]]:
    """The rows behind the page, column by column; results only of the runs in `shown`, which has them masked."""
    results = {run.fence: run.result for run in shown}
    found: list[tuple[str, list[tuple[str, str]]]] = []
    if facts.job is not None:
        found.append(("jobs", _columns(facts.job, set() if show_values else {"progress"})))
    for run in facts.runs[:SHOWN_ROWS]:
        hidden = {"error"} if run.fence in results else {"error", "result"}
        masked_run = replace(run, result=results.get(run.fence, run.result))
        found.append((f"runs, fence {run.fence}", _columns(masked_run, hidden)))
    return found


def _columns(row: Struct, hidden: set[str]) -> list[tuple[str, str]]:
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    return [
        (name, "null" if value is None else "•••" if name in hidden else str(value)) for name, value in values.items()
    ]
