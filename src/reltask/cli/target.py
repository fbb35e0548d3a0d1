"""Which app and which database a command uses.

reltask status app:app           the app's own settings
reltask status --database URL    no app needed
RELTASK_APP=app:app              for every command in this shell
RELTASK_DATABASE_URL, a file     the usual settings
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
from reltask.stores.sqlite.url import database_path

Command = Callable[..., int | None]

_NO_TARGET = ConfigurationError(
    "No app and no database is named.",
    remedy="Name an app (reltask status app:app, or RELTASK_APP) or a database (--database, or RELTASK_DATABASE_URL).",
)


# ── Options that commands share ──────────────────────────────────────────────────────────────────────────────────────

COUNT = click.IntRange(1, LARGEST)
"""The type of `--limit`."""
_CONFIG = click.option("--config", metavar="FILE", help="The settings file. Default: reltask.toml or appsettings.json.")
_DEBUG = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
_JSON = click.option("--json", "as_json", is_flag=True, help="Write JSON.")
_DATABASE = click.option(
    "--database", metavar="URL", help="Use this database instead of an app's; no password in the URL."
)
_APP = click.option("--app", "reference", metavar="MODULE:app", help="Use the database of this app.")
_APP_ARGUMENT = click.argument("reference", metavar="[MODULE:app]", required=False)


class ListByDefault(click.Group):
    """`reltask jobs`, `reltask jobs app:app` and `reltask jobs --json` mean `reltask jobs list …`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        first = args[0] if args else ""
        is_target = not first or ":" in first or first.startswith("-")
        listed = is_target and first not in ctx.help_option_names
        return super().parse_args(ctx, ["list", *args] if listed else args)


class ListOfJobs(ListByDefault):
    """Also, `reltask jobs show app:app ID` means `reltask jobs show --app app:app ID`: an id has no colon."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        named = args[:1] != ["list"] and any(":" in word and word[0] != "-" for word in args[1:2])
        return super().parse_args(ctx, [args[0], "--app", *args[1:]] if named else args)


def app_command(function: Command) -> Command:
    """A command that needs an app: it receives the one named by its argument or RELTASK_APP."""

    @functools.wraps(function)
    def command(*, reference: str | None, config: str | None, **options: object) -> int | None:
        app = load_app(reference or os.environ.get("RELTASK_APP"))
        app.configure(config=config)
        return function(app, **options)

    return _APP_ARGUMENT(_CONFIG(_DEBUG(command)))


def database_command(function: Command, *, make_file: bool = False) -> Command:
    """A command that needs a database: it receives an app for it, which does not retry if the database is down."""

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


def with_app_argument(function: Command) -> Command:
    """A database command whose argument is the app."""
    return _APP_ARGUMENT(database_command(function))


def with_app_option(function: Command) -> Command:
    """A database command with arguments of its own: the app is an option."""
    return _APP(database_command(function))


def with_app_argument_or_new_file(function: Command) -> Command:
    """A database command whose argument is the app; the SQLite file need not exist yet."""
    return _APP_ARGUMENT(database_command(function, make_file=True))


# ── Finding them ─────────────────────────────────────────────────────────────────────────────────────────────────────


def find_app(reference: str | None, *, database: str | None = None, config: str | None = None) -> App:
    """The named app, or an app without tasks for the database."""
    if reference is None and database is None:
        reference = os.environ.get("RELTASK_APP")
    app = load_app(reference) if reference else App()
    app.configure(config=config, database__url=database, database__retry_attempts=0)
    if not reference and app.settings.database.url is None:
        raise _NO_TARGET
    return app


def require_file(url: str) -> None:
    """Refuse an SQLite file that does not exist: a command that only reads must not create an empty one."""
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
            f"{reference!r} does not name an app.", remedy=f"Write MODULE:app, such as {stem or 'app'}:app."
        )
    _search_here()
    app = _attribute(_import(module_name, wanted=name), name)
    if not isinstance(app, App):
        raise ConfigurationError(f"{reference} is not a reltask.App but {type(app).__name__}.")
    for module in app.imports:
        _import(module)
    return app


def _search_here() -> None:
    """Import from the working directory, too: first, or with Python's option -P last, after its own modules."""
    here = os.getcwd()  # noqa: PTH109 - sys.path holds texts
    if here not in sys.path:
        sys.path.insert(len(sys.path) if sys.flags.safe_path else 0, here)


def _import(name: str, *, wanted: str | None = None) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ReltaskError:
        raise
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            remedy = _other_module(name, wanted)
            raise ConfigurationError(f"There is no module {error.name!r}.", remedy=remedy) from error
        raise failed(f"Importing {name!r}", error) from error


def _other_module(name: str, wanted: str | None) -> str:
    here = sorted(
        {path.stem for path in Path.cwd().glob("*.py")}
        | {path.parent.name for path in Path.cwd().glob("*/__init__.py")}
    )
    near = difflib.get_close_matches(name.removesuffix(".py"), here, n=1)
    return (
        f"Did you mean {near[0]}{f':{wanted}' if wanted else ''}?"
        if near
        else "Modules are searched for in this directory and in the installed Python packages."
    )


def _attribute(module: ModuleType, name: str) -> object:
    attribute = getattr(module, name.removesuffix("()"), None)
    if attribute is None:
        apps = [other for other, value in vars(module).items() if isinstance(value, App)]
        remedy = f"Did you mean {module.__name__}:{apps[0]}?" if apps else f"{module.__name__} defines no App."
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
