"""Pgpool-II in front of a server of the suite, where it is installed: one backend, connections cached by session."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pgbouncer import _await
from tests.postgres_server import PASSWORD, PostgresServer, _as_unprivileged, _free_port

CONFIGURATION = """
listen_addresses = '127.0.0.1'
port = {port}
pcp_port = {pcp_port}
socket_dir = '{directory}'
pcp_socket_dir = '{directory}'
pid_file_name = '{directory}/pgpool.pid'
logdir = '{directory}'
backend_clustering_mode = 'raw'
backend_hostname0 = '127.0.0.1'
backend_port0 = {server}
enable_pool_hba = on
pool_passwd = 'pool_passwd'
num_init_children = {children}
max_pool = 2
connection_cache = on
load_balance_mode = off
"""
TRUST = "host all all 127.0.0.1/32 trust\n"


def find() -> str | None:
    """The program, or None."""
    return shutil.which("pgpool") or next(iter(map(str, Path("/usr/sbin").glob("pgpool"))), None)


@contextmanager
def pgpool(server: PostgresServer, directory: Path, *, children: int = 40) -> Iterator[int]:
    """Run it; yields its port."""
    program = find()
    assert program is not None
    port, file = _free_port(), directory / "pgpool.conf"
    texts = {
        "pgpool.conf": CONFIGURATION.format(
            port=port, pcp_port=_free_port(), directory=directory, server=server.port, children=children
        ),
        "pool_hba.conf": TRUST,
        "pool_passwd": f"postgres:TEXT{PASSWORD}\n",
        "pcp.conf": "",
    }
    owner = _as_unprivileged()
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
    if owner:
        for path in (directory, *(directory / name for name in texts)):
            os.chown(path, owner["user"], owner["group"])
        for parent in directory.parents[:3]:
            parent.chmod(parent.stat().st_mode | 0o055)
    command = [
        program,
        "-n",
        "-f",
        str(file),
        "-a",
        str(directory / "pool_hba.conf"),
        "-F",
        str(directory / "pcp.conf"),
    ]
    with (directory / "pgpool.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=log, stderr=log, **owner)
        try:
            _await(port, process)
            yield port
        finally:
            process.terminate()
            process.wait()
