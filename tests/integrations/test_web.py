"""Web frameworks: a worker in the server's process, and its context around tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from reltask import App, BaseContext, UsageError
from reltask.integrations.asgi import lifespan
from reltask.testing import TestKit

pytestmark = pytest.mark.slow


@pytest.fixture
def app(tmp_path: Path) -> App:
    app = App(f"sqlite:///{tmp_path}/web.db", settings={"maintenance.coordination": "off"})

    @app.task
    async def hello(name: str) -> str:
        return f"Hello, {name}!"

    return app


async def get(web: Any, path: str) -> Any:
    """What a client receives."""
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=web), base_url="http://shop") as client:
        answer = await client.get(path)
        answer.raise_for_status()
        return answer.json()


def starlette(app: App, **options: Any) -> Starlette:
    async def greet(request: Request) -> JSONResponse:
        job = await app.get_task("hello").enqueue(request.path_params["name"])
        wait = request.query_params.get("wait")
        return JSONResponse(await job.result(timeout="20s") if wait else str(job.id))

    return Starlette(routes=[Route("/{name}", greet)], lifespan=lifespan(app, **options))


async def test_a_worker_runs_in_the_server(app: App) -> None:
    """From the start of the server to its end; its own lifespan is entered inside."""
    seen: list[str] = []

    @asynccontextmanager
    async def own(_: Starlette) -> AsyncIterator[dict[str, str]]:
        seen.append("in")
        yield {"greeting": "hi"}
        seen.append("out")

    web = starlette(app, inside=own)
    async with web.router.lifespan_context(web) as state:
        assert state == {"greeting": "hi"}
        assert await get(web, "/Ada?wait=1") == "Hello, Ada!"
        assert [worker.state for worker in await app.workers()] == ["alive"]
    assert seen == ["in", "out"]
    assert [worker.state for worker in await app.workers()] == ["stopped"]
    await asyncio.to_thread(app.close)


async def test_a_server_that_only_enqueues_runs_nothing(app: App) -> None:
    """`worker=False`: connections, and no worker."""
    web = starlette(app, worker=False)
    async with web.router.lifespan_context(web):
        await get(web, "/Ada")
    assert await app.workers() == []
    assert [job.task for job in await app.jobs()] == ["hello"]
    await asyncio.to_thread(app.close)


async def test_fastapi_takes_the_same_lifespan(app: App) -> None:
    """With its own handlers."""
    fastapi = pytest.importorskip("fastapi")
    web = fastapi.FastAPI(lifespan=lifespan(app))

    async def greet(name: str) -> str:
        job = await app.get_task("hello").enqueue(name)
        return str(await job.result(timeout="20s"))

    web.get("/{name}")(greet)
    async with web.router.lifespan_context(web):
        assert await get(web, "/Ada") == "Hello, Ada!"
    await asyncio.to_thread(app.close)


async def test_litestar_takes_the_same_lifespan(app: App) -> None:
    """In its list."""
    litestar = pytest.importorskip("litestar")

    async def greet() -> dict[str, str]:
        job = await app.get_task("hello").enqueue("Ada")
        return {"said": str(await job.result(timeout="20s"))}

    web = litestar.Litestar([litestar.get("/Ada")(greet)], lifespan=[lifespan(app)])
    async with web.lifespan():
        assert await get(web, "/Ada") == {"said": "Hello, Ada!"}
    await asyncio.to_thread(app.close)


def test_flask_tasks_have_the_application_context(tmp_path: Path) -> None:
    """In async and thread bodies, outside of the app's own middleware."""
    flask = pytest.importorskip("flask")
    from reltask.integrations.flask import init_app  # noqa: PLC0415 - only with Flask

    @contextmanager
    def own(_: BaseContext) -> Iterator[None]:
        flask.g.tenant = flask.current_app.name
        yield

    app = App(f"sqlite:///{tmp_path}/web.db", middleware=[own])
    web = flask.Flask("shop")
    init_app(web, app)

    @app.task
    def in_thread() -> str:
        return f"{flask.g.tenant} {flask.current_app.name}"

    @app.task
    async def in_loop() -> str:
        return f"{flask.g.tenant} {flask.current_app.name}"

    @web.get("/")  # type: ignore[untyped-decorator, unused-ignore]
    def index() -> str:
        return str(in_thread.enqueue_sync().id)

    with TestKit(app) as kit:
        web.test_client().get("/")
        job = in_loop.enqueue_sync()
        kit.run_until_idle()
        assert kit.assert_enqueued(in_thread).job.result_sync() == "shop shop"
        assert job.result_sync() == "shop shop"
    assert web.extensions["reltask"] is app
    with pytest.raises(UsageError, match="already"):
        init_app(web, app)
