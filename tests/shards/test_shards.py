"""One suite for every kind of shard: files, prefixes, schemas, databases."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from reltask import App, Context
from reltask.errors import JobCancelled, ResultGone, SettingsError, UsageError
from reltask.model.shards import numbered, rendezvous, shard_of
from tests.shards.conftest import SHARDS, System, task_of

PATIENCE = 30.0


def keys_of(shard: int, count: int, shards: int = SHARDS) -> list[str]:
    """Keys that live on this shard."""
    found = (f"key-{n}" for n in range(10_000) if rendezvous(f"key-{n}", range(shards)) == shard)
    return [next(found) for _ in range(count)]


async def test_each_job_runs_once_wherever_it_lives(system: System) -> None:
    """Jobs spread over all shards; each runs once, is found by its id, and the audit of all finds nothing."""
    app = system.app(settings={"worker.concurrency": 5})
    ran: Counter[int] = Counter()

    @app.task
    async def count(x: int) -> int:
        ran[x] += 1
        return x

    async with app.producer():
        jobs = [await count.enqueue(n) for n in range(30)]
        jobs += await app.enqueue_many(count.using(key=f"key-{n}").call(30 + n) for n in range(30))
        assert set(map(_shard, jobs)) == set(range(SHARDS))
        assert (await app.status()).due == 60
        async with app.worker() as worker, asyncio.timeout(PATIENCE):
            assert [await job.result() for job in jobs] == list(range(60))
            await worker.drained()
        assert ran == Counter(range(60))
        assert len(await app.runs(limit=100)) == 60
        assert len(await jobs[0].runs()) == 1
        report = await app.audit()
        assert report.violations == 0
        assert [(task.task, task.succeeded) for task in report.tasks] == [("count", 60)]
        assert [view.id for view in await app.workers()] == [worker.id]


async def test_a_key_exists_once_in_the_system(system: System) -> None:
    """Two processes put a key on the same shard, where the second finds the first's job."""
    mine, theirs = task_of(system.app()), task_of(system.app())
    for n in range(12):
        first = await mine.using(key=f"key-{n}").enqueue(n)
        second = await theirs.using(key=f"key-{n}").enqueue(n)
        assert (first.created, second.created) == (True, False)
        assert first.id == second.id
        assert shard_of(first.id) == rendezvous(f"key-{n}", range(SHARDS))


async def test_operations_find_a_job_by_its_id(system: System) -> None:
    """Also by one without a shard's number, as ids were before there were shards."""
    add = task_of(system.app())
    app = system.app()
    job = await add.using(delay="1h").enqueue(1)
    await app.job(job.id).pause()
    view = await app.job(job.id).view()
    assert view is not None
    assert view.state == "paused"
    old = UUID("0192aa31-5f20-7003-8000-92d077e10b3f")
    assert await app.job(old).view() is None
    await app.job(job.id).discard()
    assert await app.jobs() == []


async def test_jobs_from_before_there_were_shards_are_awaited(system: System) -> None:
    """Their ids name no shard: one that does not have such a job does not say that it is gone."""
    before = App(system.urls[0])
    add = task_of(before)
    old = [await add.enqueue(0), await add.using(delay="1h").enqueue(1)]
    before.close()
    app = system.app()
    task_of(app)
    async with app.worker(), asyncio.timeout(PATIENCE):
        done, later = (app.job(job.id) for job in old)
        assert await done.result() == 1
        with pytest.raises(TimeoutError):
            await later.result(timeout="0.1s")
        await later.run_now()
        assert await later.result() == 2
        with pytest.raises(ResultGone):
            await app.job(UUID("0192aa31-5f20-7003-8000-92d077e10b3f")).result()


