"""Keys that are made from arguments, and payloads behind a codec."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from reltask import App, ConfigurationError, UnreadablePayload
from reltask.model.arguments import Arguments
from reltask.model.codec import Payloads, check_codec, is_encoded
from reltask.model.keys import KeyHash

KEYED = KeyHash(b"a secret of sixteen bytes or more")


class Model(BaseModel):
    b: int
    a: str


def remind(customer: int, tags: set[str], kind: str = "mail", on: date | None = None) -> None: ...


def arguments_of(function: Callable[..., Any]) -> Arguments:
    return Arguments(function, skip_first=False)


def test_equal_calls_have_one_key() -> None:
    """Defaults are bound, and the order of sets and of keyword arguments does not count."""
    arguments = arguments_of(remind)
    calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((7, {"x", "y", "z"}), {}),
        ((), {"tags": {"z", "y", "x"}, "customer": 7}),
        ((7, {"y", "x", "z"}, "mail"), {"on": None}),
    ]
    assert len({KEYED.of_arguments(arguments, arguments.encode(*call)) for call in calls}) == 1


@pytest.mark.parametrize("other", [(8, set()), (7, {"x"}), (7, set(), "letter"), (7, set(), "mail", date(2026, 1, 1))])
def test_another_argument_is_another_key(other: tuple[Any, ...]) -> None:
    """Each parameter counts."""
    arguments = arguments_of(remind)
    first, second = (arguments.encode(call, {}) for call in ((7, set()), other))
    assert KEYED.of_arguments(arguments, first) != KEYED.of_arguments(arguments, second)


def test_only_the_named_parameters_count() -> None:
    """`unique="customer"` makes one key of a customer's calls."""
    arguments = arguments_of(remind)
    first, second = (arguments.encode((7, tags), {}) for tags in ({"x"}, {"y"}))
    assert KEYED.of_arguments(arguments, first, ["customer"]) == KEYED.of_arguments(arguments, second, ["customer"])
    assert KEYED.of_arguments(arguments, first, ["tags"]) != KEYED.of_arguments(arguments, second, ["tags"])


def test_models_are_values_too() -> None:
    """A pydantic model is hashed by its fields."""
    assert KEYED.of(Model(b=1, a="x")) == KEYED.of({"a": "x", "b": 1})


def test_a_key_tells_nothing_without_the_secret() -> None:
    """The same value has another key under another secret; each is 32 hexadecimal digits."""
    keys = [KeyHash(secret).of(42) for secret in (b"", b"one secret of 16", b"other secret, 16")]
    assert len(set(keys)) == 3
    assert {len(bytes.fromhex(key)) for key in keys} == {16}


class Reversing:
    """A codec whose bytes are no letters."""

    hash_key = b"a key of sixteen bytes"

    def encode(self, data: bytes) -> bytes:
        return zlib.compress(data)

    def decode(self, data: bytes) -> bytes:
        return zlib.decompress(data)


class Letters(Reversing):
    """A codec whose bytes are letters, as Fernet's are."""

    def encode(self, data: bytes) -> bytes:
        return data.hex().encode()

    def decode(self, data: bytes) -> bytes:
        return bytes.fromhex(data.decode())


@pytest.mark.parametrize("codec", [Reversing(), Letters()])
@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_a_payload_comes_back_as_it_was(codec: Reversing, text: str) -> None:
    """Any text is stored as a JSON object, and read again."""
    payloads = Payloads(codec)
    assert is_encoded(payloads.encode(text))
    assert payloads.decode(payloads.encode(text)) == text


def test_a_payload_from_before_the_codec_is_read_as_it_is() -> None:
    """A codec can be introduced while jobs wait."""
    assert Payloads(Letters()).decode('{"customer": 7}') == '{"customer": 7}'


def test_a_payload_that_cannot_be_decoded_is_not_quoted() -> None:
    """The error names the codec's exception, and no part of the payload."""
    with pytest.raises(UnreadablePayload, match="ValueError") as raised:
        Payloads(Letters()).decode('{"~reltask":"secret"}')
    assert "secret" not in str(raised.value)
    assert raised.value.__context__ is None


def test_no_key_is_made_without_a_secret_beside_a_codec() -> None:
    """A plain hash of a small number can be undone by trying all of them."""

    class Bare:
        def encode(self, data: bytes) -> bytes:
            return data

        decode = encode

    keys = check_codec(Bare())
    with pytest.raises(ConfigurationError, match="hash_key"):
        keys.of(42)


def test_what_is_no_codec_is_refused_at_once() -> None:
    """`App(codec=…)` checks what it is given."""
    with pytest.raises(ConfigurationError, match="encode and decode"):
        App("sqlite:///:memory:", codec=object())  # type: ignore[arg-type]

    with pytest.raises(ConfigurationError, match="is a class"):
        App("sqlite:///:memory:", codec=Reversing)  # type: ignore[arg-type]

    class Short(Reversing):
        hash_key = b"short"

    with pytest.raises(ConfigurationError, match="16 bytes"):
        App("sqlite:///:memory:", codec=Short())
