"""reltask with its default settings: fence, ledger, heartbeat, leases, events, typed arguments.

Only the concurrency is chosen, as for all contestants. The URL says which store: the same module runs on SQLite.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

from benchmarks.contestants.process import Producer, Ran, main
from reltask import App
from reltask.cli.runner import calm_collector
from reltask.producer.task import Task
from reltask.stores.postgres.schema import migrate_postgres


class Reltask:
    """An app with one task."""

    async def prepare(self, url: str) -> None:
        if url.startswith("sqlite:"):
            await make_app(url, print)[0].jobs()  # the first process that opens a file creates its tables
        else:
            await migrate_postgres(url)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        app, touch = make_app(url, lambda _: None)

        async def many(numbers: Sequence[int]) -> None:
            await app.enqueue_many(touch.call(number) for number in numbers)

        async with app.producer():  # as a server that lives on its loop
            yield Producer(touch.enqueue, many)

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        calm_collector()  # as `reltask worker` does
        app, _ = make_app(url, ran, concurrency)
        async with app.worker():
            await asyncio.Event().wait()


def make_app(
    url: str, ran: Ran, concurrency: int = 10
) -> tuple[App, Task[[int], [int], Coroutine[Any, Any, None], None]]:
    """The app, and its task."""
    app = App(url, settings={"worker.concurrency": concurrency, "log.level": "warning"})

    @app.task
    async def touch(number: int) -> None:
        ran(number)

    return app, touch


if __name__ == "__main__":
    main(Reltask())
