"""What every program of checks needs: Django, its tasks interface, a worker, and the report that the test reads."""

from __future__ import annotations

import asyncio
import json
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import django

django.setup()

from reltask.integrations.django import create_app  # noqa: E402 - after setup, as Django demands
from reltask.testing import drain  # noqa: E402

if django.VERSION >= (6, 0):
    from django.tasks import default_task_backend, task, task_backends
    from django.tasks.exceptions import InvalidTask, InvalidTaskBackend, TaskResultDoesNotExist, TaskResultMismatch
else:
    from django_tasks import default_task_backend, task, task_backends
    from django_tasks.exceptions import InvalidTaskBackendError as InvalidTaskBackend
    from django_tasks.exceptions import InvalidTaskError as InvalidTask
    from django_tasks.exceptions import TaskResultDoesNotExist, TaskResultMismatch

__all__ = [
    "InvalidTask",
    "InvalidTaskBackend",
    "TaskResultDoesNotExist",
    "TaskResultMismatch",
    "default_task_backend",
    "refused",
    "report",
    "run",
    "task",
    "task_backends",
]


def run() -> None:
    """A worker until nothing is due."""
    asyncio.run(drain(create_app()))


@contextmanager
def refused(kind: type[Exception], words: str = "") -> Iterator[None]:
    try:
        yield
    except kind as error:
        if words not in str(error):
            raise AssertionError(f"{error} does not say {words!r}") from error
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def report(program: dict[str, Any]) -> None:
    """Run the checks of a program; print what failed."""
    checks: dict[str, Callable[[], None]] = {
        name: thing for name, thing in program.items() if name.startswith("check_")
    }
    failed = {}
    for name, check in checks.items():
        try:
            check()
        except Exception:  # noqa: BLE001 - reported by the test
            failed[name] = traceback.format_exc()
    print(json.dumps({"run": len(checks), "failed": failed, "django": django.__version__}))  # noqa: T201 - read by the test
    create_app().close()
