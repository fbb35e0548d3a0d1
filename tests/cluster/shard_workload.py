"""A worker of a sharded system, as a process: counts each run in a table on the shard of its job.

python -m tests.cluster.shard_workload URL…
"""

from __future__ import annotations

import asyncio
import sys

from reltask import App, Context

SETTINGS: dict[str, object] = {
    "worker.concurrency": 6,
    "worker.lock_timeout": "2s",
    "worker.heartbeat": "300ms",
    "worker.beat_timeout": "300ms",
    "worker.stop_grace": "200ms",
    "worker.poll": "1s",
    "database.breaker_reset": "2s",
}


def make_app(urls: list[str]) -> App:
    """The app of a system with these shards."""
    app = App(shards=urls, settings=SETTINGS)

    @app.task(max_attempts=50)
    async def credit(ctx: Context, account: int) -> None:
        """Its effect and its completion commit together, on the shard of the job."""
        await asyncio.sleep(0.02)
        async with ctx.transaction() as tx:
            await tx.execute(
                "insert into public.credits (job, account) values (:job, :account)", job=ctx.job_id, account=account
            )

    return app


if __name__ == "__main__":
    make_app(sys.argv[1:]).run()
