"""reltask as the backend of Django's tasks: `django.tasks` of Django 6, or the package django-tasks on Django 5.2.

    TASKS = {"default": {"BACKEND": "reltask.integrations.django.Backend"}}
    INSTALLED_APPS = [..., "reltask.integrations.django"]

    @task ──► Backend.validate_task ──► the project's App knows the function by its dotted path
    enqueue ──► inside `atomic`: the ORM's own connection; the job exists when that commits
            └─► outside: a statement of its own
    manage.py reltask worker ──► claims, calls the function, sends Django's signals, records the result
    get_result ──► the rows of jobs and runs, read through the ORM

The database is Django's own (`OPTIONS["database"]` names another alias); its tables come with
`manage.py migrate`.
"""

from __future__ import annotations

from typing import Any

_HOMES = {
    "Backend": "backend",
    "ReltaskTask": "backend",
    "task": "backend",
    "Context": "bodies",
    "create_app": "project",
}


def __getattr__(name: str) -> Any:
    """Import a name when it is asked for: Django imports this package before its own settings are complete."""
    from importlib import import_module  # noqa: PLC0415 - this module is imported by every Django process

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
