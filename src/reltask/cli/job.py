"""One job on the screen: its row, the timeline of its steps, its children, its signals and its last runs.

Values are left out, and arguments unless they are asked for: they may hold secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from reltask.cli.pauses import pause_text
from reltask.cli.runs import print_runs
from reltask.cli.show import first_line, print_fields, print_json, print_line, print_table, worker_text
from reltask.errors import UnknownJob
from reltask.model.control import PauseView
from reltask.model.durable import SignalView, StepState, StepView, waits
from reltask.model.job import State
from reltask.model.views import JobView, RunView
from reltask.producer.job import Job

SHOWN_RUNS = 5
STEPS = ["STEP", "KIND", "STATE", "ATTEMPT", "STARTED", "SECONDS", "WAKES", "RUN", "WORKER", "ERROR"]
CHILDREN = ["CHILD OF", "NUMBER", "ID", "TASK", "STATE"]
SIGNALS = ["SIGNAL", "ID", "SENT"]


def print_job(
    handle: Job[Any], pauses: Sequence[PauseView] = (), *, with_arguments: bool = False, as_json: bool
) -> None:
    """Everything about a job. One that is done is known by its runs; without any, UnknownJob."""
    job, runs = handle.view_sync(), handle.runs_sync()
    if job is None and not runs:
        raise UnknownJob(f"There is no job {handle.id}.", remedy="Its runs may have been pruned from the ledger.")
    fields = _of_runs(runs[0]) if job is None else msgspec.structs.asdict(job)
    if with_arguments:
        given = handle.arguments_sync()
        fields["arguments"] = (
            given if as_json else "(not kept)" if given is None else msgspec.json.encode(given).decode()
        )
    pauses = [pause for pause in pauses if job is not None and pause.covers(queue=job.queue, task=job.task)]
    workers = _workers(job, runs)
    steps, children, signals = handle.steps_sync(), handle.children_sync(), handle.signals_sync()
    if as_json:
        shown: dict[str, object] = {"steps": [_step(step, workers) for step in steps], "children": children}
        shown |= {"signals": list(map(_signal, signals)), "pauses": pauses}
        print_json({**fields, **shown, "runs": runs[:SHOWN_RUNS]})
        return
    for pause in pauses:
        print_line(pause_text(pause))
    print_fields([(name.replace("_", " "), value) for name, value in fields.items()])
    _print_part(STEPS, [_step_row(step, workers, None if job is None else job.slot_no) for step in steps])
    _print_part(CHILDREN, [(child.step, child.nth, child.job_id, child.task, child.state) for child in children])
    waiting = [signal for signal in signals if signal.consumed_by is None]
    _print_part(SIGNALS, [(signal.name, signal.id, signal.sent_at) for signal in waiting])
    print_line()
    print_runs(runs[:SHOWN_RUNS])


def _of_runs(last: RunView) -> dict[str, object]:
    """What the ledger knows of a job whose row is gone."""
    return {
        "id": last.job_id,
        "task": last.task,
        "key": last.key,
        "queue": last.queue,
        "state": State.GONE,
        "slot_no": last.slot_no,
    }


def _workers(job: JobView | None, runs: list[RunView]) -> dict[int, str | None]:
    """The worker of each run, by its fence."""
    workers = {run.fence: run.worker for run in runs}
    return workers if job is None or job.locked_by is None else {**workers, job.fence: job.locked_by}


def _step(step: StepView, workers: dict[int, str | None]) -> dict[str, object]:
    shown = {
        name: value for name, value in msgspec.structs.asdict(step).items() if name not in ("value", "fingerprint")
    }
    return {**shown, "worker": workers.get(step.fence)}


def _signal(signal: SignalView) -> dict[str, object]:
    return {name: value for name, value in msgspec.structs.asdict(signal).items() if name != "value"}


def _step_row(step: StepView, workers: dict[int, str | None], slot_no: int | None) -> list[object]:
    seconds, is_waiting = f"{(step.recorded_at - step.started_at).total_seconds():.3f}", waits(step, slot_no)
    return [
        step.name,
        step.kind,
        "over" if step.state is StepState.WAITING and not is_waiting else step.state,
        step.attempt,
        step.started_at,
        None if step.state is StepState.WAITING else seconds,
        step.wake_at if is_waiting else None,
        step.fence,
        worker_text(workers.get(step.fence)),
        first_line(step.error),
    ]


def _print_part(columns: list[str], rows: list[Any]) -> None:
    """A table of a durable function; nothing for a job that has none of it."""
    if rows:
        print_line()
        print_table(columns, rows, nothing="")