async def test_a_job_is_cancelled_wherever_it_lives(system: System) -> None:
    """One that waits, and one that runs: their results raise."""
    app = system.app()
    begun = asyncio.Event()

    @app.task
    async def wait() -> None:
        begun.set()
        await asyncio.Event().wait()

    async with app.producer(), app.worker(), asyncio.timeout(PATIENCE):
        for shard in range(SHARDS):
            waits = await wait.using(key=keys_of(shard, 1)[0], delay="1h").enqueue()
            runs = await wait.using(key=keys_of(shard, 2)[1]).enqueue()
            await begun.wait()
            begun.clear()
            for job in (waits, runs):
                await job.cancel()
                with pytest.raises(JobCancelled):
                    await job.result()


async def test_a_job_that_runs_again_says_where_it_lives(system: System) -> None:
    """What `run_again` makes is a job like any other: on any shard, with its number in the id."""
    app = system.app()
    add = task_of(app)
    async with app.producer(), app.worker(), asyncio.timeout(PATIENCE):
        first = await add.enqueue(1)
        assert await first.result() == 2
        again = [await first.run_again() for _ in range(10)]
        assert [await job.result() for job in again] == [2] * 10
    assert None not in set(map(_shard, again))
    assert len(set(map(_shard, again))) > 1


async def test_children_live_with_their_parents(system: System) -> None:
    """A durable function and its children are on one shard, whichever it is."""
    app = system.app()

    @app.task
    async def label(x: int) -> int:
        return x * 10

    @app.task
    async def order(ctx: Context, x: int) -> list[int]:
        return await ctx.run_all("labels", [label.call(x), label.call(x + 1)])

    async with app.producer(), app.worker(), asyncio.timeout(PATIENCE):
        parents = [await order.enqueue(n) for n in range(6)]
        assert [await parent.result() for parent in parents] == [[n * 10, n * 10 + 10] for n in range(6)]
        assert len(set(map(_shard, parents))) > 1
        for run in await app.runs(task="label"):
            assert shard_of(run.job_id) in set(map(_shard, parents))
        assert (await app.audit()).violations == 0


async def test_jobs_of_a_transaction_are_on_its_shard(system: System) -> None:
    """What a task enqueues in its transaction commits with it; a key of another shard is refused."""
    app = system.app()
    enqueued: list[UUID] = []
    refused: list[str] = []

    @app.task
    async def follow(x: int) -> int:
        return x

    @app.task
    async def lead(ctx: Context, other: str) -> None:
        async with ctx.transaction():
            enqueued.append((await follow.enqueue(1)).id)
            with pytest.raises(UsageError, match="belongs to shard") as error:
                await follow.using(key=other).enqueue(2)
            refused.append(str(error.value))

    async with app.producer(), app.worker() as worker, asyncio.timeout(PATIENCE):
        for shard in range(SHARDS):
            (here,) = keys_of(shard, 1)
            (elsewhere,) = keys_of((shard + 1) % SHARDS, 1)
            job = await lead.using(key=here).enqueue(elsewhere)
            await job.result()
            assert shard_of(enqueued[-1]) == shard == shard_of(job.id)
        await worker.drained()
        assert len(refused) == SHARDS
        assert [await app.job(job_id).result() for job_id in enqueued] == [1] * SHARDS


async def test_schedules_live_on_the_first_shard(system: System) -> None:
    app = system.app()
    ran = asyncio.Event()

    @app.task(every="1h")
    async def tick() -> None:
        ran.set()

    async with app.worker(), asyncio.timeout(PATIENCE):
        await ran.wait()
    (job,) = await app.jobs()
    assert shard_of(job.id) == 0


async def test_the_order_of_shards_is_checked(system: System) -> None:
    """An install that is another shard than its place in the list says is refused, by producers and workers."""
    await task_of(system.app()).enqueue(1)
    swapped = system.app([*reversed(system.urls)])
    with pytest.raises(SettingsError, match=r"is shard [02]"):
        await swapped.status()
    with pytest.raises(SettingsError, match="is shard"):
        async with swapped.worker():
            pass


