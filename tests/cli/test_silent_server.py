"""A SQL Server that never answers, falls silent or cuts the connection: every command ends, with the right exit status.

The driver itself would keep the process for minutes, or abort it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from reltask import cli
from reltask.cli.runner import EXIT_ERROR, EXIT_OK, EXIT_UNAVAILABLE, EXIT_UNSETTLED
from reltask.stores.migration import schema_version
from tests.azure import gateway
from tests.azure.conftest import needs_libraries
from tests.cli.project import Project, wait_for
from tests.faults.proxy import Proxy
from tests.faults.tds import TDS, purpose
from tests.mssql_server import VARIABLE

pytestmark = [pytest.mark.slow, needs_libraries]

HANGS = 60.0
"""Seconds after which a process has hung."""
BARE = """
from reltask import App

app = App()

@app.task
async def hello(name: str) -> str:
    return name
"""
COMMANDS = [
    ("status",),
    ("jobs",),
    ("dead",),
    ("leases",),
    ("limits",),
    ("queues",),
    ("tasks",),
    ("schedules",),
    ("shards",),
    ("workers",),
    ("runs",),
    ("stats",),
    ("doctor",),
    ("migrate",),
    ("audit",),
    ("actions",),
]
WITHOUT_DATABASE = {"demo", "explain", "sql", "config"}
"""Commands that connect to nothing, or to a file of their own."""
OF_THEIR_OWN = {"worker", "enqueue", "steps", "dashboard", "exporter"}
"""Commands that need more arguments than a database: those that serve start without it."""


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts connections, and nothing more."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"mssql://sa:geheim@127.0.0.1:{server.getsockname()[1]}/d?connect_timeout=1"


@pytest.fixture
def falls_silent() -> Iterator[str]:
    """The URL of a server that answers the first packet of a login, and nothing more."""
    opened: list[socket.socket] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                opened.append(server.accept()[0])
                gateway.greet(opened[-1])

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"mssql://sa:geheim@127.0.0.1:{server.getsockname()[1]}/d?encrypt=no&connect_timeout=1"
        server.shutdown(socket.SHUT_RDWR)
    for client in opened:
        client.close()


@pytest.fixture
def cut_off() -> Iterator[str]:
    """The URL of a server that answers the first packet of a login, and then cuts the connection."""

    def serve() -> None:
        with contextlib.suppress(OSError, EOFError):
            while True:
                client = server.accept()[0]
                with client:
                    gateway.greet(client)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"mssql://sa:geheim@127.0.0.1:{server.getsockname()[1]}/d?encrypt=no&connect_timeout=1"
        server.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def app(project: Project) -> str:
    """An app whose database is that of the environment."""
    (project.folder / "bare.py").write_text(BARE)
    return "bare:app"


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit status and errors of a process that must end by itself."""
    _, errors = process.communicate(timeout=HANGS)
    return process.returncode, errors


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_ends(project: Project, silent: str, command: tuple[str, ...]) -> None:
    """The error is printed, and the process ends."""
    once = {"RELTASK_DATABASE_URL": silent, "RELTASK_DATABASE_RETRY_ATTEMPTS": "1"}
    code, errors = ended(project.start(*command, **once))
    expected = EXIT_ERROR if command == ("doctor",) else EXIT_UNAVAILABLE  # the doctor has found something
    assert (code, "Traceback" in errors) == (expected, False), errors


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_ends_if_the_server_falls_silent(project: Project, falls_silent: str, command: tuple[str, ...]) -> None:
    """The same in the middle of the login, where the driver waits in another place."""
    test_command_ends(project, falls_silent, command)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_command_ends_if_the_server_hangs_up(project: Project, cut_off: str, command: tuple[str, ...]) -> None:
    """The same for a connection that ends before the login has."""
    test_command_ends(project, cut_off, command)


