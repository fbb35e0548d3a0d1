"""Rows: the database crashes, is full, has no connection left, or is migrated under load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import asyncpg

from tests.cluster import table
from tests.cluster.cluster import ROOT
from tests.faults.environment import Environment, NotRunHere

FEW = 12
"""The connection limit of a server that runs out of them."""


def crash(env: Environment) -> float:
    """`pg_ctl stop -m immediate` under load, and a start."""
    env.keep(2)
    jobs = env.enqueue(12)
    gate = env.gate()
    jobs += env.enqueue(2, inside=str(gate))
    env.some_begun(jobs[-2:])
    env.server.stop("immediate")
    gate.touch()
    env.server.start()
    return env.recovered(jobs, env.now())


@contextlib.contextmanager
def few_connections(env: Environment) -> Iterator[None]:
    """The server accepts few connections while this row runs."""
    env.server.execute(f"alter system set max_connections = {FEW}")
    env.server.restart()
    try:
        yield
    finally:
        env.cluster.stop()
        env.server.execute("alter system reset max_connections")
        env.server.restart()


def connections_exhausted(env: Environment) -> float:
    """A client takes every connection that is left.

    Bodies cannot open transactions until it gives them back.
    """
    env.keep(2)
    gate = env.gate()
    jobs = env.enqueue(2, before=str(gate))
    for job in jobs:
        env.begun(job)
    with _hogged(env):
        gate.touch()
        time.sleep(0.5)  # the length of the fault
    since = env.now()
    return env.recovered(jobs, since)


@contextlib.contextmanager
def _hogged(env: Environment) -> Iterator[None]:
    """Take connections until the server refuses."""
    taken, released = threading.Event(), threading.Event()

    async def hog() -> None:
        held: list[asyncpg.Connection] = []
        with contextlib.suppress(asyncpg.TooManyConnectionsError):
            while True:
                held.append(await asyncpg.connect(env.cluster.app.url))
        taken.set()
        await asyncio.to_thread(released.wait)
        for connection in held:
            await connection.close()

    thread = threading.Thread(target=lambda: asyncio.run(hog()))
    thread.start()
    try:
        assert taken.wait(20), "the server never ran out of connections"
        yield
    finally:
        released.set()
        thread.join()


def migration(env: Environment) -> float:
    """Two `reltask migrate` at once, with all scripts to run again, under load."""
    env.keep(2)
    jobs = env.enqueue(80, seconds=0.3)
    env.some_begun(jobs)
    table.run(env.cluster.app.url, FORGET[env.database])
    since = env.now()
    environment = env.cluster._environment | {"RELTASK_DATABASE_URL": env.cluster.app.url}
    command = [sys.executable, "-m", "reltask.cli", "migrate"]
    migrators = [
        subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for _ in range(2)
    ]
    said = [migrator.communicate(timeout=60)[0].decode() for migrator in migrators]
    assert [migrator.returncode for migrator in migrators] == [0, 0], said
    return env.recovered(jobs, since)


FORGET = {
    "postgres": "update reltask.meta set schema_version = 0",
    "sqlite": "update reltask_meta set schema_version = 0",
    "mssql": "UPDATE reltask.Meta SET SchemaVersion = 0",
}
"""Make the next migration run every script again."""


@contextlib.contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A separate file system. Needs root."""
    if not hasattr(os, "geteuid") or os.geteuid() != 0:
        raise NotRunHere("only root can mount a small file system")
    directory = Path("/tmp") / f"reltask-disk-{os.getpid()}"
    directory.mkdir(mode=0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,mode=0777", "reltask", str(directory)],
        check=False,
        capture_output=True,
    )
    try:
        if mounted.returncode:
            raise NotRunHere("a small file system cannot be mounted")
        yield directory
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=False, capture_output=True)
        directory.rmdir()


def disk_full(env: Environment) -> float:
    """The database's file system is filled completely under load, and freed again. Nothing is lost."""
    env.keep(2)
    gate = env.gate()
    jobs = env.enqueue(40, before=str(gate))
    env.some_begun(jobs)
    ballast = _fill(env.disk)
    gate.touch()
    time.sleep(1.0)  # the length of the fault
    ballast.unlink()
    since = env.now()
    recovery = env.recovered(jobs, since)
    assert all(worker.alive for worker in env.cluster.workers), "a worker has died of a full disk"
    return recovery


def _fill(directory: Path) -> Path:
    """Write until there is no room."""
    ballast = directory / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(b"\0" * 4096)
    return ballast
