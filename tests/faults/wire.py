"""The part of PostgreSQL's protocol that shows which statement a client sends.

    startup   ▏length▕ …                    no type; the first bytes of a connection, perhaps twice (TLS is asked first)
    later     ▏type▕ length▕ …              Parse names a statement and brings its text; Bind uses it by its name;
                                            Query brings the text itself (BEGIN, COMMIT)

A Bind is followed by Execute and Sync. ReadyForQuery answers those, and ends the statement.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from reltask.stores.statement import load

_STARTUP_REQUESTS = (80877103, 80877104)
"""TLS, GSS: the server answers with one byte, and the real startup message follows."""


class Message(Protocol):
    """One whole message of a client."""

    @property
    def raw(self) -> bytes:
        """The bytes as received."""
        ...

    @property
    def ends_request(self) -> bool:
        """Whether the server can answer now."""
        ...

    def runs(self, verb: str) -> bool:
        """Whether it runs this verb, or is a COMMIT."""
        ...


class Client(Protocol):
    """Splits a client's bytes into messages."""

    def feed(self, data: bytes) -> Sequence[Message]:
        """The messages that are complete so far."""
        ...


class Server(Protocol):
    """Notices when a server has answered."""

    def is_ready(self, data: bytes) -> bool:
        """Whether these bytes end an answer."""
        ...


class Wire(NamedTuple):
    """What the proxy knows of a protocol: one of each for every connection."""

    client: Callable[[], Client]
    server: Callable[[], Server]


class PostgresMessage(NamedTuple):
    """One whole message."""

    kind: bytes
    """Empty for a startup message."""
    raw: bytes
    statement: str | None = None
    """The text of the statement that it runs, if it runs one."""

    @property
    def ends_request(self) -> bool:
        return self.kind in (b"S", b"Q")

    def runs(self, verb: str) -> bool:
        """A verb by its whole text, anything else by its first words."""
        if self.statement is None:
            return False
        return self.statement == text_of(verb) if verb.islower() else self.statement.startswith(verb)


def text_of(verb: str) -> str:
    """The text that the store sends for a verb."""
    (statement,) = load("postgres", verb, "numbered")
    return statement.text


class ClientSide:
    """Remembers a client's prepared statements."""

    def __init__(self) -> None:
        self._buffer = b""
        self._started = False
        self._prepared: dict[bytes, str] = {}

    def feed(self, data: bytes) -> list[PostgresMessage]:
        """The messages that are complete so far."""
        self._buffer += data
        found = []
        while (message := self._next()) is not None:
            found.append(message)
        return found

    def _next(self) -> PostgresMessage | None:
        head = 1 if self._started else 0
        if len(self._buffer) < head + 4:
            return None
        (length,) = struct.unpack_from(">i", self._buffer, head)
        if len(self._buffer) < head + length:
            return None
        raw, self._buffer = self._buffer[: head + length], self._buffer[head + length :]
        return self._understood(raw) if self._started else self._startup(raw)

    def _startup(self, raw: bytes) -> PostgresMessage:
        (code,) = struct.unpack_from(">i", raw, 4)
        self._started = code not in _STARTUP_REQUESTS
        return PostgresMessage(b"", raw)

    def _understood(self, raw: bytes) -> PostgresMessage:
        kind, body = raw[:1], raw[5:]
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self._prepared[name] = text.decode()
        if kind == b"B":
            _, name, _ = body.split(b"\0", 2)
            return PostgresMessage(kind, raw, self._prepared.get(name))
        if kind == b"Q":
            return PostgresMessage(kind, raw, body.rstrip(b"\0").decode())
        return PostgresMessage(kind, raw)


class ServerSide:
    """A server is ready for the next statement when it says so."""

    def __init__(self) -> None:
        self._buffer = b""

    def is_ready(self, data: bytes) -> bool:
        """Whether these bytes contain a ReadyForQuery."""
        self._buffer += data
        ready = False
        while len(self._buffer) >= 5:
            (length,) = struct.unpack_from(">i", self._buffer, 1)
            if len(self._buffer) < 1 + length:
                break
            ready = ready or self._buffer[:1] == b"Z"
            self._buffer = self._buffer[1 + length :]
        return ready


POSTGRES = Wire(ClientSide, ServerSide)
