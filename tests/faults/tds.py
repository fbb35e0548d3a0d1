"""The part of SQL Server's protocol, TDS, that shows which statement a client sends.

    ▏type▕ status▕ length▕ session▕ number▕ window▕ …        8 bytes before each packet; a message is one or more,
                                                             and the last has bit 0 of its status set

A batch carries its text in UTF-16; so does a call of sp_prepexec or sp_executesql, in its
arguments. Our statements begin with a comment that states their purpose, each a different one. Only
unencrypted traffic can be read: `encrypt=no`. A server with a certificate wants the login encrypted
even then; that packet has TLS's own header.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import NamedTuple

from reltask.stores.statement import read_sql
from tests.faults.wire import Wire

HEAD = 8
BATCH, CALL, TLS = 0x01, 0x03, 0x17
LAST = 0x01


class TdsMessage(NamedTuple):
    """One whole message."""

    kind: int
    raw: bytes
    body: bytes
    """Without the packets' heads."""

    @property
    def ends_request(self) -> bool:
        return self.kind in (BATCH, CALL)

    def runs(self, verb: str) -> bool:
        """Whether it contains this verb's purpose. A commit counts as a verb here."""
        return self.ends_request and purpose("commit_transaction" if verb == "COMMIT" else verb) in self.body


@cache
def purpose(verb: str) -> bytes:
    """The first line of a verb's file, as sent."""
    return read_sql("mssql", verb).partition("\n")[0].encode("utf-16-le")


class Packets:
    """Splits bytes into packets."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The packets that are complete so far."""
        self._buffer += data
        found = []
        while len(self._buffer) >= HEAD and len(self._buffer) >= (length := self._length()):
            found.append(self._buffer[:length])
            self._buffer = self._buffer[length:]
        return found

    def _length(self) -> int:
        if self._buffer[0] == TLS:
            return 5 + int(struct.unpack_from(">H", self._buffer, 3)[0])
        return int(struct.unpack_from(">H", self._buffer, 2)[0])


class ClientSide:
    """Joins packets to messages."""

    def __init__(self) -> None:
        self._packets = Packets()
        self._parts: list[bytes] = []

    def feed(self, data: bytes) -> list[TdsMessage]:
        """The messages that are complete so far."""
        found = []
        for packet in self._packets.feed(data):
            self._parts.append(packet)
            if packet[0] == TLS or packet[1] & LAST:
                parts, self._parts = self._parts, []
                found.append(TdsMessage(packet[0], b"".join(parts), b"".join(part[HEAD:] for part in parts)))
        return found


class ServerSide:
    """An answer ends with its last packet."""

    def __init__(self) -> None:
        self._packets = Packets()

    def is_ready(self, data: bytes) -> bool:
        """Whether these bytes contain a last packet."""
        return bool([packet for packet in self._packets.feed(data) if packet[1] & LAST])


TDS = Wire(ClientSide, ServerSide)
