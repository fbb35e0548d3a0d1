"""`Annotated[str, Hidden]`: values that no view shows.

    def charge(customer: int, card: Annotated[str, Hidden])    ──►  {"customer": 7, "card": "***"}

Also in the fields of dataclasses, structs, TypedDicts, named tuples, attrs classes and pydantic models,
in lists and dicts of them, and as what a task returns. Of a union, what any of its members hides.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from types import UnionType
from typing import Annotated, Any

import msgspec

MASK = "***"


class Hidden:
    """Marks a parameter, a field or a result that no view shows: `Annotated[str, Hidden]`."""


def masked_json(text: str | None, hint: Any) -> str | None:
    """A JSON text of a value of this type, with what is hidden replaced."""
    if text is None:
        return None
    return msgspec.json.encode(masked(msgspec.json.decode(text), hint)).decode()


def masked(value: Any, hint: Any) -> Any:  # noqa: PLR0911 - one line per kind of type
    """A JSON value of this type with what is hidden replaced."""
    if value is None:
        return None
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        if any(mark is Hidden or isinstance(mark, Hidden) for mark in hint.__metadata__):
            return MASK
        return masked(value, parts[0])
    if origin in (typing.Union, UnionType):
        return _in_turn(value, parts)
    if isinstance(value, list):
        inner = parts or tuple(each for _, each in _fields(hint))  # a named tuple is a list
        return [_in_turn(item, inner) for item in value]
    if not isinstance(value, dict):
        return value
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {name: _in_turn(item, parts[-1:]) for name, item in value.items()}
    shown = dict(value)
    for names, each in _fields(origin or hint):
        shown |= {name: masked(value[name], each) for name in names if name in value}
    return shown


def masked_arguments(text: str, hints: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a stored call, with what is hidden replaced. A name without a type is not shown."""
    given: dict[str, Any] = msgspec.json.decode(text)
    return {name: masked(value, hints[name]) if name in hints else MASK for name, value in given.items()}


def _in_turn(value: Any, hints: tuple[Any, ...]) -> Any:
    for hint in hints:
        value = masked(value, hint)
    return value


@cache
def _fields(kind: Any) -> tuple[tuple[frozenset[str], Any], ...]:
    """The fields of a class with every name that JSON may have for them; none for anything else."""
    if not isinstance(kind, type):
        return ()
    hints: dict[str, Any] = {}
    with suppress(Exception):  # what cannot be resolved here could not be decoded either
        hints = typing.get_type_hints(kind, include_extras=True)
    aliases = dict(_aliases(kind))
    return tuple((frozenset({name, *aliases.get(name, ())}), hint) for name, hint in hints.items())


def _aliases(kind: Any) -> Iterator[tuple[str, set[str]]]:
    if hasattr(kind, "__struct_encode_fields__"):
        for name, alias in zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True):
            yield name, {alias}
    for name, field in getattr(kind, "model_fields", {}).items():  # pydantic
        given = (field.alias, field.validation_alias, field.serialization_alias)
        yield name, {alias for alias in given if isinstance(alias, str)}
