"""Reads written values into the types of the settings.

A reader raises ValueError with what is wrong with the value; its caller prepends the key and the place.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta

from reltask.config.fields import Field, nearest
from reltask.model.connection_url import from_ado_net, is_url
from reltask.model.duration import format_duration, parse_duration

AUTO = "auto"
"""Written for a duration that is derived from another one; also its default."""

_LONGEST_SHOWN = 60


def read_value(field: Field, raw: object, unit: str | None = None) -> object:
    """The value of this field, or ValueError. With a unit, the value is a number of that unit."""
    if field.kind == "duration":
        return _read_number_of(field, raw, unit) if unit else _read_duration(field, raw)
    return _READERS[field.kind](field, raw)


def shown(raw: object) -> str:
    """A wrong value as an error may quote it: shortened, and withheld if it looks like a URL or connection string."""
    text = repr(raw)
    if any(mark in text for mark in ("://", ";", "@")):
        return "the value"
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…"


def _read_duration(field: Field, raw: object) -> timedelta | None:
    if field.optional and isinstance(raw, str) and raw.strip().lower() == AUTO:
        return None
    if isinstance(raw, int | float) or (isinstance(raw, str) and _as_number(raw) is not None):
        raise ValueError(f'{shown(raw)} has no unit; write "{raw}s" or "{raw}m".')
    try:
        length = parse_duration(raw) if isinstance(raw, str | timedelta) else None
    except (ValueError, OverflowError):
        length = None
    if length is None:
        raise ValueError(f'{shown(raw)} is not a duration; write "10s", "5m", "2h" or "3d".')
    return _long_enough(field, length, raw)


def _read_number_of(field: Field, raw: object, unit: str) -> timedelta:
    number = _as_number(raw)
    try:
        length = None if number is None or number < 0 else timedelta(**{unit: number})
    except OverflowError:
        length = None
    if length is None:
        raise ValueError(f"{shown(raw)} is not a number of {unit}; write a number, like 30 or 0.5.")
    return _long_enough(field, length, raw)


def _long_enough(field: Field, length: timedelta, raw: object) -> timedelta:
    if field.about.least > 0 and length <= timedelta(0):
        raise ValueError(f"{shown(raw)} is too short; it must be greater than zero.")
    if length < field.about.shortest:
        raise ValueError(f"{shown(raw)} is too short; write at least {format_duration(field.about.shortest)}.")
    return length


def _as_number(raw: object) -> float | None:
    """A finite number, or a text that is one."""
    if isinstance(raw, bool) or not isinstance(raw, int | float | str):
        return None
    try:
        number = float(raw)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _read_count(field: Field, raw: object) -> int:
    try:
        count = int(raw) if isinstance(raw, str) else raw
    except ValueError:
        count = None
    if not isinstance(count, int) or isinstance(count, bool):
        raise ValueError(f"{shown(raw)} is not a whole number.")  # noqa: TRY004 - readers raise ValueError only
    if count < field.about.least:
        raise ValueError(f"{shown(raw)} is too small; it must be at least {field.about.least}.")
    if count > field.about.most:
        raise ValueError(f"{shown(raw)} is too large; it must be at most {field.about.most}.")
    return count


def _read_text(_field: Field, raw: object) -> str:
    if not isinstance(raw, str) or not raw.strip():
        raise ValueError(f"{shown(raw)} is not a string; write a name in quotes.")
    return raw.strip()


def _read_choice(field: Field, raw: object) -> str:
    choice = raw.strip().lower() if isinstance(raw, str) else ""
    if choice not in field.choices:
        near = nearest(choice, field.choices)
        hint = f" Did you mean {near}?" if near else ""
        raise ValueError(f"{shown(raw)} is not one of {', '.join(field.choices)}.{hint}")
    return choice


def _read_names(_field: Field, raw: object) -> tuple[str, ...]:
    """A list, or one text with commas. A name given twice counts once."""
    parts = raw.split(",") if isinstance(raw, str) else raw
    if not isinstance(parts, list | tuple) or not all(isinstance(part, str) for part in parts):
        raise ValueError(
            f'{shown(raw)} is not a list of names; write ["default", "mail"], or default,mail in a variable.'
        )
    names = tuple(dict.fromkeys(part.strip() for part in parts))
    if not names or not all(names):
        raise ValueError(f"{shown(raw)} contains an empty name or no name; write at least one.")
    return names


def _read_limits(field: Field, raw: object) -> dict[str, int]:
    """A table, or one text like `mail=2,reports=1`. The names are the user's own and are kept as written."""
    if isinstance(raw, str):
        raw = {name: count for name, _, count in (part.partition("=") for part in raw.split(",") if part.strip())}
    if not isinstance(raw, Mapping) or not all(isinstance(name, str) and name.strip() for name in raw):
        raise ValueError(
            f"{shown(raw)} is not a table of limits; write {{mail = 2}}, or mail=2,reports=1 in a variable."
        )
    return {name.strip(): _read_count(field, count) for name, count in raw.items()}


def _read_url(_field: Field, raw: object) -> str:
    """A URL, or an ADO.NET connection string. Errors never quote it, because it may hold a password."""
    text = raw.strip() if isinstance(raw, str) else ""
    if is_url(text):
        return text
    if "=" in text:
        return from_ado_net(text)
    raise ValueError("it is not a URL; write sqlite:///file.db, postgresql://host/database or mssql://host/database.")


_READERS: dict[str, Callable[[Field, object], object]] = {
    "count": _read_count,
    "text": _read_text,
    "choice": _read_choice,
    "names": _read_names,
    "limits": _read_limits,
    "url": _read_url,
}
