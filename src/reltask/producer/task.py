"""A decorated function: still callable, and can be enqueued."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar

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
R = TypeVar("R")


class Producer(Generic[P]):
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

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """A call with these arguments, checked: for `app.enqueue_many` and `app.schedule`."""
        if self._connection is not None:
            raise UsageError(
                "A call that is enqueued with others has no connection of its own.",
                remedy="Write app.enqueue_many(calls, connection=…).",
            )
        return self._enqueuer.check(self.definition, args, kwargs, self._options)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job]:
        """Have a worker call the function with these arguments."""
        call = self._enqueuer.check(self.definition, args, kwargs, self._options)
        return _first(self._enqueuer.enqueue([call], self._connection, name="enqueue"))

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job:
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
        connection: Any = None,
    ) -> Producer[P]:
        """The same task with other options for the jobs enqueued through the result.

        With `connection`, your own connection or session with its open transaction, the jobs exist
        when you commit, and never if you roll back. Workers find them when they next look, or after
        `app.notify()`.
        """
        given = JobOptions(
            queue=queue,
            priority=priority,
            key=key,
            at=at,
            delay=_length("delay", delay),
            schedule=make_schedule(every=every, cron=cron, timezone=timezone, align=align),
            max_attempts=max_attempts,
            lock_timeout=_length("lock_timeout", lock_timeout),
        )
        options = self._options.with_given(given)
        check_job_options(options)
        return Producer(self.definition, self._enqueuer, options, connection or self._connection)


class Task(Producer[P], Generic[P, Q, R]):
    """A registered function. Calling it calls the function; `enqueue` has a worker call it."""

    def __init__(self, definition: TaskDefinition, enqueuer: Enqueuer) -> None:
        super().__init__(definition, enqueuer, JobOptions())
        functools.update_wrapper(self, definition.function)

    @property
    def function(self) -> Callable[Q, R]:
        """The function itself."""
        return self.definition.function

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.definition)


async def _first(inserting: Coroutine[Any, Any, list[Job]]) -> Job:
    return (await inserting)[0]


def _length(name: str, value: Duration | None) -> timedelta | None:
    try:
        return None if value is None else parse_duration(value, name=name)
    except ValueError as error:
        raise UsageError(str(error)) from None
