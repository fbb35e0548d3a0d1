"""A job's arguments: JSON by parameter name, typed by the function's own signature.

    def send(user: User, at: datetime, *, copies: int = 1)
                 │
                 ▼   msgspec builds a decoder for exactly these names and types
    {"user": {"id": 42}, "at": "2026-11-15T09:00:00Z", "copies": 2}

The encoded arguments are decoded again at once, so a value that does not fit is refused when it is enqueued, not hours
later in a worker. An object of another class than the annotated one is refused, too, even of a subclass: the worker
would receive the annotated class, without the subclass's additional fields. Nothing is pickled, and nothing is imported
by a name from the database.

Errors name places and types, never values, because they are written to logs and to the ledger. Where msgspec or
pydantic would quote a value, a new error is raised outside of the `except` block, so that no traceback shows the
original.
"""

from __future__ import annotations

import enum
import inspect
import itertools
import math
import re
import typing
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from functools import cache, partial
from types import NoneType
from typing import Any
from uuid import UUID

import msgspec
import msgspec.inspect

from reltask.errors import ArgumentsError, DeclarationError

DEFAULT_LIMIT = 1_000_000
_SHOWN_FAILURES = 10
_QUOTED_VALUE = re.compile(r"^(Invalid (?:enum )?value) .*(?= - at )", re.DOTALL)
_RESULT_REMEDY = "Annotate what it returns, or store it elsewhere."
_PLAIN = (
    *(Any, NoneType, bool, int, float, str, bytes, Decimal, UUID, datetime, date, time, timedelta),
    *(list, tuple, set, frozenset, dict, ...),
)
_OBJECTS = ("model_dump", "__struct_fields__", "__dataclass_fields__", "__attrs_attrs__")
_MANY = (list, tuple, set, frozenset)
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


class Arguments:
    """Encodes and decodes the arguments of one task."""

    def __init__(self, function: Callable[..., Any], *, skip_first: bool) -> None:
        self._label = getattr(function, "__name__", "task")
        signature = inspect.signature(function)
        hints = annotations_of(function)
        parameters = list(signature.parameters.values())[1 if skip_first else 0 :]
        for parameter in parameters:
            if parameter.kind not in _NAMED:
                raise DeclarationError(
                    f"Task {self._label}: parameter {str(parameter)!r} cannot be passed by name.",
                    remedy="Use plain parameters: no *args, no **kwargs, no positional-only parameters.",
                )
        self.hints = {parameter.name: hints.get(parameter.name, Any) for parameter in parameters}
        """The type of each parameter."""
        self.returns = hints.get("return", Any)
        self._signature = signature.replace(parameters=parameters)
        self._names = [parameter.name for parameter in parameters]
        all_by_position = all(parameter.kind is not inspect.Parameter.KEYWORD_ONLY for parameter in parameters)
        self._by_position = len(parameters) if all_by_position else None
        self._defaults = {one.name: one.default for one in parameters if one.default is not inspect.Parameter.empty}
        self._with_objects = [name for name in self._names if not _is_plain(hints.get(name, Any))]
        fields = [_field(parameter, hints.get(parameter.name, Any)) for parameter in parameters]
        try:
            shape = msgspec.defstruct(f"{self._label}_arguments", fields, kw_only=True, forbid_unknown_fields=True)
            self._decoder = msgspec.json.Decoder(shape, dec_hook=_from_plain)
        except TypeError as error:
            raise DeclarationError(
                f"Task {self._label}: {error}.", remedy="Use types that differ in JSON, or annotate it with Any."
            ) from error

    @property
    def names(self) -> list[str]:
        """The parameters that a job can be given."""
        return list(self._names)

    @property
    def required(self) -> list[str]:
        """The parameters without a default."""
        return [name for name in self._names if name not in self._defaults]

    def encode(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, limit: int = DEFAULT_LIMIT) -> str:
        """The JSON of a call, or ArgumentsError: wrong names, wrong types, or something JSON cannot hold."""
        try:
            if not kwargs and len(args) == self._by_position:  # as most calls are: a tenth of the cost of binding
                given = dict(zip(self._names, args))  # noqa: B905 - the lengths are compared above
            else:
                given = self._signature.bind(*args, **kwargs).arguments
            raw = _STORING.encode(given)
            if b"null" in raw:
                refuse_nan(given, _STORING)
            read = self._decoder.decode(raw)
            if self._with_objects:
                self._refuse_other_classes(given, read)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            cause = _without_value(error)
        else:
            if len(raw) <= limit:
                return raw.decode()
            raise ArgumentsError(
                f"Task {self._label}: the arguments take {len(raw):,} bytes, more than the limit of {limit:,}.",
                remedy="Store the data elsewhere and pass a reference, or raise limits.arguments.",
            )
        raise ArgumentsError(f"Task {self._label}: {cause}.", remedy=_ARGUMENTS_REMEDY) from cause

    def decode(self, text: str) -> dict[str, Any]:
        """The keyword arguments of a stored call."""
        try:
            named = msgspec.structs.asdict(self._decoder.decode(text))
        except (ValueError, TypeError, RecursionError) as error:
            cause = _without_value(error)
        else:
            if not self._defaults:
                return named
            return {name: value for name, value in named.items() if value is not msgspec.UNSET}
        raise ArgumentsError(f"Task {self._label}: the stored arguments do not fit: {cause}.") from cause

    def bound(self, text: str) -> dict[str, Any]:
        """The arguments of a stored call with the defaults of those that were not given."""
        given = self.decode(text)
        return {name: given[name] if name in given else self._defaults[name] for name in self._names}

    def _refuse_other_classes(self, given: dict[str, Any], read: Any) -> None:
        for name in self._with_objects:
            if found := _other_class(given.get(name), getattr(read, name)):
                raise ValueError(f"{found[0].__name__} would be read as {found[1].__name__} - at `$.{name}`")


