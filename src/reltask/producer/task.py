"""A decorated function: still callable, and can be enqueued."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar, overload
from uuid import UUID

import msgspec

from reltask.errors import UsageError
from reltask.model.duration import Duration, parse_duration
from reltask.model.schedule import make_schedule
from reltask.model.task import TaskDefinition
from reltask.producer.enqueue import Call, Enqueuer
from reltask.producer.job import Job
from reltask.producer.options import JobOptions, check_job_options

P = ParamSpec("P")
"""The parameters of `enqueue`: the function's, without its context."""
Q = ParamSpec("Q")
"""The parameters of a direct call: the function's own."""
C = TypeVar("C")
"""What a direct call returns: of a coroutine function, the coroutine."""
R = TypeVar("R")
"""What the function returns in the end: the result of its jobs."""


class Producer(Generic[P, R]):
    """Something that can be enqueued: a task, or a task with options."""

    def __init__(
        self, definition: TaskDefinition, enqueuer: Enqueuer, options: JobOptions, connection: object = None
    ) -> None:
        self.definition = definition
        self._enqueuer = enqueuer
        self._options = options
        self._connection = connection

    @property
    def name(self) -> str:
        """The task's name, as stored in its jobs."""
        return self.definition.name

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """A call with these arguments, checked: for `app.enqueue_many` and `app.schedule`."""
        if self._connection is not None:
            raise UsageError(
                "A call that is enqueued with others has no connection of its own.",
                remedy="Write app.enqueue_many(calls, connection=…).",
            )
        return self._enqueuer.check(self.definition, args, kwargs, self._options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job[R]]:
        """Have a worker call the function with these arguments."""
        call = self._enqueuer.check(self.definition, args, kwargs, self._options)
        return self._enqueuer.enqueue_one(call, self._connection)

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job[R]:
        """`enqueue` for synchronous code."""
        call = self._enqueuer.check(self.definition, args, kwargs, self._options)
        return self._enqueuer.enqueue_sync([call], self._connection, name="enqueue")[0]

    def using(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        key: str | None = None,
        max_attempts: int | msgspec.UnsetType | None = msgspec.UNSET,
        lock_timeout: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        align: bool = False,
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration | None = None,
        replace: bool = False,
        headers: Mapping[str, Any] | None = None,
        connection: Any = None,
    ) -> Producer[P, R]:
        """The same task with other options for the jobs enqueued through the result.

        With `replace`, a job of a unique task that waits with the same key gets these arguments and this time.

        `headers` travel with the job beside its arguments, as JSON: `ctx.headers` has them.

        With `connection`, your own connection or session with its open transaction, the jobs exist
        when you commit, and never if you roll back. Workers find them when they next look, or after
        `app.notify()`.

        With `replace`, a schedule with this `key` that exists is changed to this one: when it runs, its arguments and
        its options. A run in progress ends first.
        """
        given = JobOptions(
            queue=queue,
            priority=priority,
            key=key,
            at=at,
            delay=_length("delay", delay),
            schedule=make_schedule(
                every=every, cron=cron, timezone=timezone, align=align, start=start, end=end, jitter=jitter
            ),
            max_attempts=max_attempts,
            lock_timeout=_length("lock_timeout", lock_timeout),
            replace=replace or None,
            headers=headers,
        )
        if replace and self.definition.options.unique is None and given.schedule is None:
            raise UsageError(
                "replace= changes a schedule, or a job of a unique task.",
                remedy='Write using(key="…", cron="…", replace=True), or @app.task(unique=True).',
            )
        options = self._options.with_given(given)
        check_job_options(options)
        return Producer(self.definition, self._enqueuer, options, connection or self._connection)


class Task(Producer[P, R], Generic[P, Q, C, R]):
    """A registered function. Calling it calls the function; `enqueue` has a worker call it."""

    def __init__(self, definition: TaskDefinition, enqueuer: Enqueuer) -> None:
        super().__init__(definition, enqueuer, JobOptions())
        functools.update_wrapper(self, definition.function)

    @property
    def function(self) -> Callable[Q, C]:
        """The function itself."""
        return self.definition.function

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> C:
        return self.function(*args, **kwargs)

    @overload
    def job(self, *, id: UUID) -> Job[R]: ...
    @overload
    def job(self, *, key: str) -> Job[R]: ...
    def job(self, *, id: UUID | None = None, key: str | None = None) -> Job[R]:  # noqa: A002 - the field's name
        """The handle of one of its jobs, by id or by key. Nothing is read until the handle is used."""
        if (id is None) == (key is None):
            raise UsageError("A job is named by its id or by its key.", remedy="Give one of them.")
        if key is not None:
            check_job_options(JobOptions(key=key))
        return self._enqueuer.access.job(id, self.definition, key)

    def __repr__(self) -> str:
        return repr(self.definition)


def _length(name: str, value: Duration | None) -> timedelta | None:
    try:
        return None if value is None else parse_duration(value, name=name)
    except ValueError as error:
        raise UsageError(str(error)) from None
