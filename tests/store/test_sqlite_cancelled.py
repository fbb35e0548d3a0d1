"""A task's transaction on SQLite that is cancelled, at any moment and more than once, leaves the file writable."""

from __future__ import annotations

import asyncio
import random
from datetime import timedelta
from pathlib import Path

import pytest

from reltask.stores.sqlite.store import SqliteStore

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", range(3))
async def test_a_cancelled_transaction_unlocks_the_file(tmp_path: Path, seed: int) -> None:
    """Cancelled while it waits for the lock, while it writes, and while it closes: the next writer gets through."""
    rng = random.Random(seed)
    store = SqliteStore(str(tmp_path / "cancelled.db"))
    await store.open()

    async def write() -> None:
        async with store.transaction(timeout=timedelta(seconds=30)) as transaction:
            await transaction.execute("create table if not exists written (n integer)")
            await transaction.fetch("select count(*) from written")

    for _ in range(20):
        tasks = [asyncio.create_task(write()) for _ in range(6)]
        for task in tasks:
            for _ in range(rng.randrange(1, 4)):
                await asyncio.sleep(rng.uniform(0, 0.004))
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.stop_worker("no such worker")  # a write; it would fail if the file stayed locked
    await store.close()
