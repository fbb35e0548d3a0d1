"""Litestar: a plugin with a worker or a producer, and the job that a path names as a dependency.

web = Litestar([order, receipt], plugins=[ReltaskPlugin(app)])

@get("/receipts/{job_id:uuid}", dependencies={"job": job_of(send_receipt)})
async def receipt(job: NamedDependency[Job[str]]) -> str: ...
"""

from __future__ import annotations

from typing import Any, TypeVar
from uuid import UUID

from litestar.config.app import AppConfig
from litestar.di import Provide
from litestar.exceptions import NotFoundException
from litestar.params import FromPath
from litestar.plugins import InitPlugin

from reltask.app import App
from reltask.integrations.asgi import lifespan
from reltask.integrations.lookup import find_job
from reltask.producer.job import Job
from reltask.producer.task import Task

R = TypeVar("R")


class ReltaskPlugin(InitPlugin):
    """A worker in each server process, or with `worker=False` connections for enqueueing only.

    It starts after the application's own lifespans and stops before them, so that tasks can use what
    they open. `app.state.reltask` is the app.
    """

    def __init__(self, app: App, *, worker: bool = True) -> None:
        self._app = app
        self._worker = worker

    def on_app_init(self, app_config: AppConfig) -> AppConfig:
        """Add the lifespan and the state."""
        app_config.lifespan.append(lifespan(self._app, worker=self._worker))
        app_config.state["reltask"] = self._app
        return app_config


def job_of(task: Task[..., Any, R, Any]) -> Provide:
    """A dependency: the job of `task` that the path parameter `job_id` names; status 404 if there is none.

    A job of another task is not found either, so that its result cannot be read here.
    """

    async def find(job_id: FromPath[UUID]) -> Job[Any]:
        job = await find_job(task, job_id)
        if job is None:
            raise NotFoundException("There is no such job.")
        return job

    return Provide(find)
