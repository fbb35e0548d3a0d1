"""A signal: a name and the type of its value, declared once and used by both sides.

decision = Signal("decision", Decision)

answer = await ctx.wait_for(decision)                                # in a durable function
await fulfil.job(key="order-42").signal(decision, Decision(True))    # anywhere else
"""

from __future__ import annotations

import builtins
from functools import cached_property
from typing import Any, Generic, TypeVar

from msgspec import Struct

from reltask.errors import UsageError
from reltask.model.arguments import DEFAULT_LIMIT, Value
from reltask.model.durable import LONGEST_NAME

T = TypeVar("T")


class Signal(Struct, Generic[T], frozen=True, dict=True):
    """What a durable function can wait for, and others can send to its job."""

    name: str
    type: builtins.type[T]
    """Of the value: what a task's parameter can be. `Any` is what JSON itself has."""

    def __post_init__(self) -> None:
        """Refuse a name or a type that could never be sent."""
        check_name(self.name)
        self._value  # noqa: B018 - a type that cannot be read from JSON is refused here

    def encode(self, value: T, *, limit: int = DEFAULT_LIMIT) -> str:
        """The JSON of a value, or ArgumentsError."""
        return self._value.encode(value, limit=limit)

    def decode(self, text: str) -> T:
        """The value of a stored signal, or ArgumentsError."""
        value: T = self._value.decode(text)
        return value

    @cached_property
    def _value(self) -> Value:
        remedy = "Send what the signal's type asks for, or store it elsewhere and send its name."
        return Value(self.type, label=f"Signal {self.name!r}", remedy=remedy)


def check_name(text: object, what: str = "name") -> None:
    """Refuse a signal's name or id that is empty, too long or unprintable."""
    if not isinstance(text, str):
        raise UsageError(f"A signal's {what} is a string, not {type(text).__name__}.")
    if not 0 < len(text) <= LONGEST_NAME:
        raise UsageError(f"A signal's {what} must have 1 to {LONGEST_NAME} characters.")
    if not text.isprintable():
        raise UsageError(f"The signal's {what} {text!r} contains a character that cannot be printed.")


def signal_of(signal: Signal[Any] | str) -> Signal[Any]:
    """The signal itself; of a plain name, one whose values are plain JSON."""
    if isinstance(signal, Signal):
        return signal
    check_name(signal)
    return Signal(signal, Any)
