"""Django's `TaskResult` of a job, from its row and its ledger rows, read through the ORM.

row, unclaimed, not dead ──► READY        gone, last run succeeded ──► SUCCESSFUL
row, claimed ──────────────► RUNNING      dead, or cancelled ────────► FAILED
"""

from __future__ import annotations

import sys
import traceback
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import msgspec
from django.utils import timezone

from reltask.app import App
from reltask.integrations.django.bodies import CHANGED, in_test
from reltask.integrations.django.interface import (
    InvalidTask,
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from reltask.integrations.django.models import Job, Run
from reltask.integrations.django.project import app_of, database_of, declared
from reltask.integrations.django.times import as_django, made_at
from reltask.worker.base_context import BaseContext

_ENDED_WELL = "succeeded"
_FAILURES = ("failed", "lost", "abandoned", "cancelled", "discarded")
_FINISHED = (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)
_EXIT = "reltask.worker.bodies.BodyExit"
_CAUSED = "\nThe above exception was the direct cause of the following exception:\n"


class Rows(NamedTuple):
    """A job's row, None when it has ended, and its ledger rows, oldest first."""

    job: Any
    runs: list[Any]


def starting(app: App, alias: str, task: Any, given: tuple[Any, dict[str, Any]], ctx: BaseContext) -> TaskResult:
    """The result at the start of a run, with what came before it."""
    rows = _rows(app, alias, ctx.job_id)
    before = [run for run in rows.runs if run.worker is not None]
    began = timezone.now()
    return TaskResult(
        task=_as_enqueued(task, rows),
        id=str(ctx.job_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=made_at(ctx.job_id),
        started_at=before[0].claimed_at if before else began,
        finished_at=None,
        last_attempted_at=began,
        args=list(given[0]),
        kwargs=given[1],
        backend=alias,
        errors=[_recorded(run) for run in before if run.outcome in _FAILURES],
        worker_ids=[*(run.worker for run in before), ctx.worker],
    )


def read_result(alias: str, result_id: str) -> TaskResult:
    """The result as the database has it."""
    try:
        job_id = UUID(str(result_id))
    except ValueError:
        raise TaskResultDoesNotExist(result_id) from None
    rows = _rows(app_of(alias), alias, job_id)
    job, runs = rows
    if job is None and not runs:
        raise TaskResultDoesNotExist(result_id)
    begun = [run for run in runs if run.worker is not None]
    claimed = [run.claimed_at for run in begun]
    if job is not None and job.locked_by is not None:
        claimed.append(job.locked_at)
    given: Any = runs[-1].args if job is None else job.args
    status = _status(job, runs)
    result = TaskResult(
        task=_as_enqueued(_task(alias, (job or runs[-1]).task), rows),
        id=str(job_id),
        status=status,
        enqueued_at=made_at(job_id),
        started_at=claimed[0] if claimed else None,
        finished_at=runs[-1].finished_at if status in _FINISHED and runs else None,
        last_attempted_at=claimed[-1] if claimed else None,
        args=(given or {}).get("args", []),
        kwargs=(given or {}).get("kwargs", {}),
        backend=alias,
        errors=[_recorded(run) for run in begun if run.outcome in _FAILURES],
        worker_ids=[run.worker for run in begun] + ([job.locked_by] if job is not None and job.locked_by else []),
    )
    if status == TaskResultStatus.SUCCESSFUL:
        object.__setattr__(result, "_return_value", runs[-1].result)
    return result


def error_of(error: BaseException) -> TaskError:
    """What Django keeps of an exception."""
    kind = type(error)
    return TaskError(
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}",
        traceback="".join(traceback.format_exception(error)),
    )


def _status(job: Any, runs: list[Any]) -> Any:
    if job is not None:
        if job.dead_at is not None:
            return TaskResultStatus.FAILED
        return TaskResultStatus.RUNNING if job.locked_by is not None else TaskResultStatus.READY
    return TaskResultStatus.SUCCESSFUL if runs[-1].outcome == _ENDED_WELL else TaskResultStatus.FAILED


def _rows(app: App, alias: str, job_id: UUID) -> Rows:
    if in_test(app):
        return _rows_of_kit(app, job_id)
    database = database_of(alias)
    job = Job.objects.using(database).filter(pk=job_id).first()
    return Rows(job, list(Run.objects.using(database).filter(job_id=job_id).order_by("fence")))


class _KitRow:
    """A row of a TestKit's own database, with the attributes of the models."""

    def __init__(self, view: Any, payload: Any, **more: Any) -> None:
        given = {**msgspec.structs.asdict(view), **more}
        vars(self).update({name: as_django(it) if isinstance(it, datetime) else it for name, it in given.items()})
        self.args = payload and payload.args and msgspec.json.decode(payload.args)
        self.headers = payload and payload.headers and msgspec.json.decode(payload.headers)


def _rows_of_kit(app: App, job_id: UUID) -> Rows:
    ask = app._client.private  # noqa: SLF001 - as the kit reads it
    handle, payload = app.job(job_id), ask(lambda store: store.read_payload(job_id)).result()
    runs: list[Any] = [
        _KitRow(run, payload, result=run.result and msgspec.json.decode(run.result), outcome=run.outcome.value)
        for run in sorted(handle.runs_sync(), key=lambda run: run.fence)
    ]
    view = handle.view_sync()
    if view is None:
        return Rows(None, runs)
    return Rows(_KitRow(view, payload, dead_at=runs[-1].finished_at if view.state == "dead" else None), runs)


def _recorded(run: Any) -> TaskError:
    """A failure of the ledger. The line after the last frame names the exception.

    Django imports the path when it is asked for the class: only modules that are imported already are named.
    """
    text = run.error or run.outcome
    if f"\n{_EXIT}: " in text:  # a worker lives on after `sys.exit()`: what the task raised came before
        text = text.rpartition(_CAUSED)[0]
    lines = text.strip().splitlines()
    frames = [number for number, line in enumerate(lines) if line.startswith('  File "')]
    below = lines[frames[-1] + 1 :] if frames else lines
    named = next((line for line in below if not line.startswith(" ")), "")
    module, _, kind = named.split(":")[0].strip().rpartition(".")
    module = module or "builtins"
    found = getattr(sys.modules.get(module), kind, None) if kind else None
    known = isinstance(found, type) and issubclass(found, BaseException)
    return TaskError(exception_class_path=f"{module}.{kind}" if known else "builtins.Exception", traceback=text)


def _task(alias: str, path: str) -> Any:
    task = declared(alias, path)
    if task is None:
        raise TaskResultDoesNotExist(f"This project has no task {path}.")
    return task


def _as_enqueued(task: Any, rows: Rows) -> Any:
    """The task with the queue, the priority and the time that it was enqueued with."""
    row = rows.job or (rows.runs[-1] if rows.runs else None)
    if row is None:
        return task
    changed = (row.headers or {}).get(CHANGED) or {}
    after = changed.get("run_after")
    try:
        return task.using(
            queue_name=row.queue,
            priority=changed.get("priority"),
            run_after=datetime.fromisoformat(after) if after else None,
        )
    except InvalidTask:  # the settings of today no longer have its queue
        return task
