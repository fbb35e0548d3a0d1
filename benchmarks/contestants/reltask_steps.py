"""reltask: each job is a durable function: of STEPS steps, or of one sleep (`reltask_naps.py`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta

from benchmarks.contestants.process import Producer, Ran, main
from reltask import App, Context
from reltask.cli.runner import calm_collector
from reltask.producer.task import Producer as Task
from reltask.stores.postgres.schema import migrate_postgres

STEPS = 20
SPREAD_MS = 20
"""Sleepers wake this far apart."""


class Reltask:
    """An app with one durable function."""

    def __init__(self, *, naps: bool = False) -> None:
        self._naps = naps

    async def prepare(self, url: str) -> None:
        await migrate_postgres(url)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        app, touch = make_app(url, lambda _: None, naps=self._naps)

        async def one(number: int) -> None:
            await touch.enqueue(number)

        async def many(numbers: Sequence[int]) -> None:
            await app.enqueue_many(touch.call(number) for number in numbers)

        async with app.producer():
            yield Producer(one, many)

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        calm_collector()  # as `reltask worker` does
        app, _ = make_app(url, ran, concurrency, naps=self._naps)
        async with app.worker():
            await asyncio.Event().wait()


def make_app(url: str, ran: Ran, concurrency: int = 10, *, naps: bool) -> tuple[App, Task[[int], None]]:
    """The app, and its durable function."""
    app = App(url, settings={"worker.concurrency": concurrency, "log.level": "warning"})

    async def step(number: int) -> int:
        ran(number)
        return number

    @app.task
    async def touch(ctx: Context, number: int) -> None:
        if naps:
            await ctx.sleep("nap", timedelta(milliseconds=2000 + SPREAD_MS * number))
            ran(number)
            return
        for nth in range(STEPS):
            await ctx.step(f"step:{nth}", step, number * STEPS + nth)

    return app, touch


if __name__ == "__main__":
    main(Reltask())
