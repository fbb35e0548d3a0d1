"""Payloads that only the app can read: what `App(codec=…)` makes of them.

    arguments, headers, progress, results,    ──► codec.encode ──► {"~reltask":"gAAA…"}   in every table
    values of steps, signals and children     ◄── codec.decode ◄──

A stored text is JSON, so the encoded bytes are wrapped in a JSON object: as they are, if they are
plain letters, as those of Fernet; else in base64. A payload without the wrapper was written before
the app had a codec, and is read as it is.

The codec is called on the event loops of producers and workers, at once and in any thread: it must
not wait for anything, such as a key server. It may answer differently each time.
"""

from __future__ import annotations

import base64
import re
from typing import Protocol, runtime_checkable

import msgspec
from msgspec import Struct

from reltask.errors import ConfigurationError, UnreadablePayload
from reltask.model.keys import KeyHash

_AS_IT_IS = re.compile(rb"[\w\-+/=.:~]*", re.ASCII)
WRAPPERS = _TEXT, _BASE64 = '{"~reltask":', '{"~reltask64":'
"""How the text of an encoded payload begins."""
_SHORTEST = 16
"""Bytes of a `hash_key`."""


@runtime_checkable
class Codec(Protocol):
    """Encodes the payloads of an app, for example by encrypting them.

    An attribute `hash_key`, at least 16 secret bytes, is needed for keys that are made from arguments.
    """

    def encode(self, data: bytes, /) -> bytes:
        """The bytes to store."""
        ...

    def decode(self, data: bytes, /) -> bytes:
        """The bytes that were encoded, with any key that is still in use."""
        ...


class _Wrapper(Struct, forbid_unknown_fields=True, omit_defaults=True):
    text: str | None = msgspec.field(default=None, name="~reltask")
    base64: str | None = msgspec.field(default=None, name="~reltask64")


_wrapper = msgspec.json.Decoder(_Wrapper)


class Payloads:
    """Encodes and decodes stored texts."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec

    def encode(self, text: str) -> str:
        """The JSON to store for a JSON text."""
        try:
            data = self._codec.encode(text.encode())
        except Exception as error:  # noqa: BLE001 - its message may quote the payload
            why = type(error).__name__
        else:
            return self._wrapped(data)
        raise ConfigurationError(f"The app's codec cannot encode a payload: it raised {why}.")

    def _wrapped(self, data: bytes) -> str:
        if _AS_IT_IS.fullmatch(data):
            return f'{_TEXT}"{data.decode("ascii")}"}}'
        return f'{_BASE64}"{base64.b64encode(data).decode("ascii")}"}}'

    def decoded_or_kept(self, text: str | None) -> str | None:
        """As `decode`, but what cannot be decoded stays as it is stored: one such row must not hide the others."""
        try:
            return None if text is None else self.decode(text)
        except UnreadablePayload:
            return text

    def decode(self, text: str) -> str:
        """The JSON text of a stored one, or UnreadablePayload. One that was not encoded is returned as it is."""
        if not is_encoded(text):
            return text
        try:
            wrapped = _wrapper.decode(text)
            data = base64.b64decode(wrapped.base64) if wrapped.base64 is not None else (wrapped.text or "").encode()
            return self._codec.decode(data).decode()
        except Exception as error:  # noqa: BLE001 - a codec may raise anything, and its message may quote the payload
            why = type(error).__name__
        raise UnreadablePayload(f"A stored payload cannot be decoded: the codec raised {why}.")


def is_encoded(text: str) -> bool:
    """Whether a stored text is wrapped. PostgreSQL and SQL Server return it as it was written."""
    return text.startswith(WRAPPERS)


def refuse_encoded(text: str | None) -> None:
    """UnreadablePayload for a text that is encoded still: the app's codec could not decode it, or it has none."""
    if text is not None and is_encoded(text):
        raise UnreadablePayload("A stored payload is encoded, and this app cannot decode it.")


def check_codec(codec: object) -> KeyHash:
    """Refuse an object that is no codec; return how keys are made beside it."""
    if codec is None:
        return KeyHash()
    if isinstance(codec, type):
        raise ConfigurationError(
            f"App(codec=…): {codec.__name__} is a class.", remedy=f"Pass an object: codec={codec.__name__}(…)."
        )
    if not isinstance(codec, Codec):
        raise ConfigurationError(
            f"App(codec=…): {type(codec).__name__} has no encode and decode.",
            remedy="Pass an object with encode(bytes) -> bytes and decode(bytes) -> bytes.",
        )
    secret = getattr(codec, "hash_key", None)
    if secret is not None and not (isinstance(secret, bytes) and len(secret) >= _SHORTEST):
        raise ConfigurationError(
            f"App(codec=…): hash_key must be at least {_SHORTEST} bytes.", remedy="Use secrets.token_bytes(32), once."
        )
    return KeyHash(secret)