def _without_value(error: Exception) -> Exception:
    """The error itself, or another without the value that msgspec quotes for enums, literals and tags."""
    if not isinstance(error, msgspec.ValidationError) or error.__cause__ is not None:
        return error  # if it has a cause, a class of the user's own has raised it, with its own message
    return ValueError(_QUOTED_VALUE.sub(r"\1", str(error)))


class Value:
    """Encodes and decodes one value by its annotation: what a step, a task or a signal carries."""

    def __init__(self, hint: Any = inspect.Parameter.empty, *, label: str, remedy: str = _RESULT_REMEDY) -> None:
        """Without an annotation, only what JSON itself has is accepted: it must come back as it was."""
        self._label = label
        self._remedy = remedy
        self._is_native = hint is inspect.Parameter.empty or hint is Any
        self._is_plain = self._is_native or _is_plain(hint)
        try:
            self._decoder = msgspec.json.Decoder(Any if self._is_native else hint, dec_hook=_from_plain)
            if not self._is_native:
                _refuse_unreadable(hint)
        except TypeError as error:
            raise DeclarationError(
                f"{label}: {error}.", remedy="Annotate it with a type that can be read from JSON."
            ) from error

    def encode(self, value: object, *, limit: int = DEFAULT_LIMIT) -> str:
        """The JSON of a value, or ArgumentsError: it does not fit its annotation, or cannot be stored."""
        try:
            raw = encode_json(value, _STORING)
            why = self._misfit(value, raw)
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            why = _QUOTED_VALUE.sub(r"\1", str(error))
        else:
            if why is None and len(raw) <= limit:
                return raw.decode()
            why = why or f"{len(raw):,} bytes exceed the limit of {limit:,}"
        raise ArgumentsError(f"{self._label}: {why}.", remedy=self._remedy)

    def _misfit(self, value: object, raw: bytes) -> str | None:
        """Why the value would not come back as it is; None: it would."""
        if self._is_native:
            return None if is_json(value) else "without an annotation it can only be a value that JSON can represent"
        read = self._decoder.decode(raw)
        found = None if self._is_plain else _other_class(value, read)
        return None if found is None else f"{found[0].__name__} would be read as {found[1].__name__}"

    def decode(self, text: str) -> Any:
        """The value of a stored JSON text, or ArgumentsError."""
        try:
            return self._decoder.decode(text)
        except ValueError as error:
            why = _QUOTED_VALUE.sub(r"\1", str(error))
        raise ArgumentsError(f"{self._label}: the stored value does not fit: {why}.")


