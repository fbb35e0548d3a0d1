"""A bad network in front of a good database: a TCP proxy on loopback, in a separate thread.

    worker ──► requests ──► server            pass, latency    everything arrives, perhaps later
           ◄── answers  ◄──                   black hole       nothing arrives, and no error is reported
                                              half-open        one direction only
                                              refuse, reset    connections are refused; open ones are reset
                                              forget           open connections are dead, and look alive; new ones work

What a black hole holds back is not lost but late, as on a real network: it arrives when the hole
closes, even if its sender has given up. Two faults are aimed at one statement, so that its outcome
is in doubt:

    cut   request ──────────────► applied             late   request ──► ┊ held          ┊ ──► applied, or too late
          answer  ──► ✂ connection reset                   connection reset at once   deliver()
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Literal, Self

from tests.faults.wire import POSTGRES, Message, Wire

Kind = Literal["cut", "keep", "late"]
HOST = "127.0.0.1"
PATIENCE = 20.0
"""Seconds, on a database that is not slow."""


class Aim:
    """One fault at one statement. `cut` and `late`: see above.

    `keep` withholds the answer and cuts nothing.
    """

    def __init__(self, verb: str, kind: Kind, loop: asyncio.AbstractEventLoop, patience: float) -> None:
        self.verb = verb
        self.kind = kind
        self._loop = loop
        self._patience = patience
        self._struck = threading.Event()
        self._landed = threading.Event()
        self._delivery = asyncio.Event()

    def deliver(self) -> None:
        """Let a late request arrive."""
        self._loop.call_soon_threadsafe(self._delivery.set)

    def struck(self) -> None:
        """Wait until the statement has been seen."""
        self._wait(self._struck, f"{self.verb} is sent")

    def landed(self) -> None:
        """Wait until the server has answered it, or has closed the connection it was to arrive on."""
        self._wait(self._landed, f"{self.verb} is answered")

    def _wait(self, event: threading.Event, what: str) -> None:
        if not event.wait(self._patience):
            raise AssertionError(f"not within {self._patience:g} s: {what}")

    @property
    def has_struck(self) -> bool:
        return self._struck.is_set()

    # On the proxy's thread

    def strike(self) -> None:
        self._struck.set()

    def land(self) -> None:
        self._landed.set()

    async def delivery(self) -> None:
        await self._delivery.wait()


class Proxy:
    """A proxy between workers and one server. Its methods may be called from any thread."""

    def __init__(self, port: int, wire: Wire = POSTGRES, *, patience: float = PATIENCE) -> None:
        self.wire = wire
        self.patience = patience
        self._target = port
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self.aims: list[Aim] = []
        self.latency = 0.0
        self.requests = asyncio.Event()
        self.answers = asyncio.Event()
        self.throws_out = False
        self._links: set[Link] = set()
        self._forgotten: set[Link] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._call(self._open)
        self.heal()
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE)
        self._loop.close()

    def url(self, url: str) -> str:
        """The URL of the same database through this proxy."""
        return url.replace(f":{self._target}/", f":{self.port}/")

    # Faults

    def aim(self, verb: str, kind: Kind) -> Aim:
        """Aim at the next statement of this verb: a name as in `sql/`, or COMMIT."""
        aim = Aim(verb, kind, self._loop, self.patience)
        self._do(lambda: self.aims.append(aim))
        return aim

    def heal(self) -> None:
        """Let everything through again."""
        self._do(self._set, requests=True, answers=True)

    def black_hole(self) -> None:
        self._do(self._set)

    def forget(self) -> None:
        """Swallow everything on the open connections, and close none of them: as a firewall that lost its state."""
        self._do(lambda: self._forgotten.update(self._links))

    def half_open(self, *, requests: bool) -> None:
        """Only requests arrive, or only answers do."""
        self._do(self._set, requests=requests, answers=not requests)

    def slow(self, seconds: float) -> None:
        """Delay every packet by `seconds`, in both directions."""
        self._do(self._set, requests=True, answers=True, latency=seconds)

    def reset(self) -> None:
        """Reset all connections now, and every new one until `heal`."""
        self._do(self._set, requests=True, answers=True, throws_out=True)
        self._do(self._throw_out)

    def refuse(self) -> None:
        """Refuse connections, as if no server listened, and reset the open ones.

        `listen_again` ends it.
        """
        self._call(self._stop_listening)
        self._do(self._throw_out)

    def listen_again(self) -> None:
        self._call(self._open)

    # On the proxy's thread

    def _set(
        self, *, requests: bool = False, answers: bool = False, latency: float = 0.0, throws_out: bool = False
    ) -> None:
        self.latency, self.throws_out = latency, throws_out
        for flow, is_open in ((self.requests, requests), (self.answers, answers)):
            flow.set() if is_open else flow.clear()

    def has_forgotten(self, link: Link) -> bool:
        return link in self._forgotten

    def _throw_out(self) -> None:
        for link in list(self._links):
            link.reset()

    async def _open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    async def _close(self) -> None:
        await self._stop_listening()
        self._throw_out()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.throws_out:
            _reset(writer)
            return
        try:
            server = await asyncio.open_connection(HOST, self._target)
        except OSError:
            _reset(writer)
            return
        link = Link(self, (reader, writer), server)
        self._links.add(link)
        try:
            await link.run()
        finally:
            self._links.discard(link)

    def _do(self, work: Callable[..., object], **arguments: object) -> None:
        """Run it on the proxy's thread, and wait."""

        async def done() -> None:
            work(**arguments)

        self._call(done)

    def _call(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        asyncio.run_coroutine_threadsafe(work(), self._loop).result(PATIENCE)


Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Link:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: Streams, server: Streams) -> None:
        self._proxy = proxy
        self._from_client, self._to_client = client
        self._from_server, self._to_server = server
        self._client_side = proxy.wire.client()
        self._server_side = proxy.wire.server()
        self._aim: Aim | None = None
        self._held: list[bytes] = []

    async def run(self) -> None:
        """Carry bytes until one side closes.

        A link that was hit stays until its statement is answered.
        """
        requests = asyncio.ensure_future(self._carry_requests())
        answers = asyncio.ensure_future(self._carry_answers())
        try:
            await asyncio.wait([requests, answers], return_when=asyncio.FIRST_COMPLETED)
            if requests.done() and self._aim is not None:
                await asyncio.wait([answers], timeout=self._proxy.patience)
        finally:
            for task in (requests, answers):
                task.cancel()
            await asyncio.gather(requests, answers, return_exceptions=True)
            self._to_client.close()
            self._to_server.close()

    def reset(self) -> None:
        """Close both sides with RST."""
        _reset(self._to_client)
        _reset(self._to_server)

    async def _carry_requests(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._from_client.read(65536):
                await self._travel(self._proxy.requests)
                if self._proxy.has_forgotten(self):
                    continue
                for message in self._client_side.feed(data):
                    await self._send(message)
        await self._travel(self._proxy.requests)  # the end of a connection does not cross a black hole either

    async def _send(self, message: Message) -> None:
        if self._aim is None:
            self._aim = self._aimed_at(message)
        if self._aim is None or self._aim.kind != "late":
            self._to_server.write(message.raw)
            return
        self._held.append(message.raw)
        if message.ends_request:  # its sender may be closed by now
            _reset(self._to_client)
            self._aim.strike()
            await self._aim.delivery()
            self._to_server.write(b"".join(self._held))

    def _aimed_at(self, message: Message) -> Aim | None:
        for aim in self._proxy.aims:
            if message.runs(aim.verb):
                self._proxy.aims.remove(aim)
                if aim.kind != "late":
                    aim.strike()
                return aim
        return None

    async def _carry_answers(self) -> None:
        with contextlib.suppress(OSError):
            while data := await self._from_server.read(65536):
                await self._travel(self._proxy.answers)
                if self._proxy.has_forgotten(self):
                    continue
                if self._aim is None:
                    self._to_client.write(data)
                elif self._server_side.is_ready(data):
                    self._land(self._aim)
                    if self._aim.kind != "keep":
                        return
        if self._aim is not None:
            self._aim.land()
        await self._travel(self._proxy.answers)

    def _land(self, aim: Aim) -> None:
        """The server has answered; the client does not get the answer."""
        if aim.kind == "cut":
            self.reset()
        aim.land()

    async def _travel(self, flow: asyncio.Event) -> None:
        if self._proxy.latency:
            await asyncio.sleep(self._proxy.latency)
        await flow.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with RST instead of FIN, which discards data in flight."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
