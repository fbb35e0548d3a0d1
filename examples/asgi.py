"""A worker inside a web application, by the ASGI lifespan. No framework is needed; with one it looks the same.

    uvicorn asgi:web

`GET /hello/Ada` enqueues a job, and the worker of this or any other process runs it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from reltask import App

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

app = App("sqlite:///reltask.db")


@app.task
async def hello(name: str) -> None:
    print(f"Hello, {name}!", flush=True)


async def web(scope: Message, receive: Receive, send: Send) -> None:
    """The ASGI application."""
    if scope["type"] == "lifespan":
        await lifespan(receive, send)
    elif scope["type"] == "http":
        job = await hello.enqueue(scope["path"].rpartition("/")[2])
        await send({"type": "http.response.start", "status": 202, "headers": []})
        await send({"type": "http.response.body", "body": f"{job.id}\n".encode()})


async def lifespan(receive: Receive, send: Send) -> None:
    """Run a worker from the server's start to its end. It changes neither signals nor logging: the server owns them."""
    await receive()
    async with app.worker():
        await send({"type": "lifespan.startup.complete"})
        await receive()
    await send({"type": "lifespan.shutdown.complete"})
