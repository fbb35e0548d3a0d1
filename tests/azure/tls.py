"""TLS in front of a PostgreSQL that may have been built without it, as on Azure.

    client ── SSLRequest ──► S ══ TLS, with a certificate for 127.0.0.1 ══► plain, on loopback ──► PostgreSQL
                       └──► N: this server has no TLS

What arrives outside TLS is kept, so that a test can check that it was only the request for TLS. A
client may present a certificate, for example the server's own; its name is kept too.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

HOST = "127.0.0.1"
SSL_REQUEST = bytes.fromhex("0000000804d2162f")


class TlsFront:
    """Listens on its own port, and forwards what arrives over TLS to a server's port."""

    def __init__(self, target: int, directory: Path) -> None:
        self.authority = directory / "authority.pem"
        """The file for `sslrootcert`."""
        self.certificate, self.key = directory / "server.pem", directory / "server.key"
        """The files for `sslcert` and `sslkey`."""
        self.port = 0
        self.offers_tls = True
        self.in_clear: list[bytes] = []
        """Everything that arrived without TLS."""
        self.shown: list[str | None] = []
        """The certificate name of each client that presented one."""
        self.protocols: list[str | None] = []
        """The protocols that each client offered inside TLS."""
        self._target = target
        self._served = 0
        self._unused = threading.Event()
        self._unused.set()
        self.context = server_context(directory, self.authority)
        self.context.set_alpn_protocols(["postgresql"])
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.context.load_verify_locations(self.authority)

    async def open(self) -> asyncio.Server:
        server = await asyncio.start_server(self._serve, HOST, 0)
        self.port = int(server.sockets[0].getsockname()[1])
        return server

    async def end(self) -> None:
        """End every connection, including those that are just being accepted or copied."""
        await _turns()
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await _turns()

    async def left(self) -> None:
        """Wait until no client is connected, and a client on the calling loop has noticed the end of TLS."""
        await asyncio.to_thread(self._unused.wait)
        await _turns()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._served += 1
        self._unused.clear()
        with suppress(OSError, asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.transport.abort()
        await _turns()
        self._served -= 1
        if self._served == 0:
            self._unused.set()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.in_clear.append(await reader.read(4096))
        if not self.offers_tls:
            writer.write(b"N")
            self.in_clear.append(await reader.read(4096))
            return
        writer.write(b"S")
        await writer.start_tls(self.context)
        self.shown.append(_common_name(writer.get_extra_info("peercert")))
        self.protocols.append(writer.get_extra_info("ssl_object").selected_alpn_protocol())
        server_reader, server_writer = await asyncio.open_connection(HOST, self._target)
        answers = asyncio.create_task(_copy(server_reader, writer))
        try:
            await _copy(reader, server_writer)
        finally:
            answers.cancel()
            server_writer.transport.abort()


def _common_name(certificate: dict[str, Any] | None) -> str | None:
    return certificate["subject"][0][0][1] if certificate else None


async def _turns() -> None:
    """A transport closes its socket one loop turn after its end, TLS one turn later."""
    for _ in range(10):
        await asyncio.sleep(0)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


@contextmanager
def tls_front(target: int, directory: Path) -> Iterator[TlsFront]:
    """A front in a separate thread, so that synchronous code can be its client."""
    front = TlsFront(target, directory)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    server = asyncio.run_coroutine_threadsafe(front.open(), loop).result()
    try:
        yield front
    finally:
        loop.call_soon_threadsafe(server.close)
        asyncio.run_coroutine_threadsafe(front.end(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# Certificates


def server_context(directory: Path, authority_file: Path) -> ssl.SSLContext:
    """A server's side of TLS: its key, and a certificate from an authority stored beside it."""
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _certificate("authority", authority_key, "authority", authority_key)
    certificate = _certificate("server", key, "authority", authority_key)
    authority_file.write_bytes(authority.public_bytes(Encoding.PEM))
    (directory / "server.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (directory / "server.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "server.pem", directory / "server.key")
    return context


def _certificate(
    name: str, key: ec.EllipticCurvePrivateKey, issuer: str, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    """Valid for an hour: a self-signed authority's, otherwise a server's on loopback."""
    now, hour = datetime.now(UTC), timedelta(hours=1)
    is_authority = name == issuer
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - hour)
        .not_valid_after(now + hour)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(_usage(is_authority=is_authority), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
    )
    if not is_authority:
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address(HOST))]), critical=False)
    return builder.sign(issuer_key, SHA256())


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
