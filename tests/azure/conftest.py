"""A managed-identity endpoint on loopback, as in App Service: the real azure-identity gets tokens from it.

Also a credential that contacts no service, and a check whether SQL Server's driver can connect
here.
"""

from __future__ import annotations

import ctypes
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.mssql_server import LIBRARIES

HOUR = 3600


def loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


needs_libraries = pytest.mark.skipif(
    not all(map(loads, ["libltdl.so.7", "libkrb5.so.3", "libgssapi_krb5.so.2"])),
    reason=f"{LIBRARIES}: reltask doctor says which libraries it lacks",
)


class Fixed:
    """A credential with one fixed token."""

    def get_token(self, _scope: str) -> Any:
        return SimpleNamespace(token="the-token")


@dataclass
class Answer:
    """The endpoint's next answer."""

    status: int = 200
    life: int = HOUR
    """Seconds until its token expires."""
    hangs: bool = False


@dataclass
class Endpoint:
    """The endpoint's answers and requests. The last answer is repeated."""

    answers: list[Answer] = field(default_factory=lambda: [Answer()])
    asked: list[dict[str, str]] = field(default_factory=list)
    """The query of each request, with the secret header."""
    released: threading.Event = field(default_factory=threading.Event)
    """Ends every hanging request."""
    only_token: str | None = None
    """One token for every answer. None: each answer has its own."""

    def say(self, *answers: Answer) -> None:
        self.answers = list(answers)

    def next_answer(self) -> Answer:
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    def token(self, number: int) -> str:
        """The token of the endpoint's n-th answer."""
        return self.only_token or f"secret-token-{number}"


def handler(endpoint: Endpoint) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            endpoint.asked.append(query | {"header": self.headers.get("X-IDENTITY-HEADER", "")})
            number, answer = len(endpoint.asked), endpoint.next_answer()
            if answer.hangs:
                endpoint.released.wait(30)
            good = {"access_token": endpoint.token(number), "expires_on": str(int(time.time()) + answer.life)}
            self.reply(answer.status, good | {"token_type": "Bearer"} if answer.status == 200 else {"error": "no"})

        def reply(self, status: int, body: dict[str, Any]) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    return Handler


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect before the answer."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    """A running endpoint that azure-identity finds by itself, and no other source of tokens."""
    state = Endpoint()
    server = Server(("127.0.0.1", 0), handler(state))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    for name in ("AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID", "AZURE_FEDERATED_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("IDENTITY_ENDPOINT", f"http://127.0.0.1:{server.server_port}/msi/token")
    monkeypatch.setenv("IDENTITY_HEADER", "the-header")
    monkeypatch.setenv("AZURE_TOKEN_CREDENTIALS", "prod")  # no login of the developer's
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield state
    state.released.set()
    server.shutdown()
    server.server_close()
    thread.join()
