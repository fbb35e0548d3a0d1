"""The part of the store interface that the dashboard needs: one verb per screen, each with its own `.sql` file.

No verb reads a whole table: counts stop at `MOST`, lists are pages with a cursor, and each list has its index. So a
screen costs the same with a thousand jobs and with a million.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Protocol
from uuid import UUID

from reltask.model.limit import JobLimit
from reltask.model.overview import MOST, Overview
from reltask.model.screens import (
    Action,
    Cursor,
    DeadLetter,
    ListedJob,
    ListedState,
    NewAction,
    Page,
    Payload,
    RunSample,
)
from reltask.model.views import JobView

PAGE = 50
"""Rows of a page, unless the caller says otherwise."""
ERROR_END = 400
"""Characters of an error that a list shows."""


class ScreenStore(Protocol):
    """What the dashboard reads, and the log of what operators did through it."""

    async def read_overview(self, *, most: int = MOST) -> Overview:
        """Jobs by queue and task, the fleet, leases, and the runs of the last hour, in one read.

        Jobs are counted up to `most`; where there are many queues and tasks, each up to its share of that.
        """
        ...

    async def page_jobs(
        self,
        state: ListedState,
        *,
        task: str | None = None,
        queue: str | None = None,
        after: Cursor | None = None,
        limit: int = PAGE,
    ) -> Page[ListedJob]:
        """One page of the jobs in one state."""
        ...

    async def find_jobs(self, key: str, *, limit: int = PAGE) -> list[JobView]:
        """The jobs with this key, of any task."""
        ...

    async def list_schedules(self, *, after: tuple[str, UUID] | None = None, limit: int = PAGE) -> list[JobView]:
        """Recurring jobs by task; `after` is the task and the id of the last one of the page before."""
        ...

    async def list_dead_errors(self, *, most: int = MOST, characters: int = ERROR_END) -> list[DeadLetter]:
        """The latest dead jobs, each with the end of its last error."""
        ...

    async def sample_runs(self, *, since: timedelta, limit: int = MOST) -> list[RunSample]:
        """The newest runs of the time `since` that workers have claimed: how long they took, how late they began."""
        ...

    async def read_payload(self, job_id: UUID) -> Payload | None:
        """What a job was given: of its row, or of the ledger row that ended it. None: neither knows it."""
        ...

    async def read_job_limits(self, job_id: UUID, *, most: int = MOST) -> list[JobLimit]:
        """The limits of a job, with what of each key is in use; waiting jobs are counted up to `most`."""
        ...

    async def record_action(self, action: NewAction) -> None:
        """Record what an operator is about to do. Idempotent: the id is the caller's."""
        ...

    async def end_action(self, action_id: UUID, *, outcome: str, changed: int) -> bool:
        """Record what became of it, if that is not recorded yet."""
        ...

    async def list_actions(self, *, after: tuple[datetime, UUID] | None = None, limit: int = PAGE) -> list[Action]:
        """What operators did, the latest first."""
        ...
