"""A nightly import in resumable chunks: after a crash it goes on with the chunk that was not committed.

    reltask worker "durable_import:create_app()"

Each chunk is a step whose writes and record commit together, so that no row is imported twice. After
a few chunks the function starts anew with its cursor, so that the list of steps stays short.
"""

from __future__ import annotations

from typing import Any

from reltask import Again, App, Context, TaskTransaction

SOURCE = list(range(1, 101))
"""Stands for the file or service that is imported."""
CHUNK = 10
CHUNKS_PER_SLOT = 4


async def store(tx: TaskTransaction, start: int) -> int:
    """Import one chunk; return where the next one begins."""
    chunk = SOURCE[start : start + CHUNK]
    await tx.execute("create table if not exists imported (value integer)")
    for value in chunk:
        await tx.execute("insert into imported values (:value)", value=value)
    return start + len(chunk)


def create_app(url: str = "sqlite:///import.db", **options: Any) -> App:
    """The app: a schedule that starts the import, and the import itself."""
    app = App(url, **options)

    @app.task
    async def import_all(ctx: Context, start: int = 0) -> int:
        for _ in range(CHUNKS_PER_SLOT):
            if start >= len(SOURCE):
                return start
            start = await ctx.transact(f"chunk:{start}", store, start)
        raise Again(import_all.call(start))

    @app.task(cron="0 2 * * *")
    async def nightly(ctx: Context) -> None:
        await ctx.start("import", import_all.using(key="nightly").call(0))

    return app
