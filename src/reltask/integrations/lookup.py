"""The job that a request names, for the dependencies of FastAPI and Litestar."""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

from reltask.producer.job import Job
from reltask.producer.task import Task

R = TypeVar("R")


async def find_job(task: Task[..., Any, R, Any], job_id: UUID) -> Job[R] | None:
    """The job of this task with this id, waiting or ended; None if it is unknown or of another task.

    The row is read first: a one-off that ends in between has left it, and is in the ledger by then.
    """
    job = task.job(id=job_id)
    found = await job.view() or next(iter(await job.runs()), None)
    return job if found is not None and found.task in task.definition.names else None
