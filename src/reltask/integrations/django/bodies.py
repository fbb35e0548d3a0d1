"""What a worker calls for a Django task: the function, with Django's context, signals and connections around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections
from django.utils.timezone import now

from reltask.app import App
from reltask.errors import UsageError
from reltask.integrations.django.interface import (
    TaskContext,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from reltask.worker.base_context import BaseContext
from reltask.worker.context import Context as AsyncContext
from reltask.worker.context import SyncContext

Given = tuple[Any, ...]
Named = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):
    """Django's context, and the run that reltask gave to the task."""

    reltask: SyncContext | AsyncContext
    database: str

    def atomic(self) -> AbstractContextManager[Any]:
        """What the ORM writes in this block commits together with the task's completion: exactly once, or not at all.

        For `def` tasks: the ORM has no asynchronous transactions.
        """
        if not isinstance(self.reltask, SyncContext):
            raise UsageError(
                "context.atomic() is for `def` tasks: the ORM has no asynchronous transactions.",
                remedy="Write `def` instead of `async def`, or: async with context.reltask.transaction() as tx.",
            )
        return self.reltask.transaction(connection=connections[self.database])


def register(app: App, alias: str, task: Any, database: str) -> None:
    """Let an App run a Django task, under its dotted path."""
    options = {name: value for name, value in task.reltask.items() if value is not None}
    make = _on_the_loop if iscoroutinefunction(task.func) else _in_a_thread
    body = make(alias, task, database)
    body.__name__ = body.__qualname__ = task.func.__name__
    body.__module__ = task.func.__module__
    app.task(name=task.module_path, queue=task.queue_name, priority=rank(task.priority), **options)(body)


def _on_the_loop(alias: str, task: Any, database: str) -> Callable[..., Any]:
    async def body(ctx: AsyncContext, args: Given = (), kwargs: Named | None = None) -> Any:
        result = await sync_to_async(_begin)(alias, task, args, kwargs or {}, ctx)
        given = [Context(task_result=result, reltask=ctx, database=database)] if task.takes_context else []
        try:
            value = normalize_json(await task.func(*given, *args, **kwargs or {}))
        except Exception as error:
            await sync_to_async(_finish)(result, error=error)
            raise
        await sync_to_async(_finish)(result, value)
        return value

    return body


def _in_a_thread(alias: str, task: Any, database: str) -> Callable[..., Any]:
    def body(ctx: SyncContext, args: Given = (), kwargs: Named | None = None) -> Any:
        result = _begin(alias, task, args, kwargs or {}, ctx)
        given = [Context(task_result=result, reltask=ctx, database=database)] if task.takes_context else []
        try:
            value = normalize_json(task.func(*given, *args, **kwargs or {}))
        except Exception as error:
            _finish(result, error=error)
            raise
        _finish(result, value)
        return value

    return body


def rank(priority: int) -> int:
    """Django's priority, -100 to 100 with the highest first, as reltask's, 9 to 0 with the lowest first."""
    return 5 - -(-priority * 5 // 100) if priority > 0 else 5 + -(priority * 4 // 100)


def _begin(alias: str, task: Any, args: Given, kwargs: Named, ctx: BaseContext) -> TaskResult:
    """Drop connections that have died, and announce the run."""
    from reltask.integrations.django.results import starting  # noqa: PLC0415 - models need a complete registry

    close_old_connections()
    result = starting(alias, task, args, kwargs, ctx)
    task_started.send(type(task.get_backend()), task_result=result)
    return result


def _finish(result: TaskResult, value: Any = None, *, error: Exception | None = None) -> None:
    """Announce the end, as Django's own backends do, and drop connections that have died."""
    from reltask.integrations.django.results import error_of  # noqa: PLC0415 - as above

    if error is not None:
        result.errors.append(error_of(error))
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "finished_at", now())
    object.__setattr__(result, "status", TaskResultStatus.SUCCESSFUL if error is None else TaskResultStatus.FAILED)
    task_finished.send(type(result.task.get_backend()), task_result=result)
    close_old_connections()
