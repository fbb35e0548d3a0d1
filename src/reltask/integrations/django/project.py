"""The reltask App of a Django project: one for each alias of TASKS, made when it is first needed.

Aliases on one database share their jobs: the App of each knows the tasks of all, so that one worker
runs them. Django gives every thread a backend object of its own, so the App lives here, once per process. A
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
from django.utils.module_loading import autodiscover_modules, import_string

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
            for app_alias, app in _apps.items():
                _join(app, app_alias)


def declared(alias: str, path: str) -> Any | None:
    """The task of this dotted path. A name from the database imports nothing: only declared tasks are found."""
    if path in _tasks.get(alias, {}):
        return _tasks[alias][path]
    import_tasks(alias)
    homes = [alias, *_beside(alias)]  # `using(backend=…)` may have been called in another process
    return next((_tasks[home][path] for home in homes if path in _tasks.get(home, {})), None)


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
            _join(app, alias)
        return app


def create_app(alias: str | None = None) -> App:
    """For a worker: the App with all tasks, those of every application's `tasks` module included."""
    alias = alias or main_alias()
    import_tasks(alias)
    return app_of(alias)


def import_tasks(alias: str) -> None:
    """Import the `tasks` module of each application, and what OPTIONS["imports"] names."""
    autodiscover_modules("tasks")
    for each in (alias, *_beside(alias)):
        for module in _options(each).get("imports", ()):
            import_module(module)


def aliases() -> list[str]:
    """The aliases of TASKS that reltask serves."""
    from reltask.integrations.django.backend import Backend  # noqa: PLC0415 - which imports this module

    given = getattr(settings, "TASKS", {})
    return [alias for alias, each in given.items() if issubclass(import_string(each["BACKEND"]), Backend)]


def main_alias() -> str:
    """The alias of the commands and the admin pages: "default", or else the first that reltask serves."""
    served = aliases()
    return DEFAULT if DEFAULT in served or not served else served[0]


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
    options: dict[str, Any] = getattr(settings, "TASKS", {}).get(alias, {}).get("OPTIONS", {})
    return options


def _beside(alias: str) -> list[str]:
    """The other aliases with the same database."""
    return [other for other in aliases() if other != alias and database_of(other) == database_of(alias)]


def _join(app: App, alias: str) -> None:
    """Let the App of this alias know the tasks and the queues of all aliases with its database."""
    for each in (alias, *_beside(alias)):
        app.registry.serve(settings.TASKS[each].get("QUEUES", ()))
        for path, task in list(_tasks.get(each, {}).items()):
            if path not in app.registry.tasks:
                register(app, each, task, database_of(each))
