"""A TCP gate before a database: open, closed (connections are refused) or silent (nothing is answered)."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Gate:
    """Forwards a loopback port to another one."""

    def __init__(self, to: int) -> None:
        self._to = to
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self.port = 0

    async def open(self) -> None:
        """Forward, from now on or again."""
        self._flowing.set()
        if self._server is None:
            self._server = await asyncio.start_server(self._forward, "127.0.0.1", self.port)
            self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Cut all connections, and refuse new ones."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in list(self._writers):
            writer.transport.abort()
        self._flowing.set()

    def silence(self) -> None:
        """Take everything, and pass on nothing."""
        self._flowing.clear()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            there, back = await asyncio.open_connection("127.0.0.1", self._to)
            self._writers |= {writer, back}
            await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        writer.close()
        self._writers.discard(writer)
