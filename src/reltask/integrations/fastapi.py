"""FastAPI: the job that a path names, as a dependency. For the worker see `reltask.integrations.asgi`.

@web.get("/receipts/{job_id}")
async def receipt(job: Annotated[Job[str], Depends(job_of(send_receipt))]) -> str:
    return await job.result(timeout="10s")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

from fastapi import HTTPException

from reltask.integrations.lookup import find_job
from reltask.producer.job import Job
from reltask.producer.task import Task

R = TypeVar("R")


def job_of(task: Task[..., Any, R, Any]) -> Callable[[UUID], Awaitable[Job[R]]]:
    """A dependency: the job of `task` that the path parameter `job_id` names; status 404 if there is none.

    A job of another task is not found either, so that its result cannot be read here.
    """

    async def find(job_id: UUID) -> Job[R]:
        job = await find_job(task, job_id)
        if job is None:
            raise HTTPException(404, "There is no such job.")
        return job

    return find
