"""What a worker calls for a Django task: the function, with Django's context, signals and connections around it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from inspect import iscoroutinefunction
from typing import Any

from asgiref.sync import sync_to_async
from django.db import close_old_connections, connections, transaction
from django.utils.timezone import now

from reltask.app import App
from reltask.errors import Again, Cancel, LockLost, Snooze, Stopped, UsageError
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
CHANGED = "django"
"""The header of a job whose task was changed by `using`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Context(TaskContext):
    """Django's context, and the run that reltask gave to the task."""

    reltask: SyncContext | AsyncContext
    database: str
    in_test: bool = False
    """Whether a TestKit runs the task."""

    def atomic(self) -> AbstractContextManager[Any]:
        """What the ORM writes in this block commits together with the task's completion: exactly once, or not at all.

        For `def` tasks: the ORM has no asynchronous transactions.
        """
        if not isinstance(self.reltask, SyncContext):
            raise UsageError(
                "context.atomic() is for `def` tasks: the ORM has no asynchronous transactions.",
                remedy="Write `def` instead of `async def`, or: async with context.reltask.transaction() as tx.",
            )
        if self.in_test:  # the kit's jobs are on a database of the test's own
            block: AbstractContextManager[Any] = transaction.atomic(using=self.database)
            return block
        return self.reltask.transaction(connection=connections[self.database])


def register(app: App, alias: str, task: Any, database: str) -> None:
    """Let an App run a Django task, under its dotted path."""
    options = {name: value for name, value in task.reltask.items() if value is not None}
    make = _on_the_loop if iscoroutinefunction(task.func) else _in_a_thread
    body = make(app, alias, task, database)
    body.__name__ = body.__qualname__ = task.func.__name__
    body.__module__ = task.func.__module__
    app.task(name=task.module_path, queue=task.queue_name, priority=rank(task.priority), **options)(body)


def _on_the_loop(app: App, alias: str, task: Any, database: str) -> Callable[..., Any]:
    async def body(ctx: AsyncContext, args: Given = (), kwargs: Named | None = None) -> Any:
        result = await sync_to_async(_begin)(app, alias, task, (args, kwargs or {}), ctx)
        context = Context(task_result=result, reltask=ctx, database=database, in_test=in_test(app))
        given = (context,) if task.takes_context else ()
        try:
            value = normalize_json(await task.func(*given, *args, **kwargs or {}))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            await sync_to_async(_fail)(result, error, ctx)
            raise
        await sync_to_async(_succeed)(result, value)
        return value

    return body


def _in_a_thread(app: App, alias: str, task: Any, database: str) -> Callable[..., Any]:
    def body(ctx: SyncContext, args: Given = (), kwargs: Named | None = None) -> Any:
        result = _begin(app, alias, task, (args, kwargs or {}), ctx)
        context = Context(task_result=result, reltask=ctx, database=database, in_test=in_test(app))
        given = (context,) if task.takes_context else ()
        try:
            value = normalize_json(task.func(*given, *args, **kwargs or {}))
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            _fail(result, error, ctx)
            raise
        else:
            _succeed(result, value)
        finally:
            close_old_connections()
        return value

    return body


def rank(priority: int) -> int:
    """Django's priority, -100 to 100 with the highest first, as reltask's, 9 to 0 with the lowest first."""
    return 5 - -(-priority * 5 // 100) if priority > 0 else 5 + -(priority * 4 // 100)


def in_test(app: App) -> bool:
    """Whether a TestKit has the app: then its jobs are not in Django's database."""
    return app._sender.ignores_connections  # noqa: SLF001 - the kit sets it


def _begin(app: App, alias: str, task: Any, given: tuple[Given, Named], ctx: BaseContext) -> TaskResult:
    """Drop connections that have died, and announce the run."""
    from reltask.integrations.django.results import starting  # noqa: PLC0415 - models need a complete registry

    close_old_connections()
    result = starting(app, alias, task, given, ctx)
    task_started.send(type(task.get_backend()), task_result=result)
    return result


def _succeed(result: TaskResult, value: Any) -> None:
    object.__setattr__(result, "_return_value", value)
    _finish(result, TaskResultStatus.SUCCESSFUL)


def _fail(result: TaskResult, error: BaseException, ctx: BaseContext) -> None:
    """Announce a failure that ends the task. One that will be tried again has not finished it."""
    from reltask.integrations.django.results import error_of  # noqa: PLC0415 - as above

    if _ends_the_task(error, ctx):
        result.errors.append(error_of(error))
        _finish(result, TaskResultStatus.FAILED)
    else:
        close_old_connections()


def _ends_the_task(error: BaseException, ctx: Any) -> bool:
    if isinstance(error, Snooze | Again | LockLost | Stopped):
        return False
    most = ctx._run.claim.max_attempts  # noqa: SLF001 - the context does not show it
    return isinstance(error, Cancel) or (most is not None and ctx.attempt >= most)


def _finish(result: TaskResult, status: Any) -> None:
    object.__setattr__(result, "finished_at", now())
    object.__setattr__(result, "status", status)
    task_finished.send(type(result.task.get_backend()), task_result=result)
    close_old_connections()
