"""Flask: each run of a task has the application's context.

web = Flask(__name__)
init_app(web, app)      # before the worker starts: at import, where child processes find it, too
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

from reltask.app import App
from reltask.errors import UsageError
from reltask.worker.base_context import BaseContext


class Flask(Protocol):
    """What is used of a `flask.Flask`, which need not be installed."""

    extensions: dict[str, Any]

    def app_context(self) -> AbstractContextManager[Any]:
        """A new application context."""
        ...


def init_app(web: Flask, app: App) -> None:
    """Put the application context of `web` around each run: `current_app`, `g` and extensions work in tasks.

    It is the outermost middleware, so that the app's own may use it. `web.extensions["reltask"]` is the app.
    """
    if "reltask" in web.extensions:
        raise UsageError("This Flask application has a reltask app already.", remedy="Call init_app once.")
    web.extensions["reltask"] = app

    def application_context(_: BaseContext) -> AbstractContextManager[object]:
        return web.app_context()

    app.surroundings.enclose(application_context)
