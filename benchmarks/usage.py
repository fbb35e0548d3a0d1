"""What processes use: CPU time and memory."""

from __future__ import annotations

from collections.abc import Sequence

import psutil  # type: ignore[import-untyped] # it has no types of its own

from benchmarks.stage import Child


def cpu_seconds(children: Sequence[Child]) -> float:
    """What all of them have used so far."""
    times = [psutil.Process(child.process.pid).cpu_times() for child in children]
    return float(sum(each.user + each.system for each in times))


def memory(child: Child) -> float:
    """Megabytes that it has in memory now."""
    return float(psutil.Process(child.process.pid).memory_info().rss / 1e6)


def machine_memory() -> float:
    """Gibibytes of the whole machine."""
    return float(psutil.virtual_memory().total / 2**30)
