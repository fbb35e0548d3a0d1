"""reltask with limits: one that all jobs share, and one that counts each of a thousand keys.

The environment says which, or none. All have the same body and arguments, so that they can be compared.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from benchmarks.contestants.process import Producer, Ran, main
from reltask import App, Limit
from reltask.cli.runner import calm_collector
from reltask.stores.postgres.schema import migrate_postgres

KIND = "BENCH_LIMIT"
"""plain, shared, keyed or paced."""
KEYS = 1_000


class Limited:
    """An app with one task, and the limit that the environment names."""

    async def prepare(self, url: str) -> None:
        await migrate_postgres(url)

    @asynccontextmanager
    async def producer(self, url: str) -> AsyncIterator[Producer]:
        app = make_app(url, lambda _: None)
        touch = app.get_task("touch")

        async def many(numbers: Sequence[int]) -> None:
            await app.enqueue_many(touch.call(number, number % KEYS) for number in numbers)

        async with app.producer():
            yield Producer(lambda number: touch.enqueue(number, number % KEYS), many)

    async def work(self, url: str, ran: Ran, concurrency: int) -> None:
        calm_collector()  # as `reltask worker` does
        async with make_app(url, ran, concurrency).worker():
            await asyncio.Event().wait()


LIMITS = {
    "shared": lambda: Limit("shared", running=50),
    "keyed": lambda: Limit("keyed", running=1, by="key"),
    "paced": lambda: Limit("paced", rate="100/s", burst=10),
}


def make_app(url: str, ran: Ran, concurrency: int = 10) -> App:
    """The app."""
    app = App(url, settings={"worker.concurrency": concurrency, "log.level": "warning"})
    make = LIMITS.get(os.environ.get(KIND, "plain"))

    @app.task(**({} if make is None else {"limit": make()}))  # type: ignore[call-overload, untyped-decorator]
    async def touch(number: int, key: int) -> None:  # noqa: ARG001 - the limit counts by it
        ran(number)

    return app


if __name__ == "__main__":
    main(Limited())
