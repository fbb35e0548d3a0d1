"""The places where settings are written: a file, the environment, the command line, code.

Each becomes a list of `Written`: the field, the raw value and its place. An unknown name is an error here; it suggests
the nearest known name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from msgspec import UNSET

from reltask.config.fields import (
    Field,
    by_dotnet_name,
    by_folded_key,
    did_you_mean,
    dotnet_names,
    fields,
    nearest,
    sections,
)
from reltask.errors import SettingsError
from reltask.model.connection_url import fold

OTHER_VARIABLES = ("RELTASK_APP", "RELTASK_CONFIG")
"""Variables of ours that are not settings: which app, and which file."""

_PREFIX = "RELTASK_"
_KUBERNETES = r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)"
_FOREIGN_VARIABLE = rf"(?i)RELTASK_(TEST_.*|{_KUBERNETES})"
"""Variables for tests, and those that Kubernetes sets for a service whose name begins with reltask."""

_JSON_SECTIONS = ("TaskExecution", "Reltask", "ConnectionStrings")
_CONNECTIONS = {"sqlazure": "SqlAzure", "reltask": "Reltask"}


class Written(NamedTuple):
    """One value as written."""

    field: Field
    name: str
    """The name as written, for messages."""
    raw: object
    origin: str
    unit: str | None = None
    """What a number counts, where the name says so."""
    public: bool = False
    """Whether others can read it there: a file, a command line."""
    fallback: bool = False
    """Ignored if the same place has another value: `SqlAzure` may be meant for another program."""


def from_mapping(values: Mapping[str, object], origin: str, *, public: bool) -> Iterator[Written]:
    """Dotted keys to values; None and UNSET are not given."""
    for name, raw in values.items():
        field = by_folded_key().get(fold(name).replace(".", ""))
        if field is None:
            raise SettingsError(f"{name} ({origin}) is not a setting.", remedy=did_you_mean(name, fields()))
        if raw is not None and raw is not UNSET:
            yield Written(field, field.key, raw, origin, public=public)


# ── Environment ──────────────────────────────────────────────────────────────────────────────────────────────────────


def from_environment(environ: Mapping[str, str]) -> Iterator[Written]:
    """`RELTASK_WORKER_POLL`, and .NET's `TaskExecution__PollingIntervalSeconds`. An empty variable is not given."""
    for name, raw in environ.items():
        if raw:
            yield from _from_variable(name, raw, f"environment {name}")


def _from_variable(name: str, raw: str, origin: str) -> Iterator[Written]:
    section, separator, rest = name.partition("__")
    if separator and fold(section) == "taskexecution":
        yield _from_dotnet_name(rest, raw, origin, public=False)
    elif separator and fold(section) == "connectionstrings":
        yield from _from_connections({rest: raw}, origin, public=False)
    elif name.upper().startswith(_PREFIX) and name.upper() not in OTHER_VARIABLES:
        yield from _from_our_variable(name, raw, origin)


def _from_our_variable(name: str, raw: str, origin: str) -> Iterator[Written]:
    field = by_folded_key().get(fold(name[len(_PREFIX) :]))
    if field is not None:
        yield Written(field, field.key, raw, origin)
    elif not re.fullmatch(_FOREIGN_VARIABLE, name):
        raise SettingsError(f"The environment variable {name} is not a setting.", remedy=_nearest_variable(name))


def _nearest_variable(name: str) -> str:
    """The nearest known name, compared without the common prefix."""
    known = [*(field.variable for field in fields().values()), *OTHER_VARIABLES]
    near = nearest(name[len(_PREFIX) :], [variable[len(_PREFIX) :] for variable in known])
    return f"Did you mean {_PREFIX}{near}?" if near else "docs/configuration.md lists all of them."


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def from_toml(content: Mapping[str, object], origin: str) -> Iterator[Written]:
    """A reltask.toml: all of it belongs to reltask."""
    return _from_tables(content, origin, prefix="")


def from_json(content: Mapping[str, object], origin: str) -> Iterator[Written]:
    """An appsettings.json: three sections belong to reltask, the others to other programs."""
    ours = {fold(name): name for name in _JSON_SECTIONS}
    for name, raw in content.items():
        if fold(name) not in ours or raw is None:
            continue
        table = _table(raw, name, origin)
        if fold(name) == "taskexecution":
            for key, value in table.items():
                if value is not None:
                    yield _from_dotnet_name(key, value, origin, public=True)
        elif fold(name) == "reltask":
            yield from _from_tables(table, origin, prefix=f"{name}:")
        else:
            yield from _from_connections(table, origin, public=True)


def has_our_sections(content: Mapping[str, object]) -> bool:
    """Whether a JSON file has a section for reltask."""
    return any(fold(name) in map(fold, _JSON_SECTIONS) for name in content)


def _from_tables(tables: Mapping[str, object], origin: str, prefix: str) -> Iterator[Written]:
    known = {fold(section): section for section in sections()}
    for name, raw in tables.items():
        section = known.get(fold(name))
        if section is None:
            raise _unknown_key(f"{prefix}{name}", name, list(sections()), origin)
        separator = ":" if prefix else "."
        for key, value in _table(raw, f"{prefix}{name}", origin).items():
            yield from _from_entry(section, key, value, origin, shown=f"{prefix}{name}{separator}{key}")


def _from_entry(section: str, key: str, raw: object, origin: str, shown: str) -> Iterator[Written]:
    names = {fold(field.name): field for field in fields().values() if field.section == section}
    field = names.get(fold(key))
    if field is None:
        raise _unknown_key(shown, key, [field.name for field in names.values()], origin)
    if raw is not None:
        yield Written(field, shown, raw, origin, public=True)


def _unknown_key(shown: str, name: str, known: list[str], origin: str) -> SettingsError:
    """Suggests the nearest name of the section, else the nearest of another section, else lists all of the section."""
    elsewhere = {field.name: field.key for field in fields().values()}
    near = nearest(name, known) or elsewhere.get(nearest(name, elsewhere) or "")
    remedy = f"Did you mean {near}?" if near else did_you_mean(name, known)
    return SettingsError(f"{shown} ({origin}) is not a setting.", remedy=remedy)


def _from_dotnet_name(name: str, raw: object, origin: str, *, public: bool) -> Written:
    found = by_dotnet_name().get(fold(name))
    if found is None:
        remedy = did_you_mean(name, dotnet_names())
        raise SettingsError(f"TaskExecution:{name} ({origin}) is not a setting.", remedy=remedy)
    return Written(found.field, f"TaskExecution:{name}", raw, origin, unit=found.unit, public=public)


def _from_connections(table: Mapping[str, object], origin: str, *, public: bool) -> Iterator[Written]:
    url = fields()["database.url"]
    for name, raw in table.items():
        spelled = _CONNECTIONS.get(fold(name))
        if spelled and raw:
            shown = f"ConnectionStrings:{name}"
            yield Written(url, shown, raw, origin, public=public, fallback=spelled == "SqlAzure")


def _table(raw: object, name: str, origin: str) -> Mapping[str, object]:
    if not isinstance(raw, Mapping):
        raise SettingsError(f"{name} ({origin}) is a single value, not a table.", remedy="Write a table of settings.")
    return raw