def _refuse_unreadable(hint: Any) -> None:
    """Raise TypeError for a class, or a part of a type, that no JSON can become."""
    if isinstance(msgspec.inspect.type_info(hint), msgspec.inspect.CustomType) and not hasattr(
        hint, "model_validate_json"
    ):
        raise TypeError(f"{getattr(hint, '__name__', hint)} cannot be read from JSON")
    parts = typing.get_args(hint)
    for part in parts[:1] if typing.get_origin(hint) is typing.Annotated else parts:
        if isinstance(part, type) or typing.get_origin(part) is not None:
            _refuse_unreadable(part)


def value_of(function: Callable[..., Any], *, label: str) -> Value:
    """What a function returns, by its annotation."""
    return Value(annotations_of(function).get("return", inspect.Parameter.empty), label=label)


def is_json(value: object) -> bool:
    """Whether JSON has this value, so that it comes back as it was."""
    if isinstance(value, list):
        return all(map(is_json, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(item) for key, item in value.items())
    return value is None or type(value) in (bool, int, float, str)


_ARGUMENTS_REMEDY = (
    "Pass what the function's signature asks for: numbers (no NaN), strings, lists, dicts, dates, UUIDs, Decimals, "
    "enums, dataclasses, attrs classes or pydantic models."
)


def annotations_of(function: Callable[..., Any]) -> dict[str, Any]:
    """The resolved annotations of a function, or a DeclarationError that names the one that cannot be resolved."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise DeclarationError(
            f"Task {getattr(function, '__name__', function)}: the annotation {error.name!r} is unknown at run time.",
            remedy="Import it outside `if TYPE_CHECKING:`; reltask reads stored arguments by the signature's types.",
        ) from error


def to_plain(value: Any) -> Any:
    """Dumps a pydantic model, without depending on pydantic."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")


_ENCODER = msgspec.json.Encoder(enc_hook=to_plain)


def encode_json(value: object, encoder: msgspec.json.Encoder = _ENCODER) -> bytes:
    """JSON of a value; ValueError for NaN and infinity, which JSON cannot hold and msgspec would turn into null."""
    raw = encoder.encode(value)
    if b"null" in raw:
        refuse_nan(value, encoder)
    return raw


def refuse_nan(value: object, encoder: msgspec.json.Encoder) -> None:
    """ValueError if the value contains NaN or infinity."""
    _refuse_nan(msgspec.to_builtins(value, enc_hook=encoder.enc_hook))


def _field(parameter: inspect.Parameter, hint: Any) -> tuple[str, Any] | tuple[str, Any, Any]:
    if parameter.default is inspect.Parameter.empty:
        return (parameter.name, hint)
    return (parameter.name, hint | msgspec.UnsetType if hint is not Any else Any, msgspec.UNSET)


def _is_plain(hint: Any) -> bool:
    """Whether no value of this type is an object with fields. If unsure, False: then the values are checked."""
    if inside := typing.get_args(hint):
        return all(map(_is_plain, inside))
    return hint in _PLAIN or (isinstance(hint, type) and issubclass(hint, enum.Enum))


def _other_class(given: Any, read: Any) -> tuple[type, type] | None:
    """The class of the first object that was decoded as another class, and that class; None if there is none."""
    try:
        equal = bool(given == read)
    except Exception:  # noqa: BLE001 - the user's own __eq__ may fail on a dict; then the classes are compared
        equal = False
    if equal:
        return None
    if _is_object(given) and _is_object(read) and type(given) is not type(read):
        return type(given), type(read)
    return next(filter(None, (_other_class(*pair) for pair in _pairs(given, read))), None)


