"""The settings as a list of fields, read from their types: what can be written, under which names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from msgspec import Struct

from reltask.model.connection_url import fold
from reltask.model.settings import About, Settings

FieldKind = Literal["duration", "count", "text", "choice", "names", "limits", "url"]

UNITS = ("milliseconds", "seconds", "minutes", "hours", "days")
_KINDS: dict[Any, FieldKind] = {
    timedelta: "duration",
    int: "count",
    str: "text",
    tuple: "names",
    dict: "limits",
    Literal: "choice",
}


class Field(NamedTuple):
    """One setting."""

    section: str
    name: str
    kind: FieldKind
    optional: bool
    choices: tuple[str, ...]
    default: Any
    about: About

    @property
    def key(self) -> str:
        """Its name in code and in messages."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return f"RELTASK_{self.section}_{self.name}".upper()


class DotnetName(NamedTuple):
    """A name in `TaskExecution`, and what a number under it counts."""

    field: Field
    unit: str | None


@cache
def sections() -> dict[str, type[Struct]]:
    """The sections in the order in which they are shown."""
    return get_type_hints(Settings)


@cache
def fields() -> dict[str, Field]:
    """Every field by its key."""
    found = [_field(section, cls, name) for section, cls in sections().items() for name in cls.__struct_fields__]
    return {field.key: field for field in found}


@cache
def by_folded_key() -> dict[str, Field]:
    """Every field by its key without dots, underscores and case: `workerlocktimeout`."""
    return {fold(field.key).replace(".", ""): field for field in fields().values()}


@cache
def by_dotnet_name() -> dict[str, DotnetName]:
    """Every field by its folded .NET names: with each unit, and without one for a value like "10s"."""
    found: dict[str, DotnetName] = {}
    for field in fields().values():
        for name in field.about.dotnet:
            stem = re.sub(f"({'|'.join(UNITS)})$", "", fold(name)) if field.kind == "duration" else fold(name)
            found[stem] = DotnetName(field, None)
            if field.kind == "duration":
                found |= {stem + unit: DotnetName(field, unit) for unit in UNITS}
    return found


def dotnet_names() -> list[str]:
    """The .NET names as they are usually written."""
    return [name for field in fields().values() for name in field.about.dotnet]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    import difflib  # noqa: PLC0415 - needed only for an error

    spelled = {fold(candidate): candidate for candidate in known}
    found = difflib.get_close_matches(fold(name), spelled, n=1, cutoff=0.6)
    return spelled[found[0]] if found else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A remedy: the nearest known name, or all of them."""
    known = list(known)
    found = nearest(name, known)
    return f"Did you mean {found}?" if found else f"Known names: {', '.join(known)}."


def _field(section: str, cls: type[Struct], name: str) -> Field:
    annotated = get_type_hints(cls, include_extras=True)[name]
    assert get_origin(annotated) is Annotated
    declared, about = get_args(annotated)
    plain, optional = _without_none(declared)
    kind = "url" if about.secret else _KINDS[get_origin(plain) or plain]
    choices = get_args(plain) if kind == "choice" else ()
    return Field(section, name, kind, optional, choices, getattr(cls(), name), about)


def _without_none(declared: Any) -> tuple[Any, bool]:
    if get_origin(declared) is UnionType:
        return next(part for part in get_args(declared) if part is not type(None)), True
    return declared, False