async def test_a_drained_shard_gets_no_new_jobs_and_is_emptied(system: System) -> None:
    """Its jobs end there; new ones, with and without a key, go elsewhere; a key that it has is not enqueued twice."""
    app = system.app()
    add = task_of(app)
    (key,) = keys_of(2, 1)
    old = await add.using(key=key, delay="1h").enqueue(1)
    view = await app.drain_shard(2)
    assert (view.draining, view.jobs) == (True, 1)
    other = system.app()
    more = task_of(other)
    jobs = [await more.enqueue(n) for n in range(20)]
    jobs += [await more.using(key=name).enqueue(n) for n, name in enumerate(keys_of(2, 6)[1:])]
    assert 2 not in set(map(_shard, jobs))
    again = await more.using(key=key).enqueue(1)
    assert (again.created, again.id) == (False, old.id)
    await old.run_now()
    async with app.worker() as worker, asyncio.timeout(PATIENCE):
        assert await old.result() == 2
        await worker.drained()
    shards = await app.shards()
    assert [shard.jobs for shard in shards] == [0] * SHARDS
    # Now it can be removed: None keeps the numbers of the others.
    left = system.app([*system.urls[:2], None])
    assert shard_of((await task_of(left).using(key=key).enqueue(3)).id) in (0, 1)


async def test_the_first_shard_cannot_be_drained(system: System) -> None:
    with pytest.raises(UsageError, match="the first one"):
        await system.app().drain_shard(0)


async def test_a_shard_is_added_without_downtime(system: System, urls: list[str]) -> None:
    """Old processes go on beside new ones; a key that has moved finds the job where it was."""
    old, new = task_of(system.app()), task_of(system.app([*urls]))
    moved = keys_of(SHARDS, 3, shards=SHARDS + 1)
    before = [await old.using(key=key).enqueue(1) for key in moved]
    after = [await new.using(key=key).enqueue(1) for key in moved]
    assert [job.id for job in after] == [job.id for job in before]
    fresh = keys_of(SHARDS, 6, shards=SHARDS + 1)[3:]
    assert {shard_of((await new.using(key=key).enqueue(1)).id) for key in fresh} == {SHARDS}


async def test_a_unique_job_is_found_where_it_was(system: System, urls: list[str]) -> None:
    """A unique task's key that a new shard takes over, or a drained one gives away, makes no second job."""
    old, new = unique_of(system.app()), unique_of(system.app([*urls]))
    before = [await old.using(delay="1h").enqueue(n) for n in range(12)]
    after = [await new.enqueue(n) for n in range(12)]
    assert [(job.id, job.created) for job in after] == [(job.id, False) for job in before]
    assert {shard_of((await new.enqueue(n)).id) for n in range(100, 130)} == set(range(SHARDS + 1))
    drained = system.app([*urls])
    await drained.drain_shard(1)
    third = unique_of(drained)
    assert [(await third.enqueue(n)).id for n in range(12)] == [job.id for job in before]


async def test_a_unique_job_is_replaced_where_it_was(system: System, urls: list[str]) -> None:
    """`replace` reaches the job on the shard that had its key before; one that has ended frees the key."""
    old, app = unique_of(system.app()), system.app([*urls])
    new = unique_of(app)
    before = [await old.using(delay="1h").enqueue(n, 1) for n in range(12)]
    after = [await new.using(replace=True).enqueue(n, 2) for n in range(12)]
    assert [job.id for job in after] == [job.id for job in before]
    for job in before:
        await job.run_now()
    async with app.worker(), asyncio.timeout(PATIENCE):
        assert [await job.result() for job in before] == [n + 2 for n in range(12)]
    again = [await new.enqueue(n, 3) for n in range(12)]
    assert all(job.created for job in again)
    assert [(await new.enqueue(n, 3)).id for n in range(12)] == [job.id for job in again]


