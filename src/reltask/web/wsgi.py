"""The dashboard for WSGI servers: each request is answered by the ASGI application, on a loop of its own thread.

The stream of live updates would keep a thread of the server for each viewer, so there is none: the page says that it
is not live, and is loaded again by its reader.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message

LARGEST = 1_000_000
"""Bytes of a form."""


class Wsgi:
    """A WSGI application in front of an ASGI one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(min(int(environ.get("CONTENT_LENGTH") or 0), LARGEST))
        status, headers, content = asyncio.run_coroutine_threadsafe(
            self._ask(_scope(environ), body), self._running()
        ).result()
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [content]

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    async def _ask(self, scope: dict[str, Any], body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        sent: list[Message] = []
        given = iter([{"type": "http.request", "body": body, "more_body": False}])
        answered = asyncio.Event()

        async def receive() -> Message:
            """The body, once. Then nothing comes: an answer that listens for the end of the connection must wait."""
            if (message := next(given, None)) is not None:
                return message
            await answered.wait()
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        answered.set()
        start = next(message for message in sent if message["type"] == "http.response.start")
        content = b"".join(message.get("body", b"") for message in sent if message["type"] == "http.response.body")
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in start["headers"]]
        return start["status"], headers, content

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="reltask-wsgi", daemon=True)
                self._thread.start()
            return self._loop


def _scope(environ: dict[str, Any]) -> dict[str, Any]:
    """The request in ASGI's words; a WSGI path has its bytes as Latin-1."""
    root = environ.get("SCRIPT_NAME", "").encode("latin-1").decode("utf-8", "replace")
    path = root + environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
    headers = [
        (name[5:].replace("_", "-").lower().encode(), str(value).encode("latin-1"))
        for name, value in environ.items()
        if name.startswith("HTTP_")
    ]
    if environ.get("CONTENT_TYPE"):
        headers.append((b"content-type", environ["CONTENT_TYPE"].encode("latin-1")))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": environ["REQUEST_METHOD"],
        "scheme": environ.get("wsgi.url_scheme", "http"),
        "path": path or "/",
        "raw_path": path.encode(),
        "root_path": root,
        "query_string": environ.get("QUERY_STRING", "").encode("latin-1"),
        "headers": headers,
        "client": (environ.get("REMOTE_ADDR", ""), int(environ.get("REMOTE_PORT") or 0)),
        "server": (environ.get("SERVER_NAME", ""), int(environ.get("SERVER_PORT") or 0)),
        "reltask.wsgi": True,
    }
