"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import sqlite3
from importlib.metadata import version

import psycopg

from benchmarks.contestants import PEERS
from benchmarks.environments import environment
from benchmarks.stage import SERVER_SETTINGS
from benchmarks.usage import machine_memory
from tests.postgres_server import SETTINGS, PostgresServer


def machine() -> dict[str, str]:
    """Processor, memory, system, and how busy it was at the start."""
    return {
        "processor": _processor(),
        "cores": str(os.cpu_count()),
        "memory": f"{machine_memory():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def versions(server: PostgresServer) -> dict[str, str]:
    """Of everything that takes part."""
    with psycopg.connect(server.url()) as connection:
        row = connection.execute("show server_version").fetchone()
    ours = {"Python": platform.python_version(), "PostgreSQL": str(row[0] if row else "?")}
    ours["SQLite"] = sqlite3.sqlite_version
    packages = {name: version(name) for name in ("reltask", "asyncpg", "uvloop")}
    return {**ours, **packages, **{peer.name: environment(peer.name).version for peer in PEERS}}


def server_settings() -> dict[str, str]:
    """The server's settings that are not its defaults: the same for all contestants."""
    return {**SETTINGS, **{name: value.strip("'") for name, value in SERVER_SETTINGS.items()}}


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a file
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
