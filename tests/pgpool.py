"""Pgpool-II in front of a server of the suite, where it is installed.

Its mode is `streaming_replication`, with one server. In the mode `raw` version 4.3.5 leaves a statement of the extended
protocol uncommitted.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.pgbouncer import await_port
from tests.postgres_server import PASSWORD, PostgresServer, _as_unprivileged, _free_port

CONFIGURATION = """
listen_addresses = '127.0.0.1'
port = {port}
pcp_listen_addresses = ''
pcp_port = {control}
socket_dir = '{directory}'
pcp_socket_dir = '{directory}'
pid_file_name = '{directory}/pgpool.pid'
logdir = '{directory}'
backend_clustering_mode = '{mode}'
sr_check_period = 0
sr_check_user = 'postgres'
backend_hostname0 = '127.0.0.1'
backend_port0 = {server}
num_init_children = 40
max_pool = 1
enable_pool_hba = on
pool_passwd = 'pool_passwd'
memory_cache_enabled = off
"""


def find() -> str | None:
    """The program, or None."""
    return shutil.which("pgpool") or next(iter(map(str, Path("/usr/sbin").glob("pgpool"))), None)


@contextmanager
def running(server: PostgresServer, directory: Path, *, mode: str = "streaming_replication") -> Iterator[int]:
    """Run it; yields its port."""
    program = find()
    assert program is not None
    port, control = _free_port(), _free_port()
    settings = CONFIGURATION.format(port=port, control=control, server=server.port, directory=directory, mode=mode)
    texts = {
        "pgpool.conf": settings,
        "pool_hba.conf": "host all all 127.0.0.1/32 trust\n",
        "pool_passwd": f"postgres:TEXT{PASSWORD}\n",
    }
    for name, text in texts.items():
        (directory / name).write_text(text, encoding="utf-8")
        (directory / name).chmod(0o600)
    owner = _as_unprivileged()
    if owner:
        for path in (directory, *(directory / name for name in texts)):
            os.chown(path, owner["user"], owner["group"])
        for parent in directory.parents[:3]:
            parent.chmod(parent.stat().st_mode | 0o055)
    command = [program, "-n", "-f", str(directory / "pgpool.conf"), "-a", str(directory / "pool_hba.conf")]
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=directory, stdout=subprocess.DEVNULL, stderr=log, **owner)
    try:
        await_port(port, process)
        yield port
    finally:
        process.send_signal(signal.SIGINT)  # does not wait for its clients
        process.wait()
