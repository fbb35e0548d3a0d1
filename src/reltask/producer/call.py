"""What is to be enqueued, and what has been: values, and a handle on a job."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
from msgspec import Struct

from reltask.errors import ArgumentsError, DeclarationError, UsageError
from reltask.model.duration import format_duration
from reltask.model.job import NewJob
from reltask.model.pace import SHORTEST
from reltask.model.schedule import Schedule, encode
from reltask.model.task import ONE_OFF_ATTEMPTS, PRIORITIES, TaskDefinition, check_number, check_text
from reltask.model.views import JobView, RunView
from reltask.producer.client import Client

EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime(9000, 1, 1, tzinfo=UTC)
"""Times before it can be stored. In any zone, and with the longest duration added, they are times in Python, too: one
row that cannot be read would stop every worker."""
_LONGEST_NAME = 400


class Job:
    """A job that has been enqueued."""

    def __init__(self, client: Client, job_id: UUID, task: str, *, created: bool = True) -> None:
        self._client = client
        self.id = job_id
        self.task = task
        self.created = created
        """False: a job of this task with the same `key` exists already, and this is it."""

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


class JobOptions(Struct, frozen=True, kw_only=True):
    """What one call of `enqueue` changes about its job."""

    queue: str | None = None
    priority: int | None = None
    key: str | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    schedule: Schedule | None = None
    max_attempts: int | msgspec.UnsetType | None = msgspec.UNSET
    lock_timeout: timedelta | None = None

    def with_given(self, given: JobOptions) -> JobOptions:
        """These options, where `given` says nothing else."""
        said = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not None}
        if given.max_attempts is msgspec.UNSET:
            del said["max_attempts"]
        else:
            said["max_attempts"] = given.max_attempts
        return msgspec.structs.replace(self, **said)


class Call(Struct, frozen=True):
    """A task together with its arguments, checked, ready to be enqueued with others or to be scheduled."""

    task: TaskDefinition
    args: str
    options: JobOptions

    def job(self, job_id: UUID) -> NewJob:
        """The row to insert."""
        task, options = self.task, self.options
        return NewJob(
            id=job_id,
            task=task.name,
            args=self.args,
            queue=task.options.queue if options.queue is None else options.queue,
            priority=task.options.priority if options.priority is None else options.priority,
            key=options.key,
            schedule=None if options.schedule is None else encode(options.schedule),
            run_at=options.at,
            delay=options.delay,
            max_attempts=self._max_attempts(),
            lock_timeout=task.options.lock_timeout if options.lock_timeout is None else options.lock_timeout,
        )

    def key_of_schedule(self, key: str | None) -> str | None:
        """The key of a schedule of this call, which may name one itself; DeclarationError if it says when to run."""
        options = self.options
        said = {"delay=": options.delay, "at=": options.at, "every= or cron=": options.schedule}
        for name, value in said.items():
            if value is not None:
                raise DeclarationError(
                    f"Task {self.task.name}: {name} in a call that is scheduled would be without effect.",
                    remedy="Leave it out of using(…): app.schedule says when the job runs.",
                )
        if None not in (key, options.key) and key != options.key:
            raise DeclarationError(
                f"Task {self.task.name}: key={options.key!r} in the call, and key={key!r} for its schedule.",
                remedy="Give one of them.",
            )
        return options.key if key is None else key

    def _max_attempts(self) -> int | None:
        """This call's own limit, or the task's; a recurring job without one has none, a one-off has a few."""
        for chosen in (self.options.max_attempts, self.task.options.max_attempts):
            if chosen is not msgspec.UNSET:
                return chosen
        return ONE_OFF_ATTEMPTS if self.options.schedule is None else None


def check_job_options(options: JobOptions) -> None:
    """Refuse, in words, what could never run as meant."""
    check_text("queue", options.queue, UsageError)
    check_text("key", options.key, UsageError)
    check_number("priority", options.priority, UsageError)
    check_number("max_attempts", options.max_attempts, UsageError)
    if options.at is not None:
        _check_time(options.at)
    if options.at is not None and options.delay is not None:
        raise UsageError("Both at= and delay= are given.", remedy="Give one of them.")
    if options.queue == "":
        raise UsageError("queue= needs a name.", remedy="Leave it out for the task's own queue.")
    if options.priority is not None and options.priority not in PRIORITIES:
        raise UsageError(f"priority={options.priority} is outside 0 (first) to 9 (last).")
    if isinstance(options.max_attempts, int) and options.max_attempts < 1:
        raise UsageError(f"max_attempts={options.max_attempts} would never run it.", remedy="Write 1 or more, or None.")
    if options.lock_timeout is not None and options.lock_timeout < SHORTEST:
        raise UsageError(
            f"lock_timeout={format_duration(options.lock_timeout)} is too short for a lock.",
            remedy=f"Write at least {format_duration(SHORTEST)}.",
        )
    if options.schedule is not None and options.key is None:
        raise DeclarationError(
            "A schedule made at run time needs a key.", remedy='Write using(key="…", every=…), so that it exists once.'
        )
    if options.key is not None and not 0 < len(options.key) <= _LONGEST_NAME:
        raise ArgumentsError(f"key= must have 1 to {_LONGEST_NAME} characters.")


def _check_time(at: object) -> None:
    if not isinstance(at, datetime):
        raise UsageError(f"at={at!r} is no datetime.", remedy="Write datetime(..., tzinfo=timezone.utc).")
    if at.tzinfo is None:
        raise UsageError(f"at={at} has no time zone.", remedy="Write datetime(..., tzinfo=timezone.utc).")
    if not EARLIEST <= at < LATEST:
        raise UsageError(
            f"at={at} is outside the years {EARLIEST.year} to {LATEST.year - 1}.",
            remedy="Write a time that can come, or leave it out to run the job at once.",
        )
