"""How long a caller waits for a result after it is committed, and what 1 000 waiting callers cost.

    python -m benchmarks.results_wait URL [--jobs 300] [--waiters 1000]

The worker is a process of its own. Each body returns the time at which it ended, so a figure includes the
settlement: commit, signal, look, and the way to the caller. With `--waiters` that many callers wait at
once for jobs that are not due; the statements per second that they cost are counted by the caller's store.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
from collections import Counter

from reltask import App
from reltask.producer import result

PAUSE = 0.02


def make_app(url: str) -> App:
    """The app of the worker and of the caller."""
    app = App(url)

    @app.task
    async def stamp(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return time.time()

    return app


async def delays(app: App, jobs: int) -> list[float]:
    """Milliseconds from the end of a body to its caller, one job at a time."""
    measured = []
    for _ in range(jobs):
        job = await app.get_task("stamp").enqueue(PAUSE)
        ended: float = await job.result(timeout="30s")
        measured.append((time.time() - ended) * 1000)
    return measured


async def crowd(app: App, waiters: int) -> float:
    """Looks per second while this many callers wait."""
    looks: Counter[str] = Counter()
    usual = result.ResultPoller._look  # noqa: SLF001 - it is counted

    async def counted(self: result.ResultPoller, *args: object) -> None:
        looks["look"] += 1
        await usual(self, *args)  # type: ignore[arg-type]

    setattr(result.ResultPoller, "_look", counted)  # noqa: B010 - it is counted
    jobs = await app.enqueue_many(app.get_task("stamp").using(delay="1d").call(0.0) for _ in range(waiters))
    waiting = [asyncio.ensure_future(job.result()) for job in jobs]
    await asyncio.sleep(2)
    looks.clear()
    await asyncio.sleep(5)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    for job in jobs:
        await job.cancel()
    return looks["look"] / 5


async def measure(app: App, options: argparse.Namespace) -> None:
    """Both figures."""
    found = await delays(app, options.jobs)
    tenths = statistics.quantiles(found, n=20)
    print(f"end of a body to its caller: p50 {statistics.median(found):.1f} ms, p95 {tenths[18]:.1f} ms")  # noqa: T201
    print(f"{options.waiters:,} callers: {await crowd(app, options.waiters):.1f} looks a second")  # noqa: T201
    await asyncio.to_thread(app.close)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--waiters", type=int, default=1000)
    options = parser.parse_args()
    script = f"from benchmarks.results_wait import make_app; make_app({options.url!r}).run()"
    worker = subprocess.Popen([sys.executable, "-c", script])  # noqa: S603 - our own script
    try:
        asyncio.run(measure(make_app(options.url), options))
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
