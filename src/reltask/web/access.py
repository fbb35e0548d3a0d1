"""Who may look, who may act, and what a browser must refuse.

    request ──► loopback, or authorize(request) ──► None: 403    "read": pages    "act": pages and actions
                                                       │
                              POST only ──► same origin ──► token of the form = token of the cookie ──► an action

Without `authorize` the dashboard answers only to this machine, under its own name: a request that came through a
proxy, or whose Host is another name (a website that made its name point here), is refused. The token is compared with
a cookie that no other site can set or read, so that it needs no secret that several processes would have to share.
"""

from __future__ import annotations

import inspect
import ipaddress
import secrets
from collections.abc import Awaitable, Callable
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

Permission = Literal["read", "act"]
Answer = Permission | tuple[Permission, str] | None
"""None: refused. A pair names the person, for the log of actions."""
Authorize = Callable[[Request], Answer | Awaitable[Answer]]

COOKIE = "reltask_token"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; base-uri 'self'; frame-ancestors 'none'",
    "x-frame-options": "DENY",
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_NOT_HERE = (
    "This dashboard has no authorize function, so it answers only to this machine, as localhost.\n"
    "To reach it from elsewhere: app.dashboard(authorize=…), or an SSH tunnel.\n"
)


class Viewer(NamedTuple):
    """Who asks, and whether they may act."""

    name: str
    may_act: bool


class Guard:
    """Lets a request through only with a viewer, and adds the headers to every answer."""

    def __init__(self, app: ASGIApp, authorize: Authorize | None, *, local: Permission) -> None:
        """`local` is what this machine may do where there is no `authorize`."""
        self._app = app
        self._authorize = authorize
        self._local: Permission = local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1008})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        token = request.cookies.get(COOKIE) or secrets.token_urlsafe(32)
        fresh = COOKIE not in request.cookies

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *self._headers(request, token if fresh else None)]
            await send(message)

        viewer = await self._viewer(request)
        if isinstance(viewer, Response):
            await viewer(scope, receive, guarded)
            return
        scope.setdefault("state", {})
        scope["state"] |= {"viewer": viewer, "token": token}
        await self._app(scope, receive, guarded)

    async def _viewer(self, request: Request) -> Viewer | Response:
        if self._authorize is None:
            if not is_local(request):
                return PlainTextResponse(_NOT_HERE, 403)
            return Viewer("local", self._local == "act")
        answer = self._authorize(request)
        if inspect.isawaitable(answer):
            answer = await answer
        if not answer:
            return PlainTextResponse("You may not see this dashboard.\n", 403)
        level, name = (answer, "") if isinstance(answer, str) else answer
        if level not in ("read", "act"):
            return PlainTextResponse('authorize must answer "read", "act", a pair with a name, or None.\n', 500)
        return Viewer(name or (request.client.host if request.client else "unknown"), level == "act")

    def _headers(self, request: Request, token: str | None) -> list[tuple[bytes, bytes]]:
        headers = dict(HEADERS)
        if token is not None:
            path = f"{request.scope.get('root_path', '')}/"
            secure = "; Secure" if request.url.scheme == "https" else ""
            headers["set-cookie"] = f"{COOKIE}={token}; Path={path}; HttpOnly; SameSite=Strict{secure}"
        return [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]


def is_local(request: Request) -> bool:
    """Whether the request came from this machine, not through a proxy, and to a name of this machine."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    host = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
    return is_loopback(request.client.host) and is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether this name or address means this machine."""
    if host in ("localhost", "testclient"):
        return host == "localhost"
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def forged(request: Request, given: str) -> str:
    """Why this request may not act: another site may have sent it. An empty text: it may."""
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "This request came from another site, and was refused."
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != request.headers.get("host", ""):
        return "This request came from another site, or a proxy changed its Host header. It was refused."
    if not secrets.compare_digest(given.encode(), str(request.cookies.get(COOKIE, "")).encode()) or not given:
        return "This form is too old, or was not made by this dashboard: load the page again."
    return ""