@pytest.mark.parametrize("server", ["silent", "falls_silent", "cut_off"])
def test_enqueue_ends(project: Project, app: str, server: str, request: pytest.FixtureRequest) -> None:
    """A write that was never sent: the database is unavailable."""
    once = {"RELTASK_DATABASE_URL": request.getfixturevalue(server), "RELTASK_DATABASE_RETRY_ATTEMPTS": "1"}
    code, errors = ended(project.start("enqueue", app, "hello", '{"name": "x"}', **once))
    assert code == EXIT_UNAVAILABLE, errors


def test_every_command_is_tested() -> None:
    """A command that is added later must end as well."""
    assert {name for name, *_ in COMMANDS} | WITHOUT_DATABASE | OF_THEIR_OWN == set(cli.COMMANDS)


def test_strict_encryption_that_the_server_does_not_know(project: Project, silent: str) -> None:
    """The driver would abort the process: "terminate called without an active exception", status 134."""
    once = {"RELTASK_DATABASE_URL": f"{silent}&encrypt=strict", "RELTASK_DATABASE_RETRY_ATTEMPTS": "1"}
    code, errors = ended(project.start("status", **once))
    assert code == EXIT_UNAVAILABLE, errors


def test_worker_that_is_still_connecting_stops(project: Project, app: str, falls_silent: str) -> None:
    """SIGTERM during the start ends the process; no job was claimed."""
    patient = falls_silent.replace("connect_timeout=1", "connect_timeout=60")
    worker = project.start("worker", app, RELTASK_DATABASE_URL=patient)
    wait_for(worker, "connecting to mssql:")
    worker.send_signal(signal.SIGTERM)
    code, errors = ended(worker)
    assert code == EXIT_OK, errors


def idle(body: bytes) -> bytes:
    """The answers of a server with reltask's tables and no jobs."""
    if purpose("read_schema") in body:
        version = schema_version("mssql")
        return gateway.row(schema_version=version, oldest_version=1, read_only=0, compatibility_level=160)
    if purpose("claim_jobs") in body:
        unknown = dict.fromkeys(["next_due", "next_expiry", "limited_at", "id"])
        unknown |= dict.fromkeys(["fleet_rank", "fleet_size", "fleet_idle"])
        return gateway.row(now=datetime.now(UTC), marked=0, **unknown)
    return gateway.done()


def test_running_worker_stops_although_nothing_answers_any_more(project: Project, app: str, tmp_path: Path) -> None:
    """A black hole swallows a statement of a running worker, then SIGTERM: the driver would keep it for minutes."""
    swallowed = threading.Event()

    def swallow(_: bytes) -> bytes:
        swallowed.set()
        return b""

    with gateway.gateway(tmp_path) as server:
        server.replies = idle
        url = f"mssql://sa:geheim@127.0.0.1:{server.port}/d"
        worker = project.start("worker", app, RELTASK_DATABASE_URL=url, RELTASK_DATABASE_COMMAND_TIMEOUT="2s")
        wait_for(worker, "Worker started")
        server.deaf, server.replies = True, swallow
        assert swallowed.wait(HANGS)
        worker.send_signal(signal.SIGTERM)
        code, errors = ended(worker)
    assert code in {EXIT_OK, EXIT_UNSETTLED}, errors
    assert "Traceback" not in errors


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} names no server")
def test_worker_on_mssql_stops_while_its_network_is_a_black_hole(project: Project, app: str, mssql_url: str) -> None:
    """The same with a real server behind the network, whose late answers arrive at nobody."""
    port = urlsplit(mssql_url).port
    assert port is not None
    with Proxy(port, TDS) as proxy:
        worker = project.start("worker", app, RELTASK_DATABASE_URL=proxy.url(mssql_url))
        wait_for(worker, "Worker started")
        proxy.black_hole()
        worker.send_signal(signal.SIGTERM)
        code, errors = ended(worker)
    assert code in {EXIT_OK, EXIT_UNSETTLED}, errors
    assert "Traceback" not in errors
