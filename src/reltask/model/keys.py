"""Short texts by which equal values are recognised: keys made from arguments, of `unique` and of limits.

    send(42)            ┐ defaults bound,      {"customer":42,"kind":"mail"} ─► HMAC-SHA256 ─► 9f86d081884c7d65…
    send(customer=42)   ┘ canonical JSON

With `App(codec=…)` the hash is keyed by the codec's `hash_key`: a plain hash of a customer's number
could be found by trying all numbers, and what the codec encodes differs each time. The key must
outlive every rotation of the codec's own keys; after a change of it, no equal values are recognised.
"""

from __future__ import annotations

import hmac
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from reltask.errors import ConfigurationError
from reltask.model.arguments import Arguments, to_plain

_BYTES = 16
_CANONICAL = msgspec.json.Encoder(enc_hook=to_plain, order="deterministic")


class KeyHash(Struct, frozen=True):
    """Makes the keys of one app."""

    secret: bytes | None = b""
    """None: the app has a codec without a `hash_key`, and values must not be hashed without one."""

    def of(self, value: object) -> str:
        """32 hexadecimal digits for a JSON value: the same for equal values, whatever the order of sets and dicts."""
        if self.secret is None:
            raise ConfigurationError(
                "A key made from arguments needs a codec with a hash_key.",
                remedy="Give the codec an attribute hash_key: 32 random bytes that stay when its other keys change.",
            )
        return self.of_bytes(_CANONICAL.encode(value))

    def of_bytes(self, data: bytes) -> str:
        """32 hexadecimal digits for these bytes."""
        return hmac.digest(self.secret or b"", data, "sha256")[:_BYTES].hex()

    def of_arguments(self, arguments: Arguments, args: str, names: Sequence[str] | None = None) -> str:
        """The hash of a call's arguments (JSON, as `Arguments.encode` returns it), defaults bound.

        `names` are the parameters that count; None: all of them.
        """
        given = arguments.bound(args)
        return self.of(given if names is None else {name: given[name] for name in names})
