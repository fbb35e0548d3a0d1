"""A dashboard behind a real server, on a thread of its own; and work on another thread."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import uvicorn

from reltask.web.dashboard import Dashboard

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """Do it on another thread: the browser's driver keeps a loop running on this one."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(work).result()


class Served:
    """A dashboard behind uvicorn, on a thread of its own."""

    def __init__(self, dashboard: Dashboard) -> None:
        self.dashboard = dashboard
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()  # a browser that comes before uvicorn waits instead of being refused
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(dashboard, log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=lambda: asyncio.run(self._server.serve(sockets=[listener])), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
