"""Declaring tasks: the decorator `@app.task` with its options, and `app.schedule`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from datetime import datetime
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar, overload

import msgspec

from reltask.model.backoff import Backoff, parse_backoff
from reltask.model.duration import Duration
from reltask.model.job import NewJob
from reltask.model.limit import Limit
from reltask.model.schedule import Missed, check_grace, make_schedule
from reltask.model.surroundings import Surroundings
from reltask.model.task import (
    Registry,
    TaskDefinition,
    TaskKind,
    TaskOptions,
    check_function,
    check_task_options,
    context_of,
    former_names,
    kind_of,
    length,
    refuse_unknown,
    unique_rule,
)
from reltask.producer.enqueue import Call, Enqueuer
from reltask.producer.schedules import Schedules
from reltask.producer.task import Task
from reltask.worker.child import ProcessContext
from reltask.worker.context import Context, SyncContext

P = ParamSpec("P")
R = TypeVar("R")
CONTEXTS: dict[TaskKind, type] = {
    TaskKind.ASYNC: Context,
    TaskKind.THREAD: SyncContext,
    TaskKind.PROCESS: ProcessContext,
}
_UNSET = msgspec.UNSET


class TaskDecorator:
    """The type of `@app.task(…)`: which parameters `enqueue` takes follows from the function's own."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Concatenate[Context, P], Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[SyncContext, P], R], /
    ) -> Task[P, Concatenate[SyncContext, P], R, R]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[ProcessContext, P], R], /
    ) -> Task[P, Concatenate[ProcessContext, P], R, R]: ...
    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, P, R, R]: ...
    def __call__(self, function: Any, /) -> Any:
        """Register the function."""
        return function


class Declaring:
    """How an app is given its tasks and schedules."""

    registry: Registry
    version: str | None
    surroundings: Surroundings
    _enqueuer: Enqueuer
    _schedules: Schedules

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> Task[P, Concatenate[Context, P], Coroutine[Any, Any, R], R]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[SyncContext, P], R], /
    ) -> Task[P, Concatenate[SyncContext, P], R, R]: ...
    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Task[P, P, Coroutine[Any, Any, R], R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, P, R, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 5,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        align: bool = False,
        after_finish: bool = False,
        missed: Missed = "once",
        missed_limit: int = 100,
        missed_grace: Duration = "1m",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration | None = None,
        max_attempts: int | msgspec.UnsetType | None = _UNSET,
        backoff: Duration | Backoff | None = None,
        timeout: Duration | None = None,
        lock_timeout: Duration | None = None,
        isolation: str | None = None,
        keep_arguments: bool | None = None,
        unique: bool | str | tuple[str, ...] = False,
        unique_for: Duration | None = None,
        unique_until: Literal["start"] | None = None,
        aliases: Iterable[str] = (),
        limit: Limit | Sequence[Limit] | None = None,
    ) -> TaskDecorator: ...
    def task(self, *functions: Any, **options: Any) -> Any:
        """Register a function as a task; with `every` or `cron` it also becomes a recurring job.

        The function stays callable as it is. `enqueue` has a worker call it. Its first parameter may ask for the
        context: `Context` in `async def`, `SyncContext` in `def`, `ProcessContext` with `isolation="process"`.
        """
        if functions:
            return self._register(*functions)
        return lambda decorated: self._register(decorated, **options)

    def schedule(
        self,
        what: Task[..., ..., Any, Any] | Call[Any],
        *,
        key: str | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        align: bool = False,
        after_finish: bool = False,
        missed: Missed = "once",
        missed_limit: int = 100,
        missed_grace: Duration = "1m",
        start: datetime | None = None,
        end: datetime | None = None,
        jitter: Duration | None = None,
    ) -> None:
        """Declare a recurring job of a task, or one more with another `key` and, by `task.call(…)`, other arguments."""
        rule = make_schedule(
            every=every,
            cron=cron,
            timezone=timezone,
            align=align,
            after_finish=after_finish,
            missed=missed,
            missed_limit=missed_limit,
            missed_grace=missed_grace,
            start=start,
            end=end,
            jitter=jitter,
        )
        self._schedules.add(what, key=key, rule=rule)

    def _register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = "default",
        priority: int = 5,
        max_attempts: int | msgspec.UnsetType | None = _UNSET,
        backoff: Duration | Backoff | None = None,
        timeout: Duration | None = None,
        lock_timeout: Duration | None = None,
        isolation: str | None = None,
        keep_arguments: bool | None = None,
        unique: bool | str | tuple[str, ...] = False,
        unique_for: Duration | None = None,
        unique_until: Literal["start"] | None = None,
        aliases: Iterable[str] = (),
        limit: Limit | Sequence[Limit] | None = None,
        **rhythm: Any,
    ) -> Task[..., ..., Any, Any]:
        check_function(function)
        refuse_unknown(function, rhythm)
        schedule = make_schedule(**rhythm)
        check_grace(schedule)
        options = TaskOptions(
            queue=queue,
            priority=priority,
            max_attempts=max_attempts,
            backoff=parse_backoff(backoff),
            timeout=length("timeout", timeout),
            lock_timeout=length("lock_timeout", lock_timeout),
            keep_arguments=keep_arguments,
            unique=unique_rule(function, unique, unique_for, unique_until),
        )
        kind = kind_of(function, isolation)
        definition = TaskDefinition(
            function,
            name=name or function.__name__,
            kind=kind,
            options=options,
            schedule=schedule,
            aliases=former_names(function, aliases),
            context=context_of(function, kind, CONTEXTS),
            limit=limit,
            surroundings=self.surroundings,
        )
        check_task_options(definition.name, options)
        self.registry.add(definition)
        if schedule is not None:
            self._schedules.add_own(definition)
        return Task(definition, self._enqueuer)

    def declarations(self) -> list[NewJob]:
        """The recurring jobs that the code declares."""
        return self._schedules.jobs(self.version)
