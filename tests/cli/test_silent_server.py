"""A SQL Server that never answers, falls silent or cuts the connection: every command ends, with the right exit status.

The driver itself would keep the process for minutes, or abort it.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest

from reltask import cli
from reltask.cli.runner import EXIT_ERROR, EXIT_OK, EXIT_UNAVAILABLE
from tests.azure import gateway
from tests.azure.conftest import needs_libraries
from tests.cli.project import Project, wait_for

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