async def test_one_connection_reaches_the_shards_of_its_database(system: System, kind: str) -> None:
    """In a transaction of the user's own, a key goes to its shard, if the connection leads there."""
    if kind != "postgres schemas":
        pytest.skip("shown with asyncpg")
    add = task_of(system.app())
    connection = await asyncpg.connect(system.urls[0].partition("?")[0])
    try:
        async with connection.transaction():
            jobs = [await add.using(connection=connection, key=f"key-{n}").enqueue(n) for n in range(9)]
        assert [shard_of(job.id) for job in jobs] == [rendezvous(f"key-{n}", range(SHARDS)) for n in range(9)]
        again = await add.using(key="key-0").enqueue(0)
        assert again.id == jobs[0].id
    finally:
        await connection.close()


async def test_one_connection_says_which_of_several_databases_it_leads_to(system: System, kind: str) -> None:
    """What is enqueued with it is on its shard; a key, or a signal to a job, of another shard is refused."""
    if kind not in ("sqlite files", "postgres databases"):
        pytest.skip("one database")
    add = task_of(system.app())
    for shard in range(SHARDS):
        (here,), (elsewhere,) = keys_of(shard, 1), keys_of((shard + 1) % SHARDS, 1)
        away = await add.using(key=elsewhere).enqueue(0)
        async with transaction(system.urls[shard]) as connection:
            jobs = [await insert(add, connection) for _ in range(4)]
            jobs.append(await insert(add, connection, key=here))
            with pytest.raises(UsageError, match=f"belongs to shard {(shard + 1) % SHARDS}, .* on shard {shard}"):
                await insert(add, connection, key=elsewhere)
            with pytest.raises(UsageError, match="another shard"):
                await send(away, connection)
        assert {shard_of(job.id) for job in jobs} == {shard}
        assert all([await job.view() for job in jobs])


async def test_a_connection_to_no_shard_is_refused(system: System, kind: str, tmp_path: Path) -> None:
    if kind != "sqlite files":
        pytest.skip("shown once")
    add = task_of(system.app())
    async with transaction(f"sqlite:///{tmp_path}/another.db") as connection:
        with pytest.raises(UsageError, match="none of the shards"):
            await insert(add, connection)


async def insert(add: Any, connection: Any, **options: Any) -> Any:
    """Enqueue in the transaction that is open on this connection."""
    call = add.using(connection=connection, **options)
    return call.enqueue_sync(1) if isinstance(connection, sqlite3.Connection) else await call.enqueue(1)


async def send(job: Any, connection: Any) -> None:
    """Send it a signal in that transaction."""
    if isinstance(connection, sqlite3.Connection):
        job.signal_sync("go", 1, connection=connection)
    else:
        await job.signal("go", 1, connection=connection)


@asynccontextmanager
async def transaction(url: str) -> AsyncIterator[Any]:
    """A transaction of the user's own."""
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            file.execute("begin")
            yield file
            file.execute("commit")
        return
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


async def test_shards_by_number_are_schemas_of_one_database(kind: str, tmp_path: Any) -> None:
    """`shards=4` beside a URL."""
    if kind != "sqlite files":
        pytest.skip("shown once")
    app = App(f"sqlite:///{tmp_path}/one.db", shards=4)
    assert app.shard_urls == {n: f"sqlite:///{tmp_path}/one.db?schema=reltask_{n}" for n in range(4)}
    add = task_of(app)
    jobs = [await add.using(key=f"k{n}").enqueue(n) for n in range(12)]
    assert len(set(map(_shard, jobs))) > 1
    app.close()


def test_an_id_keeps_its_time_and_randomness() -> None:
    job_id = UUID("0192aa31-5f20-7abc-a41c-92d077e10b3f")
    assert str(numbered(job_id, 3)) == "0192aa31-5f20-8003-a41c-92d077e10b3f"


def _shard(job: Any) -> int | None:
    return shard_of(job.id)


def unique_of(app: App) -> Any:
    """The task `total` of an app, unique by its first argument."""

    @app.task(unique="x")
    async def total(x: int, y: int = 0) -> int:
        return x + y

    return total
