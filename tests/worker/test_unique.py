"""`unique=`, `unique_for=`, `unique_until=` and `replace=`: keys made from arguments."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from reltask import App, Context, UsageError, events
from reltask.errors import DeclarationError
from tests.worker.worker_harness import WorkerHarness


def test_equal_arguments_make_one_job(harness: WorkerHarness) -> None:
    """However they are written: by position, by name, or left out where they have a default."""
    app = harness.app()

    @app.task(unique=True)
    async def send(customer: int, kind: str = "mail") -> None: ...

    async def scenario() -> None:
        first = await send.enqueue(7)
        second = await send.enqueue(kind="mail", customer=7)
        other = await send.enqueue(7, "letter")
        assert (first.created, second.created, second.id, other.created) == (True, False, first.id, True)
        many = await app.enqueue_many([send.call(7), send.call(8), send.call(8)])
        assert [job.created for job in many] == [False, True, False]
        assert (many[0].id, many[2].id) == (first.id, many[1].id)
        async with app.worker() as worker:
            await worker.drained()
        assert (await send.enqueue(7)).created

    harness.run(scenario())


def test_only_the_named_parameters_count(harness: WorkerHarness) -> None:
    """One job per customer and day, whatever the rest says."""
    app = harness.app()

    @app.task(unique=("customer", "day"))
    async def digest(customer: int, day: str, text: str) -> None: ...

    async def scenario() -> None:
        created = [
            (await digest.enqueue(*given)).created for given in [(1, "mon", "a"), (1, "mon", "b"), (1, "tue", "a")]
        ]
        assert created == [True, False, True]

    harness.run(scenario())


def test_a_key_is_kept_for_its_time(harness: WorkerHarness) -> None:
    """Also after the job's end, by the database's clock."""
    app = harness.app()

    @app.task(unique=True, unique_for="1h")
    async def remind(customer: int) -> None: ...

    async def scenario() -> None:
        await remind.enqueue(1)
        await app.drain()
        assert not (await remind.enqueue(1)).created
        await asyncio.sleep(3600)
        assert (await remind.enqueue(1)).created

    harness.run(scenario())


def test_a_change_during_the_run_is_not_lost(harness: WorkerHarness) -> None:
    """With `unique_until="start"` it gets a run of its own."""
    app = harness.app()
    seen: list[int] = []

    @app.task(unique=True, unique_until="start")
    async def sync(ctx: Context, customer: int) -> None:  # noqa: ARG001 - its key
        seen.append(ctx.slot_no)
        await asyncio.sleep(10)

    async def scenario() -> None:
        async with app.worker():
            await sync.enqueue(1)
            await app.log.wait(events.RunStarted)
            assert (await sync.enqueue(1)).created
            await app.log.wait(events.RunSucceeded, count=2)

    harness.run(scenario())
    assert len(seen) == 2


def test_replace_moves_the_waiting_job(harness: WorkerHarness) -> None:
    """Debounce: of many calls within the delay the last one's arguments run, once, after the last delay."""
    app = harness.app()
    seen: list[str] = []

    @app.task(unique="customer", unique_until="start")
    async def index(customer: int, text: str) -> None:  # noqa: ARG001 - its key
        seen.append(text)

    async def scenario() -> None:
        async with app.worker():
            debounced = index.using(delay="10s", replace=True)
            jobs = []
            for text in ("a", "b", "c"):
                jobs.append(await debounced.enqueue(1, text))
                await asyncio.sleep(5)
            assert [job.created for job in jobs] == [True, False, False]
            await app.log.wait(events.RunSucceeded)
            assert 19.9 < harness.seconds() < 21
            assert (await debounced.enqueue(1, "d")).created
            await app.log.wait(events.RunSucceeded, count=2)

    harness.run(scenario())
    assert seen == ["c", "d"]


def test_a_child_is_not_refused(harness: WorkerHarness) -> None:
    """A parent waits for its own child, not for a job that happens to have the same arguments."""
    app = harness.app()

    @app.task(unique=True)
    async def label(number: int) -> int:
        return number

    @app.task
    async def parent(ctx: Context) -> list[int]:
        return await ctx.run_all("labels", [label.call(1), label.call(1)])

    async def scenario() -> None:
        waiting = await label.using(delay="1d").enqueue(1)
        job = await parent.enqueue()
        async with app.worker():
            assert await job.result() == [1, 1]
        assert waiting.created

    harness.run(scenario())


