"""For tests: virtual time, and workers that run until nothing is due.

    with virtual_time() as time:
        app = App("sqlite:///:memory:", clock=time.clock, now=time.now, inline=True)

        @app.task(every="10m")
        async def tick() -> None: ...

        async def an_hour() -> None:
            async with app.worker():
                await asyncio.sleep(3600)

        time.run(an_hour())         # an hour of schedules in milliseconds

`TestKit` rebinds an app to a temporary database and virtual time; the fixture `reltask` of the pytest plugin is one.
"""

from __future__ import annotations

from reltask.app import App
from reltask.testing.kit import Enqueued as Enqueued
from reltask.testing.kit import TaskFailed as TaskFailed
from reltask.testing.kit import TestKit as TestKit
from reltask.testing.virtual import START as START
from reltask.testing.virtual import VirtualClock as VirtualClock
from reltask.testing.virtual import VirtualLoop as VirtualLoop
from reltask.testing.virtual import VirtualTime as VirtualTime
from reltask.testing.virtual import virtual_time as virtual_time


async def drain(app: App) -> None:
    """Run the jobs that are due, and those that they enqueue, on this loop; return when none is due or running."""
    async with app.worker() as worker:
        await worker.drained()
