"""The backend: how Django's `Task.enqueue` and `get_result` reach reltask."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async
from django.core import checks
from django.db import connections, transaction
from django.utils.timezone import now

from reltask.errors import ConfigurationError, ReltaskError
from reltask.integrations.django.bodies import CHANGED, rank
from reltask.integrations.django.interface import (
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultStatus,
    normalize_json,
    task_backends,
    task_enqueued,
)
from reltask.integrations.django.project import app_of, database_of, database_url, declare, declared
from reltask.integrations.django.times import as_reltask, made_at

OPTIONS = ("database", "imports", "settings", "version")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReltaskTask(Task):
    """A task with what Django's interface does not have: retries, timeouts and schedules.

    The options are those of `@app.task`. A recurring task takes no arguments.
    """

    max_attempts: int | None = None
    backoff: str | None = None
    timeout: str | None = None
    lock_timeout: str | None = None
    every: str | None = None
    cron: str | None = None
    timezone: str | None = None
    missed: str | None = None

    @property
    def reltask(self) -> Mapping[str, Any]:
        """The options that reltask adds."""
        names = ("max_attempts", "backoff", "timeout", "lock_timeout", "every", "cron", "timezone", "missed")
        return {name: getattr(self, name) for name in names}

    def using(self, *, run_after: datetime | timedelta | None = None, **changes: Any) -> ReltaskTask:
        """As Django's; a timedelta counts from now."""
        at = now() + run_after if isinstance(run_after, timedelta) else run_after
        changed: ReltaskTask = Task.using(self, run_after=at, **changes)
        return changed


def task(function: Callable[..., Any] | None = None, *, backend: str = "default", **options: Any) -> Any:
    """Django's `@task`, which takes reltask's options on every version of Django: that of 6.0 takes only its own."""
    if "run_after" in options:
        raise TypeError("run_after is not for declarations. Write: task.using(run_after=…).enqueue(…)")

    given = {"priority": 0, "queue_name": "default", "run_after": None, **options}

    def declare_it(function: Callable[..., Any]) -> Any:
        return task_backends[backend].task_class(func=function, backend=backend, **given)

    return declare_it if function is None else declare_it(function)


class Backend(BaseTaskBackend):
    """TASKS = {"default": {"BACKEND": "reltask.integrations.django.Backend"}}.

    OPTIONS: `database` (an alias of DATABASES), `imports` (modules with tasks, beside the `tasks`
    module of each application), `settings` (reltask's own, by their dotted names), `version`.
    """

    task_class = ReltaskTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: Any) -> None:
        """Refuse what cannot run, when it is declared; remember what can."""
        super().validate_task(task)
        try:
            declare(self.alias, task)
        except ReltaskError as error:
            raise InvalidTask(str(error)) from error

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> TaskResult:
        """Have a worker call the function. Inside `atomic` the job exists when the transaction commits."""
        self.validate_task(task)
        app, connection = app_of(self.alias), connections[database_of(self.alias)]
        given = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        options = {"queue": task.queue_name, "priority": rank(task.priority), "at": as_reltask(task.run_after)}
        options["headers"] = _changed(task, declared(self.alias, task.module_path))
        if connection.in_atomic_block:
            job = app.get_task(task.module_path).using(**options, connection=connection).enqueue_sync(**given)
            transaction.on_commit(app.notify_sync, using=connection.alias, robust=True)
        else:
            job = app.get_task(task.module_path).using(**options).enqueue_sync(**given)
        result = TaskResult(
            task=task,
            id=str(job.id),
            status=TaskResultStatus.READY,
            enqueued_at=made_at(job.id),
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=given["args"],
            kwargs=given["kwargs"],
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> TaskResult:
        """`enqueue` for asynchronous code."""
        return await sync_to_async(self.enqueue)(task, args, kwargs)

    def get_result(self, result_id: str) -> TaskResult:
        """How far a task has come; TaskResultDoesNotExist if neither the table nor the ledger knows it."""
        from reltask.integrations.django.results import read_result  # noqa: PLC0415 - models need a complete registry

        return read_result(self.alias, result_id)

    def check(self, **_: Any) -> list[checks.CheckMessage]:
        """For `manage.py check`: the database is one that reltask can use, and its tables come with `migrate`."""
        from django.apps import apps  # noqa: PLC0415 - known when checks run

        found = []
        if not apps.is_installed("reltask.integrations.django"):
            found.append(
                checks.Error(
                    "reltask's tables and commands come with its Django application.",
                    hint='Add "reltask.integrations.django" to INSTALLED_APPS.',
                    id="reltask.E001",
                )
            )
        found += [
            checks.Error(
                f"TASKS[{self.alias!r}] has the option {name!r}, which reltask does not know.",
                hint=f"Known options: {', '.join(OPTIONS)}.",
                id="reltask.E003",
            )
            for name in self.options
            if name not in OPTIONS
        ]
        try:
            database_url(database_of(self.alias))
        except ConfigurationError as error:
            found.append(checks.Error(str(error), hint=error.remedy, id="reltask.E002"))
        return found


def _changed(task: Any, plain: Any) -> dict[str, Any] | None:
    """What `using` has changed, where a job's row has no place for it: for `get_result`."""
    if (task.priority, task.run_after) == (plain.priority, plain.run_after):
        return None
    return {CHANGED: {"priority": task.priority, "run_after": task.run_after and task.run_after.isoformat()}}