@pytest.mark.parametrize(
    "options",
    [
        {"unique": "custmer"},
        {"unique": ()},
        {"unique": 7},
        {"unique_for": "1h"},
        {"unique": True, "unique_until": "end"},
        {"unique": True, "unique_for": "0s"},
    ],
)
def test_options_are_checked_by_the_decorator(harness: WorkerHarness, options: dict[str, Any]) -> None:
    """A mistake is found before anything is enqueued."""
    app = harness.app()

    async def send(customer: int) -> None: ...

    with pytest.raises(DeclarationError):
        app.task(**options)(send)


def test_replace_needs_a_unique_task(harness: WorkerHarness) -> None:
    """Else there is nothing that it could replace."""
    app = harness.app()

    @app.task
    async def send(customer: int) -> None: ...

    with pytest.raises(UsageError, match="unique"):
        send.using(replace=True)


def test_a_job_has_one_key(harness: WorkerHarness) -> None:
    """A key of the caller's own beside the one that is made from the arguments is refused; a schedule has its own."""
    app = harness.app()

    @app.task(unique=True)
    async def send(customer: int) -> None: ...

    async def scenario() -> None:
        with pytest.raises(UsageError, match="unique"):
            await send.using(key="one").enqueue(1)
        daily = await send.using(key="one", every="1d").enqueue(1)
        assert daily.created
        assert (await send.enqueue(1)).created

    harness.run(scenario())


@pytest.mark.slow
async def test_fifty_transactions_of_users_make_one_job(postgres_url: str) -> None:
    """Each on its own connection, all at once; those that roll back leave the key to the others."""
    app = App(postgres_url)

    @app.task(unique=True)
    async def send(customer: int) -> None: ...

    async def enqueue_one(nth: int) -> bool:
        connection = await asyncpg.connect(postgres_url)
        try:
            transaction = connection.transaction()
            await transaction.start()
            job = await send.using(connection=connection).enqueue(1)
            keep = nth % 5 > 0
            await (transaction.commit() if keep else transaction.rollback())
            return job.created and keep
        finally:
            await connection.close()

    created = await asyncio.gather(*(enqueue_one(nth) for nth in range(50)))
    assert sum(created) == 1
    assert len(await app.jobs(limit=100)) == 1
    await asyncio.to_thread(app.close)


@pytest.mark.slow
def test_fifty_transactions_of_users_on_a_file_make_one_job(tmp_path: Path) -> None:
    """Fifty threads, each with its own connection; those that roll back leave the key to the others."""
    path = tmp_path / "shop.db"
    app = App(f"sqlite:///{path}")
    together = threading.Barrier(50)

    @app.task(unique=True)
    async def send(customer: int) -> None: ...

    def enqueue_one(nth: int) -> bool:
        with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
            together.wait(60)
            connection.execute("begin immediate")
            job = send.using(connection=connection).enqueue_sync(1)
            keep = nth % 5 > 0
            connection.execute("commit" if keep else "rollback")
            return job.created and keep

    assert app.jobs_sync() == []  # creates the tables
    with ThreadPoolExecutor(50) as threads:
        assert sum(threads.map(enqueue_one, range(50))) == 1
    assert len(app.jobs_sync(limit=100)) == 1
    app.close()


@pytest.mark.slow
def test_a_transaction_of_a_user_on_sqlite(tmp_path: Path) -> None:
    """Rolled back it leaves the key free; committed it has it."""
    path = tmp_path / "shop.db"
    app = App(f"sqlite:///{path}")

    @app.task(unique=True)
    async def send(customer: int) -> None: ...

    assert send.enqueue_sync(2).created
    connection = sqlite3.connect(path, isolation_level=None)
    for end in ("rollback", "commit"):
        connection.execute("begin immediate")
        assert send.using(connection=connection).enqueue_sync(1).created
        assert not send.using(connection=connection).enqueue_sync(1).created
        connection.execute(end)
    connection.close()
    assert not send.enqueue_sync(1).created
    app.close()
