"""The dashboard as an ASGI application, below any path of a larger one.

app.mount("/reltask", reltask_app.dashboard(authorize=…))      Starlette, FastAPI
reltask_app.dashboard(authorize=…).wsgi                        Flask, Django without ASGI
reltask dashboard MODULE:app                                   on this machine
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from jinja2 import Environment, FileSystemLoader
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from reltask.errors import ReltaskError
from reltask.model.connection_url import safe_url
from reltask.model.doctor import Finding
from reltask.model.overview import Overview
from reltask.model.screens import Payload
from reltask.producer.client import Client
from reltask.stores.store import Store
from reltask.version import __version__
from reltask.web import actions, bulk, job_page, pages, words
from reltask.web.access import Authorize, Guard, Permission, Viewer
from reltask.web.commands import ANY_APP, Commands
from reltask.web.live import Live
from reltask.web.reader import Reader
from reltask.web.wsgi import Wsgi

if TYPE_CHECKING:
    from reltask.app import App

Screen = Callable[["Dashboard", Request], Awaitable[Response]]
_HERE = Path(__file__).parent
_SCREENS: dict[str, Screen] = {
    "/": pages.overview,
    "/jobs": pages.jobs,
    "/jobs/{job_id}": job_page.job,
    "/tasks": pages.tasks,
    "/queues": pages.queues,
    "/schedules": pages.schedules,
    "/dead": pages.dead,
    "/workers": pages.workers,
    "/leases": pages.leases,
    "/actions": pages.actions,
    "/confirm": bulk.confirm,
}
LIVE_PARTS = ("problems", "numbers", "queues", "fleet")
"""The fragments of the overview that the stream renews."""


class Dashboard:
    """An ASGI application: `await dashboard(scope, receive, send)`. `wsgi` is the same for WSGI servers."""

    def __init__(
        self,
        app: App,
        client: Client,
        *,
        authorize: Authorize | None = None,
        show_values: bool = False,
        local: Permission = "read",
        reference: str = ANY_APP,
        run_again: Callable[[Payload, Store], Awaitable[object]],
    ) -> None:
        self.app = app
        self.show_values = show_values
        self.commands = Commands(reference)
        self.run_again = run_again
        self.reader = Reader(client)
        self.live = Live(self.reader.overview, self._fragments)
        self.findings: list[Finding] = []
        self._templates = _environment()
        routes = [Route(path, partial(self._screen, screen)) for path, screen in _SCREENS.items()]
        routes += [
            Route("/live", self._stream),
            Route("/metrics", partial(self._screen, pages.metrics)),
            Route("/act", partial(self._screen, actions.act), methods=["POST"]),
        ]
        inner = Starlette(
            routes=[*routes, Mount("/static", StaticFiles(directory=_HERE / "static"))],
            exception_handlers={404: self._not_found},
        )
        self._guard = Guard(inner, authorize, local=local)
        self.wsgi = Wsgi(self)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._guard(with_whole_path(scope), receive, send)

    def close(self) -> None:
        """Close the dashboard's connections; the next request opens them again."""
        self.wsgi.close()
        self.reader.client.close()

    # Rendering

    def page(self, request: Request, template: str, *, status: int = 200, **values: Any) -> Response:
        """A page of the dashboard."""
        context = {"commands": self.commands, **self._context(request)}
        return HTMLResponse(self._render(template, **{**context, **values}), status)

    def failure(self, request: Request, status: int, text: str, remedy: str = "") -> Response:
        """A page that says what is wrong, and what to do."""
        return self.page(request, "failure.html", status=status, text=text, remedy=remedy)

    def root(self, request: Request) -> str:
        """The path below which the dashboard is mounted, without a slash at its end."""
        return str(request.scope.get("root_path", "")).rstrip("/")

    async def examine(self) -> None:
        """Ask the doctor, at most every five minutes."""
        self.findings = await self.reader.findings()

    def _context(self, request: Request) -> dict[str, Any]:
        viewer: Viewer = request.state.viewer
        return {
            "root": self.root(request),
            "path": request.url.path.removeprefix(self.root(request)).strip("/"),
            "viewer": viewer,
            "token": request.state.token,
            "database": safe_url(self.app.url),
            "version": __version__,
            "show_values": self.show_values,
            "streams": not request.scope.get("reltask.wsgi", False),
            **actions.said(request.query_params),
        }

    def _render(self, template: str, **values: Any) -> str:
        return self._templates.get_template(template).render(**values)

    def _fragments(self, snapshot: Overview) -> dict[str, str]:
        """What the stream sends: rendered once, for all viewers."""
        values = pages.overview_parts(self, snapshot)
        parts = {name: self._render(f"live/{name}.html", **values) for name in LIVE_PARTS}
        return {**parts, "chart": json.dumps(values["chart"]), "counts": json.dumps(pages.live_counts(snapshot))}

    # Answering

    async def _screen(self, screen: Screen, request: Request) -> Response:
        try:
            return await screen(self, request)
        except ReltaskError as error:
            return self.failure(request, 503, error.message, error.remedy or "Load the page again in a moment.")

    async def _stream(self, request: Request) -> Response:
        if request.scope.get("reltask.wsgi"):
            return Response(status_code=204)  # a thread per viewer would be too dear: the browser does not ask again
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(self.live.events(), media_type="text/event-stream", headers=headers)

    async def _not_found(self, request: Request, _error: Exception) -> Response:
        return self.failure(request, 404, "There is no such page.", "The menu names all of them.")


def with_whole_path(scope: Scope) -> Scope:
    """The scope as ASGI says: `path` is whole, and begins with `root_path`.

    Litestar gives a mounted application the rest of the path, with a slash at its end, and no `root_path`.
    """
    whole, path = unquote(scope.get("raw_path") or b""), scope.get("path", "")
    rest = path.rstrip("/")
    if not whole or whole == path or not whole.rstrip("/").endswith(rest):
        return scope
    below = whole.rstrip("/").removesuffix(rest)
    return {**scope, "path": whole if rest else f"{below}/", "root_path": below}


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        finalize=words.shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "clock": words.clock,
        "moment": words.moment,
        "since": words.since,
        "ago": words.ago,
        "seconds": words.seconds,
        "number": words.number,
        "worker": words.worker,
        "plural": words.plural,
    }
    return environment
