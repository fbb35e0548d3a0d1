"""The dashboard inside other applications: below a path of each framework, over its own server interface.

Each case asks for a page, follows its links, and acts. All of it must stay below the path.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import django
import httpx
import pytest
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from fastapi import FastAPI
from flask import Flask
from litestar import Litestar, asgi
from starlette.applications import Starlette
from starlette.routing import Mount
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from reltask import App, State
from reltask.web.dashboard import Dashboard
from tests.web.busy import Busy
from tests.web.served import apart

BELOW = "/ops/reltask"


def configure_django() -> None:
    """A project without anything of its own, if no other test has made one."""
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="only for tests")
        django.setup()


def in_starlette(dashboard: Dashboard) -> Any:
    return Starlette(routes=[Mount(BELOW, dashboard)])


def in_fastapi(dashboard: Dashboard) -> Any:
    web = FastAPI()
    web.mount(BELOW, dashboard)
    return web


def in_litestar(dashboard: Dashboard) -> Any:
    return Litestar([asgi(BELOW, is_mount=True, copy_scope=True)(dashboard.__call__)], debug=True)


def in_django(dashboard: Dashboard) -> Any:
    configure_django()
    return Starlette(routes=[Mount(BELOW, dashboard), Mount("/", ASGIHandler())])


def in_flask(dashboard: Dashboard) -> Any:
    web = Flask("shop")
    web.wsgi_app = DispatcherMiddleware(web.wsgi_app, {BELOW: dashboard.wsgi})  # type: ignore[method-assign]
    return web


def in_django_wsgi(dashboard: Dashboard) -> Any:
    configure_django()
    return DispatcherMiddleware(WSGIHandler(), {BELOW: dashboard.wsgi})


ASGI: list[Callable[[Dashboard], Any]] = [in_starlette, in_fastapi, in_litestar, in_django]
WSGI: list[Callable[[Dashboard], Any]] = [in_flask, in_django_wsgi]


@pytest.fixture
def url(tmp_path: Any) -> str:
    """A framework does not depend on the database: one is enough."""
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.mark.parametrize("make", ASGI)
async def test_below_a_path_of_an_asgi_application(make: Callable[[Dashboard], Any], app: App, busy: Busy) -> None:
    """Pages, links, static files, the stream's address, the cookie and actions are below the path."""
    application = make(app.dashboard(authorize=lambda _request: ("act", "ada")))
    transport = httpx.ASGITransport(application, client=("10.0.0.7", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.example") as client:
        page = await client.get(f"{BELOW}/jobs/{busy.dead[0]}")
        check_page(page)
        for path in ("/static/dashboard.js", "/dead", "/"):
            assert (await client.get(BELOW + path)).status_code == 200, path
        answer = await client.post(f"{BELOW}/act", data=retry_form(client, busy))
    assert answer.headers["location"].startswith(f"{BELOW}/dead?did=Retry&changed=1")
    check_retried(app, busy)


@pytest.mark.parametrize("make", WSGI)
def test_below_a_path_of_a_wsgi_application(make: Callable[[Dashboard], Any], app: App, busy: Busy) -> None:
    """The same over WSGI; the page says that it is not live, and asks for no stream."""
    application = make(app.dashboard(authorize=lambda _request: ("act", "ada")))
    transport = httpx.WSGITransport(application, remote_addr="10.0.0.7")
    with httpx.Client(transport=transport, base_url="http://shop.example") as client:
        page = client.get(f"{BELOW}/jobs/{busy.dead[0]}")
        check_page(page)
        assert 'data-streams="no"' in page.text
        assert client.get(f"{BELOW}/static/dashboard.js").status_code == 200
        answer = client.post(f"{BELOW}/act", data=retry_form(client, busy))
    assert answer.headers["location"].startswith(f"{BELOW}/dead?did=Retry&changed=1")
    check_retried(app, busy)


def check_page(page: httpx.Response) -> None:
    assert page.status_code == 200, page.text
    assert f'<base href="{BELOW}/">' in page.text
    assert 'aria-current="page">Jobs' in page.text
    assert f"Path={BELOW}/" in page.headers["set-cookie"]
    assert not re.findall(rf'(?:href|src|action)="/(?!{BELOW[1:]}/)', page.text)


def retry_form(client: httpx.Client | httpx.AsyncClient, busy: Busy) -> dict[str, str]:
    token = client.cookies["reltask_token"]
    return {"token": token, "action": "retry", "job": f"{busy.dead[0]}:1", "back": "dead"}


def check_retried(app: App, busy: Busy) -> None:
    view = apart(app.job(busy.dead[0]).view_sync)
    assert view is not None
    assert view.state is State.READY
