"""Merges the settings of all places into one value, and records where each was set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from reltask.config.fields import fields, nearest, sections
from reltask.config.sources import (
    Written,
    from_environment,
    from_json,
    from_mapping,
    from_toml,
    has_our_sections,
)
from reltask.config.values import read_value
from reltask.errors import SettingsError
from reltask.model.connection_url import holds_password
from reltask.model.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path  # its import costs more than all of this package

DEFAULT = "default"
IN_CODE = "argument"
DEFAULT_FILES = ("appsettings.json", "reltask.toml")

_PACE = ("worker.lock_timeout", "worker.heartbeat", "worker.beat_timeout", "worker.stop_grace", "worker.abandon_after")
_TEXT = r'"(?:\\.|[^"\\])*"'
_TEXT_OR_COMMENT = rf"(?s){_TEXT}|//[^\r\n]*|/\*.*?\*/"
_TEXT_OR_LAST_COMMA = rf"(?s){_TEXT}|,(?=\s*[}}\]])"


class Loaded(Struct, frozen=True):
    """The settings of this process, and where each was set."""

    settings: Settings
    origins: dict[str, str]


class Given(NamedTuple):
    """A value that was set somewhere."""

    value: Any
    origin: str
    rank: int
    """The place's precedence; a higher one wins."""


class SettingsFile(NamedTuple):
    """The file to read."""

    path: Path
    shown: str
    explicit: bool
    """Named by --config or RELTASK_CONFIG, not found by default."""


def load_settings(
    *,
    file: str | Path | None = None,
    environ: Mapping[str, str] | None = None,
    arguments: Mapping[str, object] | None = None,
    cli: Mapping[str, object] | None = None,
    directory: Path | None = None,
) -> Loaded:
    """Read the settings file and the environment, and merge everything.

    `arguments` (given in code) and `cli` have dotted keys, like `worker.poll`. None and UNSET mean: not given.
    `directory` replaces the working directory.
    """
    if environ is None:
        import os  # noqa: PLC0415 - here, beside the other input and output

        environ = os.environ
    chosen = _choose_file(file, environ, directory)
    places = (
        _read_file(chosen) if chosen else (),
        from_environment(environ),
        from_mapping(arguments or {}, IN_CODE, public=False),
        from_mapping(cli or {}, "command line", public=True),
    )
    given: dict[str, Given] = {}
    for rank, place in enumerate(places):
        given |= _read_place(place, rank)
    return _assemble(given)


# ── The file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _choose_file(file: str | Path | None, environ: Mapping[str, str], directory: Path | None) -> SettingsFile | None:
    from pathlib import Path  # noqa: PLC0415 - see above

    base = directory or Path()
    named = file or environ.get("RELTASK_CONFIG")
    if named:
        return SettingsFile(base / named, str(named), explicit=True)
    present = [name for name in DEFAULT_FILES if (base / name).is_file()]
    if len(present) > 1:
        raise SettingsError(
            f"Both {' and '.join(present)} are in {directory or 'this directory'}.",
            remedy="Keep one, or name the one to use with --config or RELTASK_CONFIG.",
        )
    return next((SettingsFile(base / name, f"{directory or '.'}/{name}", explicit=False) for name in present), None)


