"""How soon a body in another process stops when its job is cancelled.

    python -m benchmarks.cancel URL [--times 30]

From the call of `job.cancel()` to JobCancelled in the caller: signal, the end of the body, its ledger row, and
the way back. A coroutine, a thread that looks at `ctx.check()` every 10 ms, and a child process that sleeps.
"""

# ruff: noqa: T201 - a program's output

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from reltask import App, Context, JobCancelled, ProcessContext, SyncContext

HOUR = 3600.0
CHECK = 0.01
app = App()


@app.task
async def coroutine(ctx: Context) -> None:
    """Sleeps on the loop."""
    await ctx.progress("begun")
    await asyncio.sleep(HOUR)


@app.task
def thread(ctx: SyncContext) -> None:
    """Looks now and then whether it shall stop."""
    ctx.progress("begun")
    while True:
        ctx.check()
        time.sleep(CHECK)


@app.task(isolation="process")
def child(ctx: ProcessContext) -> None:
    """Sleeps in a process of its own."""
    ctx.progress("begun")
    time.sleep(HOUR)


async def stopped(task: Any) -> float:
    """Milliseconds until the body of one job has stopped."""
    job = await task.enqueue()
    while (view := await job.view()) is None or view.progress is None:  # noqa: ASYNC110 - no event tells a producer
        await asyncio.sleep(CHECK)
    began = time.perf_counter()
    await job.cancel()
    try:
        await job.result(timeout="60s")
    except JobCancelled:
        return (time.perf_counter() - began) * 1000
    raise AssertionError("the body was not stopped")


async def measure(times: int) -> None:
    """Each kind of body, one job at a time."""
    async with app.producer():
        for task in (coroutine, thread, child):
            found = [await stopped(task) for _ in range(times)]
            print(f"{task.name}: p50 {statistics.median(found):.0f} ms, most {max(found):.0f} ms")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--times", type=int, default=30)
    given = parser.parse_args()
    os.environ["RELTASK_DATABASE_URL"] = given.url
    command = [sys.executable, "-m", "reltask.cli", "worker", "benchmarks.cancel:app"]
    worker = subprocess.Popen(command, stderr=subprocess.DEVNULL)  # noqa: S603 - our own program
    try:
        asyncio.run(measure(given.times))
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    main()
