"""The handle of a job: reads its row and its runs."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any
from uuid import UUID

from msgspec import Struct

from reltask.model.views import JobView, RunView
from reltask.producer.client import Client


class Job(Struct, frozen=True, eq=False):
    """A job that has been enqueued."""

    _client: Client
    id: UUID
    task: str
    created: bool = True
    """False: a job of this task with the same `key` exists already, and this is its handle."""

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task}>"

    def view(self) -> Coroutine[Any, Any, JobView | None]:
        """The job's row, or None once a one-off is done."""
        return self._client.run(lambda store: store.read_job(self.id), name="view")

    def view_sync(self) -> JobView | None:
        """`view` for synchronous code."""
        return self._client.run_sync(lambda store: store.read_job(self.id), name="view")

    def runs(self) -> Coroutine[Any, Any, list[RunView]]:
        """The job's runs that have ended, newest first."""
        return self._client.run(lambda store: store.list_runs(job_id=self.id), name="runs")

    def runs_sync(self) -> list[RunView]:
        """`runs` for synchronous code."""
        return self._client.run_sync(lambda store: store.list_runs(job_id=self.id), name="runs")
