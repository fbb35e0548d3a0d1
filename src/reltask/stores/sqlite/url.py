"""Reads the URL of an SQLite file, or its plain path."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote

from reltask.errors import SettingsError
from reltask.model.schema_name import SCHEMA, split_schema

MEMORY = ":memory:"


def database_path(url: str) -> str:
    """The file that a URL or a plain path names."""
    if not url.startswith("sqlite:"):
        return _absolute(url)
    url, _ = split_schema(url)
    if not url.startswith("sqlite:///") or url == "sqlite:///":
        raise SettingsError(
            f"{url!r} names no file.", remedy="Write sqlite:///relative.db, or sqlite:////absolute/path.db."
        )
    path, mark, _ = url.removeprefix("sqlite:///").partition("?")
    if mark:
        raise SettingsError(
            f"{url!r} has options after '?'.", remedy="Pass them as settings; the URL only names the file."
        )
    try:
        if b"\0" in os.fsencode(unquote(path)):
            raise ValueError  # noqa: TRY301 - as for a name that cannot be encoded
    except ValueError:
        raise SettingsError(f"{url!r} names no file: no name has such characters.", remedy="Correct the URL.") from None
    return _absolute(unquote(path))


def database_schema(url: str) -> str:
    """The prefix of the tables' names that a URL names, or the default."""
    return split_schema(url)[1] if url.startswith("sqlite:") else SCHEMA


def _absolute(path: str) -> str:
    # A store opens connections when they are needed, perhaps after the process has changed its directory.
    return path if path == MEMORY else str(Path(path).absolute())
