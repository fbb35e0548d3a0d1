"""Where does the time go while a worker drains a queue? Per job, in microseconds.

    python -m benchmarks.profile_drain [--jobs 20000] [--concurrency 1000] [--functions 25]

The worker runs in this process, twice, each time on a full queue:

    1. with a stopwatch around each stage: what the stages cost without a profiler. `claim` and `settle` are
       statements, so their time is waiting, and other jobs run meanwhile; the others are CPU time of the loop's thread.
    2. under cProfile, which makes Python code about twice as slow: shares by area and by function, not times to quote.

"wall" is the whole, "CPU here" this process's share, the rest is the server's. What no stage claims is the event loop:
tasks, futures, wake-ups.
"""

# ruff: noqa: T201 - a program's output

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.contestants import RELTASK
from benchmarks.contestants.process import run
from benchmarks.contestants.reltask import make_app
from benchmarks.stage import Place, open_stage
from reltask import logs
from reltask.cli.runner import calm_collector
from reltask.stores.postgres import store, values
from reltask.worker import bodies, execute, poller, settle

AREAS = {
    "reltask/worker/poller": "claiming",
    "reltask/worker/places": "claiming",
    "reltask/worker/execute": "executing",
    "reltask/worker/run": "executing",
    "reltask/worker/bodies": "executing",
    "reltask/worker/worker": "executing",
    "reltask/worker/outcome": "outcome",
    "reltask/worker/settle": "settling",
    "reltask/worker/beater": "watching",
    "reltask/worker/heartbeat": "watching",
    "reltask/stores": "store: rows to values and back",
    "reltask/resilience": "resilience",
    "reltask/model/arguments": "arguments",
    "reltask/events": "events and logs",
    "reltask/logs": "events and logs",
    "reltask/app": "events and logs",
    "logging": "events and logs",
    "asyncpg": "driver",
    "asyncio": "event loop",
    "uvloop": "event loop",
}
"""What a function is for, by the path of its file; the first that fits."""


class Stopwatch:
    """Seconds and calls by stage."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: dict[str, int] = defaultdict(int)

    def around(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function; its CPU time, so that a busy machine does not count."""

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                self.add(stage, time.thread_time() - began)

        return timed

    def around_async(self, stage: str, function: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """The coroutine function, timed from its call to its end."""

        async def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return await function(*args, **kwargs)
            finally:
                self.add(stage, time.perf_counter() - began)

        return timed

    def add(self, stage: str, seconds: float) -> None:
        self.seconds[stage] += seconds
        self.calls[stage] += 1


@contextmanager
def stages(watch: Stopwatch) -> Iterator[None]:
    """The stopwatch around each stage, for as long as the block is open."""
    replaced = [
        (store.PostgresStore, "claim_jobs", "claim (waiting)", watch.around_async),
        (store.PostgresStore, "complete_jobs", "settle (waiting)", watch.around_async),
        (values, "claim_answer", "rows to claims", watch.around),
        (values, "completions", "completions to columns", watch.around),
        (poller.Poller, "_watch", "take up claims", watch.around),
        (execute.Executor, "start", "start", watch.around),
        (bodies.Bodies, "make", "decode", watch.around),
        (execute, "returned", "encode result", watch.around),
        (execute.Executor, "_outcome", "outcome", watch.around),
        (settle.Settler, "settle", "queue outcome", watch.around),
        (logs.Publisher, "emit", "report", watch.around),
    ]
    originals = [getattr(owner, name) for owner, name, _, _ in replaced]
    for owner, name, stage, timer in replaced:
        setattr(owner, name, timer(stage, getattr(owner, name)))
    try:
        yield
    finally:
        for (owner, name, _, _), original in zip(replaced, originals, strict=True):
            setattr(owner, name, original)


async def drain(place: Place, jobs: int, concurrency: int) -> None:
    """One worker in this process, until nothing is left."""
    counts, left, done = bytearray(jobs), iter(range(jobs - 1, -1, -1)), asyncio.Event()

    def ran(number: int) -> None:
        counts[number] += 1
        if next(left) == 0:
            done.set()

    calm_collector()
    app, _ = make_app(place.url, ran, concurrency)
    async with app.worker() as running:
        await done.wait()
        await running.drained()
    assert set(counts) == {1}
    assert place.ask(RELTASK.unfinished) == 0


def tell_stages(watch: Stopwatch, jobs: int, wall: float, cpu: float) -> None:
    """The first table."""
    print(f"{'':<28}{'µs/job':>9}{'calls':>9}{'jobs/call':>11}")
    print(f"{'wall':<28}{wall / jobs * 1e6:>9.1f}")
    print(f"{'CPU here':<28}{cpu / jobs * 1e6:>9.1f}")
    for stage, seconds in sorted(watch.seconds.items(), key=lambda pair: -pair[1]):
        calls = watch.calls[stage]
        print(f"  {stage:<26}{seconds / jobs * 1e6:>9.1f}{calls:>9}{jobs / calls:>11.1f}")


def tell_profile(profile: cProfile.Profile, jobs: int, functions: int) -> None:
    """The second and third table."""
    stats: dict[Any, Any] = pstats.Stats(profile).stats  # type: ignore[attr-defined] # what print_stats reads
    areas: dict[str, float] = defaultdict(float)
    for (path, _, name), (_, _, own, _, _) in stats.items():
        areas[_area(path, name)] += own
    print("\nUnder the profiler, own time by area, µs/job")
    for area, seconds in sorted(areas.items(), key=lambda pair: -pair[1]):
        print(f"  {area:<32}{seconds / jobs * 1e6:>9.1f}")
    print("\nby function: own µs/job, calls/job")
    for (path, line, name), (_, calls, own, _, _) in sorted(stats.items(), key=lambda pair: -pair[1][2])[:functions]:
        where = f"{Path(path).name}:{line}" if line else ""
        print(f"  {own / jobs * 1e6:>7.2f} {calls / jobs:>6.2f}  {name[:60]} {where}")


def _area(path: str, name: str) -> str:
    if name in {"drain", "run"} and ("profile_drain" in path or "runners" in path):
        return "event loop, and waiting for the server"  # uvloop's own time is counted for its caller
    text = f"{path} {name}"
    return next((area for part, area in AREAS.items() if part in text), "Python itself")


def main() -> None:
    """Drain twice, print both results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=RELTASK.concurrency)
    parser.add_argument("--functions", type=int, default=25)
    given = parser.parse_args()
    with open_stage() as stage:
        watch, profile = Stopwatch(), cProfile.Profile()
        with stage.database(RELTASK) as place, stages(watch):
            stage.enqueue(RELTASK, place, "many", range(given.jobs))
            wall, cpu = time.perf_counter(), time.process_time()
            run(drain(place, given.jobs, given.concurrency))
            tell_stages(watch, given.jobs, time.perf_counter() - wall, time.process_time() - cpu)
        with stage.database(RELTASK) as place:
            stage.enqueue(RELTASK, place, "many", range(given.jobs))
            profile.runcall(run, drain(place, given.jobs, given.concurrency))
        tell_profile(profile, given.jobs, given.functions)


if __name__ == "__main__":
    main()
