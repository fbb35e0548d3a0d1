"""A signal's declaration: its name and the type of its value."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest

from reltask import ArgumentsError, DeclarationError, Signal, UsageError
from reltask.model.durable import LONGEST_NAME
from reltask.producer.signal import signal_of


@dataclass(frozen=True)
class Decision:
    """What a person decided."""

    ok: bool
    by: str


class Stricter(Decision):
    """It would come back as a Decision."""


def test_a_value_comes_back_as_it_was_sent() -> None:
    """It is stored as JSON, and read by the declared type."""
    decision = Signal("decision", Decision)
    text = decision.encode(Decision(ok=True, by="ada"))
    assert text == '{"ok":true,"by":"ada"}'
    assert decision.decode(text) == Decision(ok=True, by="ada")
    assert Signal("ids", list[int]).decode("[1,2]") == [1, 2]


def test_signals_with_one_name_and_type_are_equal_and_cannot_be_changed() -> None:
    """Both sides may declare it on their own."""
    assert Signal("decision", Decision) == Signal("decision", Decision)
    assert signal_of(Signal("decision", bool)) != Signal("decision", Decision)
    with pytest.raises(AttributeError):
        Signal("decision", Decision).name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("value", ["yes", {"ok": "perhaps", "by": "ada"}, Stricter(ok=True, by="ada"), None])
def test_a_value_of_another_type_is_refused(value: Any) -> None:
    """When it is sent, not when the function wakes up; the error quotes no value."""
    with pytest.raises(ArgumentsError, match="Signal 'decision'") as caught:
        Signal("decision", Decision).encode(value)
    assert "perhaps" not in str(caught.value)


def test_a_stored_value_that_does_not_fit_is_refused() -> None:
    """The declaration was changed while the signal waited."""
    with pytest.raises(ArgumentsError, match="the stored value does not fit"):
        Signal("decision", Decision).decode('"yes"')


def test_a_value_has_a_limit() -> None:
    """As arguments have."""
    with pytest.raises(ArgumentsError, match="12 bytes exceed the limit of 10") as caught:
        Signal("text", str).encode("x" * 10, limit=10)
    assert caught.value.remedy == "Send what the signal's type asks for, or store it elsewhere and send its name."


@pytest.mark.parametrize("name", ["", "x" * (LONGEST_NAME + 1), "two\nlines", "nul\x00", "\ud800", 7, None])
def test_a_name_that_cannot_be_stored_is_refused_at_once(name: Any) -> None:
    """Empty, too long, unprintable, or no text at all."""
    with pytest.raises(UsageError, match="signal"):
        Signal(name, int)
    with pytest.raises(UsageError, match="signal"):
        signal_of(name)


def test_a_name_may_be_of_any_language() -> None:
    """Up to the longest that all databases store."""
    assert Signal("Entscheidung: geprüft ✓" + "x" * 100, int).name.startswith("Entscheidung")
    assert len(Signal("x" * LONGEST_NAME, int).name) == LONGEST_NAME


def test_a_type_that_cannot_be_read_from_json_is_refused_at_once() -> None:
    """Two classes that look alike in JSON."""
    with pytest.raises(DeclarationError, match="Signal 'either'"):
        Signal("either", Decision | Stricter)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [{"ok": [1, 2.5, None, "x"]}, 7, None, True])
def test_a_plain_name_takes_what_json_has(value: Any) -> None:
    """For callers that do not know the declaration, such as the command line."""
    assert signal_of("plain").decode(signal_of("plain").encode(value)) == value


@pytest.mark.parametrize("value", [(1, 2), Decision(ok=True, by="ada"), {1: 2}, math.nan])
def test_a_plain_name_takes_nothing_else(value: Any) -> None:
    """It would come back as something else."""
    with pytest.raises(ArgumentsError, match="Signal 'plain'"):
        signal_of("plain").encode(value)