def _pairs(given: Any, read: Any) -> Iterable[tuple[Any, Any]]:
    """The parts at the same place of both; none if one is a dict and the other an object."""
    if isinstance(read, dict) and isinstance(given, dict):
        return ((given[key], read[key]) for key in read.keys() & given.keys())
    if isinstance(read, set | frozenset) and isinstance(given, _MANY):
        classes = {type(item): item for item in read}  # a set has no order: compare with one item of each class
        others = (item for item in given if _is_object(item) and type(item) not in classes)
        return itertools.product(others, classes.values())
    if isinstance(read, _MANY) and isinstance(given, _MANY):
        return zip(given, read)  # noqa: B905 - a named tuple may have been extended by its defaults
    if type(read) is type(given):
        return ((getattr(given, name, None), getattr(read, name, None)) for name in _fields(type(read)))
    return ()


def _is_object(value: Any) -> bool:
    return any(hasattr(type(value), mark) for mark in _OBJECTS)


def _fields(kind: Any) -> Iterable[str]:
    """The names of the fields of a struct, a dataclass or an attrs class; none for anything else."""
    if hasattr(kind, "__attrs_attrs__"):
        return [field.name for field in kind.__attrs_attrs__]
    return getattr(kind, "__struct_fields__", getattr(kind, "__dataclass_fields__", ()))


def _refuse_nan(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be stored as JSON")
    if isinstance(value, dict):
        for item in value.values():
            _refuse_nan(item)
    elif isinstance(value, list | tuple | set | frozenset):
        for item in value:
            _refuse_nan(item)


def _to_stored(value: Any) -> Any:
    """Like `to_plain`, but a model must be equal after decoding: masked secrets and excluded fields would be lost.

    It is dumped by its aliases, or by its field names if it cannot be read by its aliases.
    """
    if not hasattr(value, "model_dump"):
        return to_plain(value)
    plain = value.model_dump(mode="json", by_alias=True, round_trip=True)
    if _comes_back(value, plain):
        return plain
    plain = value.model_dump(mode="json", by_alias=False, round_trip=True)
    if _validated(type(value), plain) == value:
        return plain
    raise ValueError(
        f"{type(value).__name__} is not equal after a round trip through JSON; it may have secret or excluded fields"
    )


def _comes_back(value: Any, plain: Any) -> bool:
    with suppress(ValueError):
        return bool(_validated(type(value), plain) == value)
    return False


_STORING = msgspec.json.Encoder(enc_hook=_to_stored)


def _from_plain(kind: type, value: Any) -> Any:
    if hasattr(kind, "model_validate_json"):
        return _validated(kind, value)
    raise TypeError(f"{getattr(kind, '__name__', kind)} cannot be read from JSON")


def _validated(kind: Any, plain: Any) -> Any:
    """The decoded model, or a ValueError that says where it does not fit, without quoting values."""
    try:
        return _reader(kind)(msgspec.json.encode(plain))
    except ValueError as error:
        why = _failures(error)
    raise ValueError(f"{kind.__name__} does not fit: {why}")


@cache
def _reader(kind: Any) -> Callable[[bytes], Any]:
    """A function that reads a model from JSON, from which even a strict model accepts dates, UUIDs and enums.

    It also accepts field names instead of aliases, with pydantic 2.11 or later.
    """
    read: Callable[..., Any] = kind.model_validate_json
    return partial(read, by_name=True) if "by_name" in inspect.signature(read).parameters else read


def _failures(error: Any) -> str:
    """Where the validation failed, and by which rule. Pydantic's messages may quote values and are left out."""
    if not hasattr(error, "errors"):
        return type(error).__name__
    failures = error.errors(include_input=False, include_url=False, include_context=False)[:_SHOWN_FAILURES]
    return ", ".join(f"{'.'.join(map(str, failure['loc'])) or 'it'}: {failure['type']}" for failure in failures)
