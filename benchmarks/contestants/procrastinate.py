"""procrastinate on psycopg: claims and completes job by job, wakes by a trigger's NOTIFY."""

# mypy: disable-error-code="import-not-found,untyped-decorator,misc"
# procrastinate lives in an environment of its own: see benchmarks/environments.py

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import procrastinate

from benchmarks.contestants.process import Producer, Ran, main


class Contestant:
    """One task."""

    async def prepare(self, url: str) -> None:
        app, _ = make_app(url, print)
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        app, touch = make_app(url, print)

        async def one(number: int) -> None:
            await touch.defer_async(number=number)

        async def many(numbers: Sequence[int]) -> None:
            for first in range(0, len(numbers), 1000):
                await touch.batch_defer_async(*({"number": n} for n in numbers[first : first + 1000]))

        async with app.open_async():
            yield Producer(one, many)

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        app, _ = make_app(url, ran)
        async with app.open_async():
            await app.run_worker_async(concurrency=concurrency, install_signal_handlers=False)


def make_app(url: str, ran: Ran) -> tuple[Any, Any]:
    """The app, and its task."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url, max_size=20))

    @app.task(name="touch")
    async def touch(number: int) -> None:
        ran(number)

    return app, touch


if __name__ == "__main__":
    main(Contestant())
