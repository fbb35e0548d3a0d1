"""What a holder publishes about its work: JSON values by name, checked when set, sent with the next heartbeat."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import msgspec

from reltask.errors import ArgumentsError
from reltask.model.arguments import encode_json

LIMIT = 16_384
"""Bytes of JSON: it is written with every heartbeat after a change."""


class Metadata(MutableMapping[str, Any]):
    """A thread-safe dict that refuses what cannot be stored. It returns copies: to change a value, set it again."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._text = "{}"
        self._version = 0
        self._sent = 0
        self._lock = threading.Lock()

    def __getitem__(self, name: str) -> Any:
        return msgspec.json.decode(self._text)[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self.change({name: value})

    def __delitem__(self, name: str) -> None:
        with self._lock:
            rest = {key: value for key, value in self._values.items() if key != name}
            if len(rest) == len(self._values):
                raise KeyError(name)
            self._replace(rest)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr(msgspec.json.decode(self._text))

    def change(self, values: Mapping[str, Any]) -> None:
        """Set all of these values, or raise ArgumentsError and set none."""
        with self._lock:
            self._replace({**self._values, **values})

    def restart(self) -> None:
        """Clear the values for a new term; its first heartbeat overwrites those of the last one."""
        with self._lock:
            self._replace({})

    def unsent(self) -> tuple[int, str] | None:
        """What the next heartbeat must send, and its version; None: the database already has it."""
        with self._lock:
            return None if self._version == self._sent else (self._version, self._text)

    def sent(self, version: int) -> None:
        """The database has acknowledged this version."""
        self._sent = version

    def _replace(self, values: dict[str, Any]) -> None:
        text = _encoded(values)
        self._values, self._text = msgspec.json.decode(text), text
        self._version += 1


def _encoded(values: dict[str, Any]) -> str:
    if not all(isinstance(name, str) for name in values):
        raise ArgumentsError("A lease's metadata has a key that is not a string.", remedy="Use strings as keys.")
    try:
        raw = encode_json(values)
    except (TypeError, ValueError) as error:
        raise ArgumentsError(
            f"A lease's metadata cannot be stored: {error}.", remedy="Use numbers, strings, lists and dicts."
        ) from error
    if len(raw) > LIMIT:
        raise ArgumentsError(
            f"A lease's metadata takes {len(raw):,} bytes, more than the limit of {LIMIT:,}.",
            remedy="Publish a summary, and keep the rest elsewhere.",
        )
    return raw.decode()
