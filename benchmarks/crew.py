"""A process with any number of idle reltask workers, for questions about waiting. It ends when its standard input does.

    python -m benchmarks.crew URL COUNT [--effects FILE] [--every 1s] [--set worker.concurrency=1000]

Each worker has an app, a store and connections of its own; they share the process and its loop, nothing else. With
`--every` the app declares one recurring job on a fixed grid, whose body writes its slot number to the effects.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.contestants.process import Effects, Ran, run
from reltask import App, Context


async def crew(url: str, count: int, ran: Ran, every: str | None, settings: dict[str, object]) -> None:
    """Run `count` workers on this loop, until standard input ends."""
    async with AsyncExitStack() as workers:
        for _ in range(count):
            await workers.enter_async_context(make_app(url, ran, every, settings).worker())
        await asyncio.to_thread(sys.stdin.read)


def make_app(url: str, ran: Ran, every: str | None, settings: dict[str, object]) -> App:
    """An app that can tick and rest."""
    app = App(url, settings=settings)

    @app.task
    async def tick(ctx: Context) -> None:
        ran(ctx.slot_no)

    @app.task
    async def rest(number: int, seconds: float) -> None:
        ran(number)
        await asyncio.sleep(seconds)

    if every is not None:
        app.schedule(tick, every=every, align=True)
    return app


def command(url: str, count: int, **options: object) -> list[str]:
    """How to start a crew."""
    words = [f"--{name}={value}" for name, value in options.items()]
    return [sys.executable, "-m", "benchmarks.crew", url, str(count), *words]


def crews(url: str, workers: int, per_process: int) -> list[list[str]]:
    """The commands that start these workers in as few processes as that allows."""
    return [command(url, min(per_process, workers - begun)) for begun in range(0, workers, per_process)]


def main() -> None:
    """Be a crew."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("count", type=int)
    parser.add_argument("--effects", type=Path)
    parser.add_argument("--every")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args()
    ran: Ran = Effects(given.effects).ran if given.effects else lambda _: None
    settings: dict[str, object] = dict(pair.split("=", 1) for pair in given.set)
    run(crew(given.url, given.count, ran, given.every, settings))


if __name__ == "__main__":
    main()
