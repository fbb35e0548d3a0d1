"""Django's `TaskResult` of a job, from its row and its ledger rows, read through the ORM.

row, unclaimed, not dead ──► READY        gone, last run succeeded ──► SUCCESSFUL
row, claimed ──────────────► RUNNING      dead, or cancelled ────────► FAILED
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from traceback import format_exception
from typing import Any
from uuid import UUID

from django.utils import timezone

from reltask.integrations.django.interface import (
    TaskError,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
)
from reltask.integrations.django.models import Job, Run
from reltask.integrations.django.project import database_of, declared
from reltask.worker.base_context import BaseContext

_ENDED_WELL = "succeeded"
_FAILURES = ("failed", "lost", "abandoned", "cancelled", "discarded")


def starting(alias: str, task: Any, args: tuple[Any, ...], kwargs: dict[str, Any], ctx: BaseContext) -> TaskResult:
    """The result at the start of a run, with what came before it."""
    before = [run for run in _runs(alias, ctx.job_id) if run.worker is not None]
    began = timezone.now()
    return TaskResult(
        task=task,
        id=str(ctx.job_id),
        status=TaskResultStatus.RUNNING,
        enqueued_at=_made_at(ctx.job_id),
        started_at=before[0].claimed_at if before else began,
        finished_at=None,
        last_attempted_at=began,
        args=list(args),
        kwargs=kwargs,
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
    job = Job.objects.using(database_of(alias)).filter(pk=job_id).first()
    runs = _runs(alias, job_id)
    if job is None and not runs:
        raise TaskResultDoesNotExist(result_id)
    begun = [run for run in runs if run.worker is not None]
    claimed = [run.claimed_at for run in begun]
    if job is not None and job.locked_by is not None:
        claimed.append(job.locked_at)
    given: Any = runs[-1].args if job is None else job.args
    status = _status(job, runs)
    result = TaskResult(
        task=_task(alias, (job or runs[-1]).task),
        id=str(job_id),
        status=status,
        enqueued_at=_made_at(job_id),
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
        exception_class_path=f"{kind.__module__}.{kind.__qualname__}", traceback="".join(format_exception(error))
    )


_FINISHED = (TaskResultStatus.SUCCESSFUL, TaskResultStatus.FAILED)


def _status(job: Job | None, runs: list[Run]) -> Any:
    if job is not None:
        if job.dead_at is not None:
            return TaskResultStatus.FAILED
        return TaskResultStatus.RUNNING if job.locked_by is not None else TaskResultStatus.READY
    return TaskResultStatus.SUCCESSFUL if runs[-1].outcome == _ENDED_WELL else TaskResultStatus.FAILED


def _runs(alias: str, job_id: UUID) -> list[Run]:
    return list(Run.objects.using(database_of(alias)).filter(job_id=job_id).order_by("fence"))


def _recorded(run: Run) -> TaskError:
    """A failure of the ledger. Its last line names the exception.

    Django imports the path when it is asked for the class: only modules that are imported already are named.
    """
    text = run.error or run.outcome
    name = text.strip().splitlines()[-1].split(":")[0].strip()
    module, _, kind = name.rpartition(".")
    module = module or "builtins"
    found = getattr(sys.modules.get(module), kind, None)
    known = isinstance(found, type) and issubclass(found, BaseException)
    return TaskError(exception_class_path=f"{module}.{kind}" if known else "builtins.Exception", traceback=text)


def _task(alias: str, path: str) -> Any:
    task = declared(alias, path)
    if task is None:
        raise TaskResultDoesNotExist(f"This project has no task {path}.")
    return task


def _made_at(job_id: UUID) -> datetime:
    """When the job was enqueued: its id begins with the milliseconds since 1970."""
    return datetime.fromtimestamp((job_id.int >> 80) / 1000, UTC)
