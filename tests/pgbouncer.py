"""PgBouncer in transaction mode in front of a server of the suite, where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.postgres_server import PASSWORD, PostgresServer, _as_unprivileged, _free_port

CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server} user=postgres password={password}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = {pool}
max_client_conn = 1000
ignore_startup_parameters = extra_float_digits
"""


def find() -> str | None:
    """The program, or None."""
    return shutil.which("pgbouncer") or next(iter(map(str, Path("/usr/sbin").glob("pgbouncer"))), None)


@contextmanager
def running(server: PostgresServer, directory: Path, *, pool: int = 3) -> Iterator[int]:
    """Run it; yields its port."""
    program = find()
    assert program is not None
    port, file = _free_port(), directory / "pgbouncer.ini"
    file.write_text(CONFIGURATION.format(server=server.port, port=port, password=PASSWORD, pool=pool), encoding="utf-8")
    owner = _as_unprivileged()
    if owner:
        for path in (file, directory):
            os.chown(path, owner["user"], owner["group"])
        for parent in directory.parents[:3]:
            parent.chmod(parent.stat().st_mode | 0o055)
    process = subprocess.Popen(
        [program, str(file)], cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **owner
    )
    try:
        await_port(port, process)
        yield port
    finally:
        process.terminate()
        process.communicate()


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    """Wait until the program listens."""
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, process.stderr and process.stderr.read()
        time.sleep(0.05)
    raise TimeoutError("the pooler did not start")


def through(url: str, port: int) -> str:
    """This URL, through the pooler."""
    parts = urlsplit(url)
    return parts._replace(netloc=f"{parts.username}@127.0.0.1:{port}", query="pgbouncer=true").geturl()
