"""Tasks with limits, for worker processes that are killed and paused."""

from __future__ import annotations

import asyncio

from reltask import App, Limit

RUNNING = 3
RATE, BURST = 100, 10


def make_app(url: str | None = None) -> App:
    """The workload on this database, or on that of the settings."""
    app = App(url)

    @app.task(limit=Limit("each", running=RUNNING, by="key"))
    async def limited(key: int) -> None:
        await asyncio.sleep(0.002 * (key % 5))

    @app.task(limit=Limit("paced", rate=f"{RATE}/s", burst=BURST))
    async def paced() -> None:
        """Only its start counts."""

    return app


app = make_app()
