"""A SQL Server that accepts connections and never answers: every command ends, with the right exit status.

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

from reltask.cli.runner import EXIT_ERROR, EXIT_OK, EXIT_UNAVAILABLE
from tests.azure import gateway
from tests.azure.conftest import needs_libraries
from tests.cli.project import Project, wait_for

pytestmark = [pytest.mark.slow, needs_libraries]

HANGS = 60.0
"""Seconds after which a process has hung."""
COMMANDS = [
    ("status",),
    ("jobs",),
    ("dead",),
    ("leases",),
    ("workers",),
    ("runs",),
    ("stats",),
    ("doctor",),
    ("migrate",),
    ("audit",),
]


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


def test_strict_encryption_that_the_server_does_not_know(project: Project, silent: str) -> None:
    """The driver would abort the process: "terminate called without an active exception", status 134."""
    once = {"RELTASK_DATABASE_URL": f"{silent}&encrypt=strict", "RELTASK_DATABASE_RETRY_ATTEMPTS": "1"}
    code, errors = ended(project.start("status", **once))
    assert code == EXIT_UNAVAILABLE, errors


def test_worker_that_is_still_connecting_stops(project: Project, falls_silent: str) -> None:
    """SIGTERM during the start ends the process; no job was claimed."""
    patient = falls_silent.replace("connect_timeout=1", "connect_timeout=60")
    worker = project.start("worker", project.app, RELTASK_DATABASE_URL=patient)
    wait_for(worker, "connecting")
    worker.send_signal(signal.SIGTERM)
    code, errors = ended(worker)
    assert code == EXIT_OK, errors
