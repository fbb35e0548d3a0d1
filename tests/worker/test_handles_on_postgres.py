"""Results and signals on PostgreSQL, through real processes' paths: threads, other loops, transactions of users."""

from __future__ import annotations

import asyncio

import asyncpg
import pytest

from reltask import App, JobCancelled, JobEnded, Signal
from tests.worker.worker_harness import working

pytestmark = pytest.mark.slow
note = Signal("note", str)


async def test_results_and_signals_on_postgres(postgres_url: str) -> None:
    """A wait from a thread and one from this loop; a signal in a user's transaction exists after its commit."""
    app = App(postgres_url)

    @app.task
    async def double(number: int) -> int:
        return 2 * number

    async with working(app):
        jobs = await app.enqueue_many(double.call(number) for number in range(20))
        in_thread = asyncio.to_thread(jobs[7].result_sync, timeout="20s")
        assert await asyncio.gather(*(job.result(timeout="20s") for job in jobs)) == [2 * n for n in range(20)]
        assert await in_thread == 14
        later = await double.using(key="later", delay="1h").enqueue(1)
        connection = await asyncpg.connect(postgres_url)
        try:
            for keep in (False, True):
                transaction = connection.transaction()
                await transaction.start()
                await double.job(key="later").signal(note, str(keep), connection=connection)
                assert await later.signals() == []
                await (transaction.commit() if keep else transaction.rollback())
            joined = connection.transaction()
            await joined.start()
            with pytest.raises(JobEnded):
                await jobs[0].signal(note, "too late", connection=connection)
            await joined.rollback()
        finally:
            await connection.close()
        assert [signal.value for signal in await later.signals()] == ['"True"']
        await later.discard()
        with pytest.raises(JobCancelled, match="was discarded"):
            await later.result()
