"""What Django's tasks interface asks of a backend, checked inside a Django process: see test_django_interface.py.

Each function that begins with `check_` is one rule; the program prints a JSON object with the failures by name. The
rules are those that Django's and django-tasks' own tests have for backends.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import django
from django.conf import settings
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from reltask.integrations.django import Backend, ReltaskTask
from reltask.integrations.django import task as optional
from reltask.integrations.django.interface import (
    TaskContext,
    TaskResult,
    task_finished,
    task_started,
)
from tests.integrations.django_checking import (
    InvalidTask,
    InvalidTaskBackend,
    TaskResultDoesNotExist,
    TaskResultMismatch,
    default_task_backend,
    refused,
    run,
    task,
    task_backends,
)


@task()
def noop(*_args: Any, **_kwargs: Any) -> None: ...


@task
async def noop_async(*_args: Any, **_kwargs: Any) -> None: ...


@task()
def answer() -> int:
    return 42


@optional(max_attempts=1)
def fails() -> None:
    raise ValueError("two lines:\nthe second")


@optional(max_attempts=1)
def nested() -> None:
    raise ValueError(ValueError("inner"))


@optional(max_attempts=1)
def leaves() -> None:
    raise SystemExit("the task left")


@optional(max_attempts=1)
async def leaves_async() -> None:
    raise SystemExit("the task left")


@optional(max_attempts=1)
def interrupts() -> None:
    raise KeyboardInterrupt


@optional(max_attempts=1)
async def interrupts_async() -> None:
    raise KeyboardInterrupt


@optional(max_attempts=1)
def returns_a_function() -> Any:
    return lambda: True


@optional(max_attempts=2, backoff="1ms")
def always_fails() -> None:
    raise LookupError("again and again")


@task(takes_context=True)
def own_id(context: Any) -> str:
    return str(context.task_result.id)


@task(takes_context=True)
async def context_kind(context: Any, attempt: int) -> list[Any]:
    return [isinstance(context, TaskContext), context.attempt == attempt, context.task_result.status]


@task()
def usable() -> bool:
    connection.ensure_connection()
    return bool(connection.is_usable())


@contextmanager
def logged(name: str) -> Iterator[list[logging.LogRecord]]:
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = records.append  # type: ignore[assignment, method-assign]
    logger = logging.getLogger(name)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def fresh(result: TaskResult, given: Any, args: list[Any], kwargs: dict[str, Any]) -> None:
    """A result as `enqueue` returns it."""
    assert (result.status, result.is_finished, result.attempts, result.errors) == ("READY", False, 0, [])
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert result.enqueued_at is not None
    assert (result.task, result.args, result.kwargs) == (given, args, kwargs)
    with refused(ValueError, "not finished yet"):
        _ = result.return_value


def check_backend_is_the_one_of_the_settings() -> None:
    assert default_task_backend == task_backends["default"]
    assert isinstance(task_backends["default"], Backend)
    assert (default_task_backend.alias, default_task_backend.options) == ("default", {})
    assert isinstance(noop, ReltaskTask)
    assert isinstance(noop_async, ReltaskTask)


def check_enqueued_and_run() -> None:
    for each in (noop, noop_async):
        result = each.enqueue(1, two=3)
        fresh(result, each, [1], {"two": 3})
        run()
        result.refresh()
        assert (result.status, result.return_value, result.attempts) == ("SUCCESSFUL", None, 1)
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert result.last_attempted_at == result.started_at


def check_enqueued_from_a_coroutine() -> None:
    async def place() -> list[TaskResult]:
        return [await noop.aenqueue(), await noop_async.aenqueue()]

    for each, result in zip((noop, noop_async), asyncio.run(place()), strict=True):
        fresh(result, each, [], {})
    run()


def check_result_read_again_is_equal() -> None:
    for result in (noop.enqueue(1), noop.using(priority=7, queue_name="mail").enqueue(two=2)):
        assert default_task_backend.get_result(result.id) == result
        assert asyncio.run(default_task_backend.aget_result(result.id)) == result
        assert noop.get_result(result.id) == result
        before = dataclasses.asdict(result)
        result.refresh()
        asyncio.run(result.arefresh())
        assert dataclasses.asdict(result) == before
    run()
    ended = noop.get_result(result.id)
    assert (ended.task.priority, ended.task.queue_name, ended.kwargs) == (7, "mail", {"two": 2})


def check_result_keeps_its_time() -> None:
    at = timezone.now() + timedelta(days=1)
    result = noop.using(run_after=at).enqueue()
    run()
    assert noop.get_result(result.id).task.run_after == at
    assert noop.get_result(result.id).status == "READY"


def check_missing_results() -> None:
    for missing in ("123", "0" * 32):
        with refused(TaskResultDoesNotExist):
            default_task_backend.get_result(missing)
        with refused(TaskResultDoesNotExist):
            asyncio.run(noop.aget_result(missing))
    other = noop_async.enqueue()
    with refused(TaskResultMismatch):
        noop.get_result(other.id)
    with refused(TaskResultMismatch):
        asyncio.run(noop.aget_result(other.id))
    run()


def check_failures() -> None:
    kinds = ((fails, ValueError), (nested, ValueError), (leaves, SystemExit), (leaves_async, SystemExit))
    for each, kind in (*kinds, (returns_a_function, TypeError)):
        with logged("django.tasks" if django.VERSION >= (6, 0) else "django_tasks") as records:
            result = each.enqueue()
            run()
        assert [record.levelno for record in records] == [logging.DEBUG, logging.INFO, logging.ERROR], each
        result.refresh()
        assert (result.status, result.is_finished, result.attempts) == ("FAILED", True, 1), (each, result)
        assert result.enqueued_at <= result.started_at <= result.finished_at
        assert [error.exception_class for error in result.errors] == [kind], (each, result.errors)
        with refused(ValueError, "failed"):
            _ = result.return_value
        if kind is SystemExit:
            assert result.errors[0].traceback.endswith("SystemExit: the task left\n"), result.errors[0].traceback


def check_keyboard_interrupt_ends_no_worker() -> None:
    seen: list[str] = []

    def note(task_result: TaskResult, **_: Any) -> None:
        seen.append(f"{task_result.status} {task_result.errors[-1].exception_class.__name__}")

    task_finished.connect(note)
    try:
        for each in (interrupts, interrupts_async):
            result = each.enqueue()
            run()
            result.refresh()
            assert result.status == "FAILED"
            assert result.errors[0].exception_class is KeyboardInterrupt
    finally:
        task_finished.disconnect(note)
    assert seen == ["FAILED KeyboardInterrupt"] * 2, seen


def check_finished_is_sent_once_however_often_it_is_tried() -> None:
    seen: list[str] = []

    def note(sender: Any, task_result: TaskResult, **_: Any) -> None:
        assert sender is Backend
        seen.append(f"{task_result.status} {task_result.attempts}")

    task_started.connect(note)
    task_finished.connect(note)
    try:
        result = always_fails.enqueue()
        while not result.is_finished:
            run()
            result.refresh()
    finally:
        task_started.disconnect(note)
        task_finished.disconnect(note)
    assert seen == ["RUNNING 1", "RUNNING 2", "FAILED 2"], seen
    assert [error.exception_class for error in result.errors] == [LookupError] * 2


def check_logs_of_a_success() -> None:
    with logged("django.tasks" if django.VERSION >= (6, 0) else "django_tasks") as records:
        result = noop.enqueue()
        run()
    lines = [record.getMessage() for record in records]
    assert ["enqueued" in lines[0], "state=RUNNING" in lines[1], "state=SUCCESSFUL" in lines[2]] == [True] * 3, lines
    assert all(result.id in line and "None" not in line for line in lines), lines


def check_context() -> None:
    result, kind = own_id.enqueue(), context_kind.enqueue(1)
    run()
    result.refresh()
    kind.refresh()
    assert result.return_value == result.id
    assert kind.return_value == [True, True, "RUNNING"]


def check_arguments_are_json() -> None:
    with refused(TypeError):
        noop.enqueue(datetime.now(tz=timezone.get_current_timezone()))
    with refused(TypeError):
        asyncio.run(noop.aenqueue(object()))


def check_using() -> None:
    now = timezone.now()
    changed = noop.using(run_after=now).using(priority=10, queue_name="mail")
    assert (changed.run_after, changed.priority, changed.queue_name) == (now, 10, "mail")
    assert (noop.run_after, noop.priority, noop.queue_name) == (None, 0, "default")
    assert noop.using() == noop
    assert noop.using() is not noop
    with refused(InvalidTaskBackend):
        noop.using(backend="unknown")
    for priority in (-101, 101, 3.1):
        with refused(InvalidTask, "whole number between -100 and 100"):
            noop.using(priority=priority)
    with refused(InvalidTask, "aware"):
        noop.using(run_after=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the point
    with refused(InvalidTask, "nowhere"):
        noop.using(queue_name="nowhere")


def check_declarations() -> None:
    for wrong in (any, lambda: None):
        with refused(InvalidTask, "module level"):
            task()(wrong)
    with refused(InvalidTask, "context"):
        task(takes_context=True)(answer.func)
    with refused(TypeError):
        task(unknown=1)(answer.func)
    with refused(TypeError):
        task(run_after=timezone.now())(answer.func)
    for each in (optional,) if django.VERSION[:2] == (6, 0) else (task, optional):
        custom = each(priority=10, queue_name="mail", max_attempts=3, timeout="10s")(answer.func)
        assert (custom.priority, custom.queue_name, custom.max_attempts, custom.timeout) == (10, "mail", 3, "10s")
    with refused(TypeError):
        optional(run_after=timezone.now())(answer.func)
    assert optional(answer.func) == answer
    assert (noop.name, noop.module_path) == ("noop", f"{__name__}.noop")


def check_calls_without_a_worker() -> None:
    assert (answer.call(), asyncio.run(answer.acall())) == (42, 42)
    assert (noop_async.call(), asyncio.run(noop_async.acall())) == (None, None)


def check_validated_again_when_it_is_enqueued() -> None:
    mail = noop.using(queue_name="mail")
    with override_settings(TASKS={"default": {**settings.TASKS["default"], "QUEUES": ["other"]}}):
        with refused(InvalidTask, "mail"):
            mail.enqueue()
        with refused(InvalidTask, "mail"):
            asyncio.run(mail.aenqueue())
    with override_settings(TASKS={"default": {**settings.TASKS["default"], "QUEUES": []}}):
        assert noop.using(queue_name="anything").queue_name == "anything"
    with override_settings(TASKS={}), refused(InvalidTaskBackend):
        noop.enqueue()


def check_result_of_a_queue_that_is_gone() -> None:
    result = noop.using(queue_name="mail").enqueue()
    with override_settings(TASKS={"default": {**settings.TASKS["default"], "QUEUES": ["default"]}}):
        assert noop.get_result(result.id).status == "READY"
    run()


def check_pickled() -> None:
    if not hasattr(ReltaskTask, "_reconstruct"):  # Django learned it after 6.0
        return
    assert pickle.loads(pickle.dumps(noop)) == noop
    result = noop.enqueue()
    assert pickle.loads(pickle.dumps(result)) == result
    run()


def check_enqueued_within_a_transaction() -> None:
    with transaction.atomic():
        result = noop.enqueue()
        assert result.enqueued_at is not None
        assert noop.get_result(result.id).status == "READY"
    run()
    assert noop.get_result(result.id).status == "SUCCESSFUL"


def check_system_checks() -> None:
    assert list(default_task_backend.check()) == []


def check_dead_connections_are_replaced() -> None:
    first = usable.enqueue()
    run()
    connection.close()
    second = usable.enqueue()
    run()
    assert [usable.get_result(each.id).return_value for each in (first, second)] == [True, True]
