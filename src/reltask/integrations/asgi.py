"""A worker, or a producer's connections, in an ASGI application: FastAPI, Starlette, Litestar.

FastAPI(lifespan=lifespan(app))            Starlette(lifespan=lifespan(app))         a worker in each server process
FastAPI(lifespan=lifespan(app, worker=False))                                        connections for enqueueing only
Litestar(lifespan=[lifespan(app)])
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from reltask.app import App

Lifespan = Callable[[Any], AbstractAsyncContextManager[Any]]


def lifespan(app: App, *, worker: bool = True, inside: Lifespan | None = None) -> Lifespan:
    """A lifespan for the web application; `inside` is your own, entered after reltask and left before it.

    With `worker=False` the server only enqueues, over connections on its own loop; workers run elsewhere.
    """

    @asynccontextmanager
    async def entered(web: Any) -> AsyncIterator[Any]:
        async with app.worker() if worker else app.producer():
            if inside is None:
                yield
            else:
                async with inside(web) as state:
                    yield state

    return entered
