"""A gateway that speaks TDS as an Azure SQL server does, on loopback. The real driver connects to it.

    PRELOGIN ──► is there TLS?  is a token wanted?                    in clear: nothing else comes here
    TLS      ◄─► the handshake, inside of PRELOGIN packets
    LOGIN7   ══► user, password, database, token                      ══► LOGINACK, or an error in the server's words
    batch    ══► whatever is asked                                    ══► done, or an error in the server's words

Either there is no server behind it, and a statement returns no rows; or it forwards to a server
that takes passwords:

    token ══► gateway ── user, password ──► server                    then every packet, both ways, unchanged

The layouts are those of Microsoft's open specification [MS-TDS].
"""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import takewhile
from pathlib import Path
from urllib.parse import SplitResult, unquote

from tests.azure.tls import HOST, server_context

Recv = Callable[[int], bytes]
HEAD = 8
PRELOGIN, LOGIN, ANSWER, ATTENTION = 0x12, 0x10, 0x04, 0x06
LAST = 0x01
RESET = 0x08
"""In the status of a request: before it the session gets its first settings back."""
VERSION, ENCRYPTION, TOKEN_WANTED, END = 0x00, 0x01, 0x06, 0xFF
ON, NOT_SUPPORTED = 0x01, 0x02
BY_TOKEN = 0x02
"""The feature of a login that carries a token."""
FIXED, PASSWORD, CLIENT_ID = 94, 2, 8
"""Of a login: the length of its fixed part, which field is the password, and where the client's id follows."""


@dataclass(frozen=True)
class Refusal:
    """An error, as a server answers it."""

    number: int
    text: str
    severity: int = 14


@dataclass(frozen=True)
class Login:
    """What a client sent at its login."""

    user: str
    password: bytes
    database: str
    token: str | None


@dataclass
class Gateway:
    """The gateway, and what clients sent to it."""

    context: ssl.SSLContext
    port: int = 0
    offers_tls: bool = True
    refuses_login: Refusal | None = None
    refuses_batch: Refusal | None = None
    replies: Callable[[bytes], bytes | None] | None = None
    """What is answered to a request: nothing at all if it is empty; None: the connection is cut."""
    deaf: bool = False
    """It does not even answer that a statement was cancelled."""
    behind: SplitResult | None = None
    """The URL of a server that takes passwords, on loopback, without TLS."""
    logins: list[Login] = field(default_factory=list)
    clear: list[bytes] = field(default_factory=list)
    """What a client sent after the server had said that it has no TLS."""
    resets: list[bytes] = field(default_factory=list)
    """The requests before which the session was reset."""
    threads: list[threading.Thread] = field(default_factory=list)
    """One for each connection."""

    def wait(self) -> None:
        """Wait until every connection has ended."""
        for thread in self.threads:
            thread.join(10)
            assert not thread.is_alive()

    def serve(self, client: socket.socket) -> None:
        """Serve one connection to its end."""
        with suppress(OSError, EOFError, ssl.SSLError), client:
            client.sendall(_packet(ANSWER, _prelogin(_read(client.recv), ON if self.offers_tls else NOT_SUPPORTED)))
            while not self.offers_tls:
                self.clear.append(_some(client.recv(4096)))
            stream = Tls(client, self.context)
            login = _login(_read(stream.recv))
            self.logins.append(login)
            if self.refuses_login is not None:
                stream.sendall(_packet(ANSWER, _refused(self.refuses_login)))
            elif self.behind is not None:
                self._lead_in(stream, login, self.behind)
            else:
                self._answer(stream, login)

    def _answer(self, stream: Tls, login: Login) -> None:
        stream.sendall(_packet(ANSWER, _accepted(login)))
        while self.replies is not None:
            kind, status, body = _message(stream.recv)
            if status & RESET:
                self.resets.append(body)
            answer = cancelled() if kind == ATTENTION and not self.deaf else self.replies(body)
            if answer is None:
                return
            if answer:
                stream.sendall(_packet(ANSWER, answer))
        while _read(stream.recv):
            stream.sendall(_packet(ANSWER, _refused(self.refuses_batch) if self.refuses_batch else _done()))

    def _lead_in(self, stream: Tls, login: Login, behind: SplitResult) -> None:
        """Log in to the server behind with a password, then forward all packets."""
        with socket.create_connection((behind.hostname, behind.port)) as server:
            server.sendall(_packet(PRELOGIN, _prelogin(b"", NOT_SUPPORTED)))
            _read(server.recv)
            server.sendall(
                _packet(LOGIN, _by_password(unquote(f"{behind.username}"), unquote(f"{behind.password}"), login))
            )
            stream.sendall(_packet(ANSWER, _with_token_accepted(_read(server.recv))))
            while True:
                for ready in select.select([stream.client, server], [], [])[0]:
                    if ready is server:
                        stream.sendall(_some(server.recv(65_536)))
                    else:
                        server.sendall(stream.receive())