def _read_file(chosen: SettingsFile) -> Iterable[Written]:
    origin = f"file {chosen.shown}"
    kind = chosen.path.suffix.lower()
    if kind not in (".json", ".toml"):
        raise SettingsError(
            f"The settings {origin} is neither JSON nor TOML.", remedy="Give it a name that ends with .json or .toml."
        )
    try:
        text = _read_text(chosen, origin)
        content = _parse_toml(text) if kind == ".toml" else _parse_json(text)
    except OSError as error:
        raise SettingsError(f"The settings {origin} cannot be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        # `from None`: the cause carries the whole text, which may hold secrets.
        raise SettingsError(f"The settings {origin} is not valid {kind[1:].upper()}: {_reason(error)}.") from None
    if kind == ".toml":
        return from_toml(content, origin)
    if chosen.explicit and not has_our_sections(content):
        raise SettingsError(
            f"The settings {origin} has no section for reltask.",
            remedy='Write "Reltask", "TaskExecution" or "ConnectionStrings" at its top level.',
        )
    return from_json(content, origin)


def _read_text(chosen: SettingsFile, origin: str) -> str:
    """The text of a file that only this user and root could write, or that others could by this user's choice.

    The opened file is checked, so that it cannot be exchanged in between; and the link that led to it, if it was one.
    A group may write it: the owner chose the group, and on many systems each user has one alone.
    """
    import os  # noqa: PLC0415 - most processes have no file
    import stat  # noqa: PLC0415

    with chosen.path.open(encoding="utf-8-sig") as file:
        if os.name == "posix":
            found = os.fstat(file.fileno())
            for owner, option in ((found.st_uid, ""), (chosen.path.lstat().st_uid, "-h ")):
                if owner not in (0, os.geteuid()):
                    raise SettingsError(
                        f"The settings {origin} belongs to another user (uid {owner}), who could name any database.",
                        remedy=f"If you trust it, run: chown {option}{os.geteuid()} {chosen.path.absolute()}",
                    )
            if found.st_mode & stat.S_IWOTH:
                raise SettingsError(
                    f"The settings {origin} cannot be trusted: every user of this machine may change it.",
                    remedy=f"Check what it says. Then run: chmod o-w {chosen.path.absolute()}",
                )
        return file.read()


def _parse_toml(text: str) -> Mapping[str, object]:
    import tomllib  # noqa: PLC0415 - most processes have no file

    return tomllib.loads(text)


def _parse_json(text: str) -> Mapping[str, object]:
    """JSON as .NET reads it: with comments and trailing commas. They become blanks, to keep error positions."""
    import json  # noqa: PLC0415 - most processes have no file

    for pattern in (_TEXT_OR_COMMENT, _TEXT_OR_LAST_COMMA):
        text = re.sub(pattern, _blank_unless_text, text)
    content = json.loads(text)
    if not isinstance(content, dict):
        raise ValueError("its top level is not an object")  # noqa: TRY004 - a fault of the text, like the parser's own
    return content


def _blank_unless_text(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else re.sub(r"[^\r\n]", " ", found[0])


def _reason(error: ValueError | RecursionError) -> str:
    """The parser's message; that of a UnicodeDecodeError would quote the text."""
    if isinstance(error, RecursionError):
        return "it is nested too deep"
    return "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error).rstrip(".")


# ── Putting together ─────────────────────────────────────────────────────────────────────────────────────────────────


def _read_place(place: Iterable[Written], rank: int) -> dict[str, Given]:
    """The values of one place. A wrong value is an error even if a place with precedence overrides it."""
    chosen: dict[str, Written] = {}
    for written in place:
        chosen[written.field.key] = _choose(chosen.get(written.field.key), written)
    return {key: Given(_read(written), written.origin, rank) for key, written in chosen.items()}


def _choose(earlier: Written | None, later: Written) -> Written:
    if earlier is None or earlier.fallback:
        return later
    if later.fallback:
        return earlier
    places = f"{_where(earlier)} and {_where(later)}"
    raise SettingsError(f"{later.field.key} is given twice: {places}.", remedy="Keep one of them.")


def _read(written: Written) -> object:
    try:
        value = read_value(written.field, written.raw, written.unit)
    except ValueError as error:
        raise SettingsError(f"{_where(written)}: {error}") from None
    if written.public and written.field.about.secret and holds_password(str(value)):
        raise SettingsError(
            f"{_where(written)} contains a password, which others can read there.",
            remedy="Put the URL into RELTASK_DATABASE_URL, or use a passfile or a managed identity.",
        )
    return value


def _where(written: Written) -> str:
    return f"{written.name} ({written.origin})"


def _assemble(given: Mapping[str, Given]) -> Loaded:
    chosen = given
    by_section: dict[str, dict[str, Any]] = {section: {} for section in sections()}
    for key, choice in chosen.items():
        section, name = key.split(".")
        by_section[section][name] = choice.value
    built: dict[str, Any] = {section: cls(**by_section[section]) for section, cls in sections().items()}
    settings = Settings(**built)
    origins = {key: chosen[key].origin if key in chosen else DEFAULT for key in fields()}
    _check_pace(settings, origins)
    _check_queues(settings, given)
    return Loaded(settings, origins)


def _check_pace(settings: Settings, origins: Mapping[str, str]) -> None:
    try:
        settings.worker.pace()
    except SettingsError as error:
        places = ", ".join(f"{key} ({origins[key]})" for key in _PACE if origins[key] != DEFAULT)
        raise SettingsError(error.message, remedy=f"Check {places}." if places else "") from None


def _check_queues(settings: Settings, given: Mapping[str, Given]) -> None:
    """Refuse a limit for a queue that is not served, unless a place with precedence chose the queues.

    One file may hold the limits of all queues, while each worker's command line chooses a few.
    """
    limits, queues = given.get("worker.queue_concurrency"), given.get("worker.queues")
    if limits is None or (queues is not None and queues.rank > limits.rank):
        return
    for name in limits.value:
        if settings.worker.queues and name not in settings.worker.queues:
            near = nearest(name, settings.worker.queues)
            raise SettingsError(
                f"worker.queue_concurrency ({limits.origin}): {name!r} is not one of the queues of this worker.",
                remedy=f"Did you mean {near}?" if near else "Add it to worker.queues.",
            )
