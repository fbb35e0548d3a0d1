"""The reltask App of a Django project: one for each alias of TASKS, made when it is first needed.

Django gives every thread a backend object of its own, so the App lives here, once per process. A
test runner renames databases after the tasks were declared: an App belongs to the URL that it was
made for, and another URL makes another App with the same tasks.
"""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any
from urllib.parse import quote, urlencode

from django.conf import settings
from django.db import connections
from django.utils.module_loading import autodiscover_modules

from reltask.app import App
from reltask.errors import ConfigurationError
from reltask.integrations.django.bodies import register

DEFAULT = "default"
_lock = threading.RLock()
_tasks: dict[str, dict[str, Any]] = {}
"""By alias of TASKS and dotted path of the function: the tasks as they were declared."""
_apps: dict[str, App] = {}
_urls: dict[str, str] = {}
"""By alias of TASKS: the URL that its App was made for. Within a TestKit the App itself is on another."""


def declare(alias: str, task: Any) -> None:
    """Remember a task; `task.using(…)` is the same task, so the first one counts."""
    with _lock:
        known = _tasks.setdefault(alias, {})
        if task.module_path not in known:
            known[task.module_path] = task
            if alias in _apps:
                register(_apps[alias], alias, task, database_of(alias))


def declared(alias: str, path: str) -> Any | None:
    """The task of this dotted path. A name from the database imports nothing: only declared tasks are found."""
    if path not in _tasks.get(alias, {}):
        import_tasks(alias)
    return _tasks.get(alias, {}).get(path)


def app_of(alias: str = DEFAULT) -> App:
    """The App of this alias, on the database that Django uses now."""
    url = database_url(database_of(alias))
    with _lock:
        app = _apps.get(alias)
        if app is None or _urls[alias] != url:
            if app is not None:
                app.close()
            options, _urls[alias] = dict(_options(alias)), url
            app = _apps[alias] = App(url, version=options.get("version"), settings=options.get("settings"))
            for task in list(_tasks.get(alias, {}).values()):
                register(app, alias, task, database_of(alias))
        return app


def create_app(alias: str = DEFAULT) -> App:
    """For a worker: the App with all tasks, those of every application's `tasks` module included."""
    import_tasks(alias)
    return app_of(alias)


def import_tasks(alias: str) -> None:
    """Import the `tasks` module of each application, and what OPTIONS["imports"] names."""
    autodiscover_modules("tasks")
    for module in _options(alias).get("imports", ()):
        import_module(module)


def database_of(alias: str) -> str:
    """The alias in DATABASES where the jobs of this alias of TASKS live."""
    return str(_options(alias).get("database", "default"))


def database_url(database: str) -> str:
    """The URL of one of Django's databases, as it is connected now."""
    connection = connections[database]
    found, vendor = connection.settings_dict, connection.vendor
    if vendor == "sqlite":
        return f"sqlite:///{found['NAME']}"
    scheme = {"postgresql": "postgresql", "microsoft": "mssql"}.get(vendor)
    if scheme is None:
        raise ConfigurationError(
            f"DATABASES[{database!r}] is {vendor}, which reltask does not use.",
            remedy="Use PostgreSQL, SQLite or SQL Server, or name another database in OPTIONS.",
        )
    user, password = quote(found.get("USER") or "", safe=""), quote(found.get("PASSWORD") or "", safe="")
    login = f"{user}:{password}@" if password else f"{user}@" if user else ""
    host, port = found.get("HOST") or "", found.get("PORT")
    query = {name: value for name, value in (found.get("OPTIONS") or {}).items() if name in _PASSED}
    if host.startswith("/"):
        query["host"], host = host, ""
    place = f"{host}:{port}" if port else host
    return f"{scheme}://{login}{place}/{quote(str(found['NAME']), safe='')}" + (f"?{urlencode(query)}" if query else "")


_PASSED = ("sslmode", "sslrootcert", "sslcert", "sslkey")


def _options(alias: str) -> dict[str, Any]:
    options: dict[str, Any] = settings.TASKS[alias].get("OPTIONS", {})
    return options