class Tls:
    """TLS whose handshake travels inside TDS packets, and whose records travel bare afterwards."""

    def __init__(self, client: socket.socket, context: ssl.SSLContext) -> None:
        self.client = client
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=True)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._flush(inside=PRELOGIN)
                self._in.write(_read(client.recv))
            else:
                self._flush(inside=PRELOGIN)
                return

    def recv(self, size: int) -> bytes:
        while True:
            try:
                return self._tls.read(size)
            except ssl.SSLWantReadError:
                self._in.write(_some(self.client.recv(65_536)))

    def receive(self) -> bytes:
        """Everything received so far; perhaps no whole record yet."""
        self._in.write(_some(self.client.recv(65_536)))
        data = b""
        with suppress(ssl.SSLWantReadError):
            while True:
                data += self._tls.read(65_536)
        return data

    def sendall(self, data: bytes) -> None:
        self._tls.write(data)
        self._flush()

    def _flush(self, inside: int | None = None) -> None:
        data = self._out.read()
        if data:
            self.client.sendall(data if inside is None else _packet(inside, data))


@contextmanager
def gateway(directory: Path) -> Iterator[Gateway]:
    """A running gateway, with a thread for each connection."""
    context = server_context(directory, directory / "authority.pem")
    context.maximum_version = ssl.TLSVersion.TLSv1_2  # TLS 1.3 cannot be spoken inside of TDS 7.4
    door = Gateway(context)

    def accept(listening: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listening.accept()
                door.threads.append(threading.Thread(target=door.serve, args=(client,), daemon=True))
                door.threads[-1].start()

    listening = socket.create_server((HOST, 0))
    door.port = listening.getsockname()[1]
    accepting = threading.Thread(target=accept, args=(listening,), daemon=True)
    accepting.start()
    try:
        yield door
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        accepting.join(10)
        door.wait()


def greet(client: socket.socket) -> None:
    """Answer the first packet of a login, as a server without TLS does."""
    client.sendall(_packet(ANSWER, _prelogin(_read(client.recv), NOT_SUPPORTED)))


# Packets


def _packet(kind: int, body: bytes) -> bytes:
    return struct.pack(">BBHHBB", kind, LAST, HEAD + len(body), 0, 1, 0) + body


def _read(recv: Recv) -> bytes:
    """The body of one message."""
    return _message(recv)[2]


def _message(recv: Recv) -> tuple[int, int, bytes]:
    """The kind, the status and the body of one message."""
    body, kind, status = b"", 0, 0
    while not status & LAST:
        kind, now, length, *_ = struct.unpack(">BBHHBB", _exactly(recv, HEAD))
        body += _exactly(recv, length - HEAD)
        status |= now
    return kind, status, body


def _exactly(recv: Recv, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += _some(recv(size - len(data)))
    return data


def _some(data: bytes) -> bytes:
    if not data:
        raise EOFError
    return data


# What the client sends


def _login(body: bytes) -> Login:
    def text(at: int) -> bytes:
        offset, characters = struct.unpack_from("<HH", body, at)
        return body[offset : offset + 2 * characters]

    carried = _features(body).get(BY_TOKEN)
    return Login(
        user=text(40).decode("utf-16-le"),
        password=text(44),
        database=text(68).decode("utf-16-le"),
        token=None if carried is None else _token(carried),
    )


def _features(body: bytes) -> dict[int, bytes]:
    """The features of a login, beyond its fixed fields."""
    (offset,) = struct.unpack_from("<H", body, 56)
    (at,) = struct.unpack_from("<I", body, offset)
    found = {}
    while body[at] != END:
        kind, length = struct.unpack_from("<BI", body, at)
        found[kind] = body[at + 5 : at + 5 + length]
        at += 5 + length
    return found


def _token(carried: bytes) -> str:
    (length,) = struct.unpack_from("<I", carried, 1)
    return carried[5 : 5 + length].decode("utf-16-le")


# What the gateway sends to the server behind it


def _by_password(user: str, password: str, login: Login) -> bytes:
    """A login without features: user, password, and the requested database."""
    words = ["gateway", user, password, "gateway", "", "", "", "", login.database, "", "", ""]
    heads, data = b"", b""
    for nth, word in enumerate(words):
        text = word.encode("utf-16-le")
        heads += struct.pack("<HH", FIXED + len(data), len(word)) + (bytes(6) if nth == CLIENT_ID else b"")
        data += bytes((byte >> 4 | byte << 4 & 0xF0) ^ 0xA5 for byte in text) if nth == PASSWORD else text
    size = FIXED + len(data)
    flags = bytes([0xE0, 0x03, 0x00, 0x00])
    return struct.pack("<IIIIII", size, 0x74000004, 4096, 7, 1, 0) + flags + bytes(8) + heads + bytes(4) + data


def _with_token_accepted(answer: bytes) -> bytes:
    """The server's own answer, with the acknowledgement of the token added."""
    end = len(answer) - len(_done())
    return answer[:end] + _token_accepted() + answer[end:]


# What the server sends


def _prelogin(hello: bytes, encryption: int) -> bytes:
    options = [(VERSION, bytes([16, 0, 4, 165, 0, 0])), (ENCRYPTION, bytes([encryption]))]
    if TOKEN_WANTED in takewhile(lambda kind: kind != END, hello[::5]):
        options.append((TOKEN_WANTED, b"\x01"))
    offset, heads, data = 5 * len(options) + 1, b"", b""
    for kind, value in options:
        heads += struct.pack(">BHH", kind, offset + len(data), len(value))
        data += value
    return heads + bytes([END]) + data


def _accepted(login: Login) -> bytes:
    acknowledged = struct.pack(">BI", 1, 0x74000004) + _short("Microsoft SQL Server") + bytes([16, 0, 4, 165])
    return (
        _changed(1, login.database, "master")
        + _changed(4, "4096", "4096")
        + _sized(0xAD, acknowledged)
        + (_token_accepted() if login.token else b"")
        + _done()
    )


def _token_accepted() -> bytes:
    return struct.pack("<BBIB", 0xAE, BY_TOKEN, 0, END)


def _changed(kind: int, new: str, old: str) -> bytes:
    return _sized(0xE3, bytes([kind]) + _short(new) + _short(old))


def _refused(refusal: Refusal) -> bytes:
    words = refusal.text.encode("utf-16-le")
    error = struct.pack("<iBBH", refusal.number, 1, refusal.severity, len(words) // 2) + words
    return _sized(0xAA, error + _short("server") + _short("") + struct.pack("<i", 1)) + _done(failed=True)


def _done(*, failed: bool = False) -> bytes:
    return struct.pack("<BHHQ", 0xFD, 2 if failed else 0, 0, 0)


def done() -> bytes:
    """An answer without rows."""
    return _done()


def prepared(handle: int) -> bytes:
    """An answer without rows to a statement that was prepared with it: the number by which it is called again."""
    value = struct.pack("<HBBIHBBBi", 0, 0, 1, 0, 0, 0x26, 4, 4, handle)
    return struct.pack("<Bi", 0x79, 0) + bytes([0xAC]) + value + struct.pack("<BHHQ", 0xFE, 0, 0xE0, 0)


def failed(refusal: Refusal) -> bytes:
    """An error that the batch has not caught."""
    return _refused(refusal)


def cancelled() -> bytes:
    """The answer to an attention: the driver has given up, and says so."""
    return struct.pack("<BHHQ", 0xFD, 0x20, 0, 0)


def caught(number: int, text: str, *, committed: bool = False) -> bytes:
    """The row of a batch that has caught an error, perhaps after its COMMIT. More may follow."""
    words = text.encode("utf-16-le")
    columns = struct.pack("<IHB", 0, 0, 0x38) + _short("error_number")
    columns += struct.pack("<IHBH5s", 0, 1, 0xE7, 8000, b"\x09\x04\xd0\x00\x34") + _short("error_message")
    columns += struct.pack("<IHB", 0, 0, 0x32) + _short("committed")
    row = struct.pack("<iH", number, len(words)) + words + bytes([committed])
    more = struct.pack("<BHHQ", 0xFD, 0x11, 0xC1, 1)
    return struct.pack("<BH", 0x81, 3) + columns + bytes([0xD1]) + row + more


def row(**columns: datetime | int | None) -> bytes:
    """A result of one row: times, numbers, and nulls."""
    heads, values = b"", b""
    for name, value in columns.items():
        kind, size = (b"\x2a\x06", 8) if isinstance(value, datetime) else (b"\x26\x08", 8)
        heads += struct.pack("<IH", 0, 1) + kind + _short(name)
        values += b"\x00" if value is None else bytes([size]) + _column(value)
    return struct.pack("<BH", 0x81, len(columns)) + heads + bytes([0xD1]) + values + _done()


def _column(value: datetime | int) -> bytes:
    if isinstance(value, int):
        return struct.pack("<q", value)
    midnight = value.replace(hour=0, minute=0, second=0, microsecond=0)
    microseconds = (value - midnight) // timedelta(microseconds=1)
    return microseconds.to_bytes(5, "little") + (value.toordinal() - 1).to_bytes(3, "little")


def _sized(kind: int, value: bytes) -> bytes:
    return struct.pack("<BH", kind, len(value)) + value


def _short(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("utf-16-le")
