"""What processes use: CPU time and memory."""

from __future__ import annotations

from collections.abc import Sequence

import psutil  # type: ignore[import-untyped] # it has no types of its own

from benchmarks.stage import Child
from tests.postgres_server import PostgresServer


def cpu_seconds(children: Sequence[Child]) -> float:
    """What all of them have used so far."""
    times = [psutil.Process(child.process.pid).cpu_times() for child in children]
    return float(sum(each.user + each.system for each in times))


def server_seconds(server: PostgresServer) -> float:
    """CPU time that a server has used so far: its processes of now, and those that have ended."""
    assert server.pid is not None
    first = psutil.Process(server.pid)
    times = [each.cpu_times() for each in (first, *first.children())]
    ended = first.cpu_times()
    return float(sum(each.user + each.system for each in times) + ended.children_user + ended.children_system)


def memory(child: Child) -> float:
    """Megabytes that it has in memory now."""
    return float(psutil.Process(child.process.pid).memory_info().rss / 1e6)


def machine_memory() -> float:
    """Gibibytes of the whole machine."""
    return float(psutil.virtual_memory().total / 2**30)
