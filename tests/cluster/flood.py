"""A process that enqueues jobs one by one while it works on them: `python -m tests.cluster.flood COUNT`."""

from __future__ import annotations

import asyncio
import sys

from reltask.logs import setup_logging
from tests.cluster.workload import app


async def flood(count: int) -> None:
    async with app.worker() as worker:
        task = app.get_task("tick")
        for _ in range(count):
            await task.enqueue()
        await worker.drained()


if __name__ == "__main__":
    setup_logging("warning", "json")
    asyncio.run(flood(int(sys.argv[1])))
