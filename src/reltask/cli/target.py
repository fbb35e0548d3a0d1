"""Which app, and which database, a command is about.

reltask status app:app           the app's own settings
reltask status --database URL    no app needed
RELTASK_APP=app:app              for every command of a shell
RELTASK_DATABASE_URL, a file     the settings, as everywhere
"""

from __future__ import annotations

import difflib
import functools
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import click

from reltask.app import App
from reltask.cli.runner import failed
from reltask.errors import ConfigurationError, ReltaskError
from reltask.model.settings import LARGEST
from reltask.stores.sqlite.connections import database_path

Command = Callable[..., int | None]

_NOWHERE = ConfigurationError(
    "Neither an app nor a database is named.",
    remedy="Name an app (reltask status app:app, or RELTASK_APP), or a database (--database, or RELTASK_DATABASE_URL).",
)


# ── Options that commands share ──────────────────────────────────────────────────────────────────────────────────────

COUNT = click.IntRange(1, LARGEST)
"""The type of `--limit`."""
_CONFIG = click.option(
    "--config", metavar="FILE", help="The settings file; otherwise reltask.toml or appsettings.json."
)
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
_DATABASE = click.option("--database", metavar="URL", help="The database, without a password, instead of an app.")
_APP = click.option("--app", "reference", metavar="MODULE:app", help="The app whose database is meant.")
_APP_ARGUMENT = click.argument("reference", metavar="[MODULE:app]", required=False)


def app_command(function: Command) -> Command:
    """A command that needs an app: it gets one, by argument or RELTASK_APP."""

    @functools.wraps(function)
    def command(*, reference: str | None, config: str | None, **options: object) -> int | None:
        app = load_app(reference or os.environ.get("RELTASK_APP"))
        app.configure(config=config)
        return function(app, **options)

    return _APP_ARGUMENT(_CONFIG(_DEBUG(command)))


def database_command(function: Command, *, make_file: bool = False) -> Command:
    """A command that needs a database: it gets an app that leads there, which does not wait for it if it is away."""

    @functools.wraps(function)
    def command(*, reference: str | None, database: str | None, config: str | None, **options: object) -> int | None:
        app = find_app(reference, database=database, config=config)
        if not make_file:
            require_file(app.url)
        try:
            return function(app, **options)
        finally:
            app.close()

    return _DATABASE(_CONFIG(_JSON(_DEBUG(command))))


def about_all(function: Command) -> Command:
    """A database command about everything: the app may simply follow its name."""
    return _APP_ARGUMENT(database_command(function))


def about_some(function: Command) -> Command:
    """A database command with arguments of its own: the app is an option."""
    return _APP(database_command(function))


def about_schema(function: Command) -> Command:
    """A database command that may come before the database."""
    return _APP_ARGUMENT(database_command(function, make_file=True))


# ── Finding them ─────────────────────────────────────────────────────────────────────────────────────────────────────


def find_app(reference: str | None, *, database: str | None = None, config: str | None = None) -> App:
    """The named app, or one without tasks that only knows the database."""
    if reference is None and database is None:
        reference = os.environ.get("RELTASK_APP")
    app = load_app(reference) if reference else App()
    app.configure(config=config, database__url=database, database__retry_attempts=0)
    if not reference and app.settings.database.url is None:
        raise _NOWHERE
    return app


def require_file(url: str) -> None:
    """Looking must not make an empty SQLite file where there was none."""
    if url.startswith("sqlite:") and not Path(database_path(url)).exists():
        raise ConfigurationError(
            f"There is no database {url} yet.", remedy="Start a worker, enqueue a job or run: reltask migrate"
        )


def load_app(reference: str | None) -> App:
    """Import `MODULE:app`, or call `MODULE:create_app()`."""
    if not reference:
        raise ConfigurationError("No app is named.", remedy="Write reltask worker app:app, or set RELTASK_APP.")
    module_name, _, name = reference.partition(":")
    if not name or not module_name:
        stem = module_name.removesuffix(".py").replace(os.sep, ".")
        raise ConfigurationError(
            f"{reference!r} names no app.", remedy=f"Write MODULE:app, such as {stem or 'app'}:app."
        )
    if os.getcwd() not in sys.path:  # noqa: PTH109 - sys.path holds texts
        sys.path.insert(0, os.getcwd())  # noqa: PTH109
    app = _attribute(_import(module_name), name)
    if not isinstance(app, App):
        raise ConfigurationError(f"{reference} is no reltask.App but {type(app).__name__}.")
    for module in app.imports:
        _import(module)
    return app


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ReltaskError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise ConfigurationError(f"There is no module {error.name!r}.", remedy=_other_module(name)) from error
        raise failed(f"Importing {name!r}", error) from error


def _other_module(name: str) -> str:
    here = sorted(
        {path.stem for path in Path.cwd().glob("*.py")}
        | {path.parent.name for path in Path.cwd().glob("*/__init__.py")}
    )
    near = difflib.get_close_matches(name.removesuffix(".py"), here, n=1)
    return (
        f"Did you mean {near[0]}?"
        if near
        else "Modules are looked for in this directory and where Python is installed."
    )


def _attribute(module: ModuleType, name: str) -> object:
    attribute = getattr(module, name.removesuffix("()"), None)
    if attribute is None:
        apps = [other for other, value in vars(module).items() if isinstance(value, App)]
        remedy = f"Did you mean {module.__name__}:{apps[0]}?" if apps else f"{module.__name__} has no App at its top."
        raise ConfigurationError(f"Module {module.__name__} has no {name!r}.", remedy=remedy)
    if not name.endswith("()"):
        return attribute
    if not callable(attribute):
        raise ConfigurationError(f"{module.__name__}:{name} is not a function.", remedy="Leave the () out.")
    try:
        return attribute()
    except ReltaskError:
        raise
    except Exception as error:
        raise failed(f"Calling {module.__name__}:{name}", error) from error
