"""The answer to a statement is lost, or the statement arrives late: each verb still has one outcome.

A worker's connections go through a proxy that hits one statement. `cut`: the database has applied
it, and the worker gets no answer. `late`: the worker's connection breaks first, and the statement
arrives after the worker has moved on.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from reltask import App, Context, Snooze, events
from reltask.errors import TransientError
from reltask.model.job import NewJob
from reltask.model.views import JobView, RunView
from reltask.producer.job import Job
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import PostgresOptions
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.postgres.values import WORTH_COPYING
from reltask.worker import poller
from tests.cluster import table
from tests.cluster.cluster import slowness
from tests.faults.environment import proxy_before
from tests.faults.proxy import Aim, Kind, Proxy
from tests.mssql_server import databases
from tests.worker.worker_harness import Recorder

pytestmark = pytest.mark.slow


def settings(url: str) -> dict[str, object]:
    """Short times, multiplied on a slow database."""
    slow = slowness(url)
    return {
        "worker.lock_timeout": f"{4 * slow}s",
        "worker.heartbeat": f"{500 * slow}ms",
        "worker.beat_timeout": f"{slow}s",
        "worker.shutdown_grace": "0s",
        "database.retry_first": "100ms",
        "database.command_timeout": f"{30 * slow}s",
    }


class ProxySetup:
    """An app behind the proxy, and a second one with a direct connection to its database."""

    def __init__(self, url: str, proxy: Proxy, directory: Path) -> None:
        self.url = url
        self.proxy = proxy
        self.gate = directory / "gate"
        self.starts: list[int] = []
        self.events = Recorder()
        self.app = App(proxy.url(url), settings=settings(url))
        self.app.subscribe(self.events)
        self.outside = App(url, settings={"database.command_timeout": "5m"})
        for app in (self.app, self.outside):
            for function in (self.hold, self.fail_once, self.snooze_once, self.write):
                app.task(backoff="200ms")(function)

    # Tasks

    async def hold(self, ctx: Context) -> None:
        self.starts.append(ctx.fence)
        while not self.gate.exists():  # noqa: ASYNC110 - a test opens it, from another thread
            await asyncio.sleep(0.01)

    async def fail_once(self, ctx: Context) -> None:
        self.starts.append(ctx.fence)
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")

    async def snooze_once(self, ctx: Context) -> None:
        self.starts.append(ctx.fence)
        if ctx.fence == 1:
            raise Snooze("200ms")

    async def write(self, ctx: Context) -> None:
        self.starts.append(ctx.fence)
        async with ctx.transaction() as tx:
            await tx.execute(table.INSERT, job=str(ctx.job_id), slot=ctx.slot_no, fence=ctx.fence)

    # What a test does

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """A worker behind the proxy."""
        async with self.app.worker():
            yield

    async def enqueue(self, task: str) -> UUID:
        """Enqueue over the direct connection."""
        return (await self.outside.get_task(task).enqueue()).id

    async def strike(self, aim: Aim) -> None:
        """Wait until the statement is hit; a late request is delivered at once."""
        await asyncio.to_thread(aim.struck)
        aim.deliver()
        await asyncio.to_thread(aim.landed)

    async def runs(self, job: UUID) -> list[tuple[str, int, int]]:
        """Outcome, fence and attempt of each run."""
        found: list[RunView] = await self.outside.runs(job_id=job)
        return sorted((str(run.outcome), run.fence, run.attempt) for run in found)

    async def succeeded(self, job: UUID, fence: int) -> None:
        """Wait until the worker reports success, exactly once."""
        await self.events.wait(events.RunSucceeded, job_id=job, fence=fence)

    def reports(self, job: UUID) -> list[tuple[str, int]]:
        """What the worker reported about runs of this job, without their starts."""
        kinds = (events.RunSucceeded, events.RunFailed, events.RunEnded, events.LateWriteRefused, events.RunAbandoned)
        return [(type(e).__name__, e.fence) for kind in kinds for e in self.events.of(kind, job_id=job)]


@contextmanager
def open_setup(url: str, directory: Path) -> Iterator[ProxySetup]:
    table.create(url)
    with proxy_before(url) as proxy:
        setup = ProxySetup(url, proxy, directory)
        yield setup
        setup.app.close()
        setup.outside.close()


@pytest.fixture(params=[database for database in databases() if database != "sqlite"])
def setup(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ProxySetup]:
    """On every database reached over a network."""
    with open_setup(request.getfixturevalue(f"{request.param}_url"), tmp_path) as made:
        yield made


@pytest.fixture
def postgres_setup(postgres_url: str, tmp_path: Path) -> Iterator[ProxySetup]:
    """On PostgreSQL, which shows lock waits and ends idle transactions."""
    with open_setup(postgres_url, tmp_path) as made:
        yield made


@pytest.mark.parametrize("kind", ["cut", "late"])
async def test_claim_is_released_with_its_attempt(
    setup: ProxySetup, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows that a worker owns without knowing are found by its next heartbeat and released.

    No attempt counts.
    """
    # the claim arrives before the worker polls again
    monkeypatch.setattr(poller, "OUTAGE_PAUSES", (2.0 * slowness(setup.url),))
    setup.gate.touch()
    job = await setup.enqueue("hold")
    aim = setup.proxy.aim("claim_jobs", kind)
    async with setup.working():
        await setup.strike(aim)
        await setup.events.wait(events.StrayReleased, job_id=job, fence=1)
        await setup.succeeded(job, fence=2)
    assert await setup.runs(job) == [("released", 1, 1), ("succeeded", 2, 1)]
    assert setup.starts == [2]


async def test_beat_whose_answer_is_lost_is_sent_again(setup: ProxySetup) -> None:
    """One lost answer is not a lost lock: the body continues under its fence."""
    async with setup.working():
        aim = setup.proxy.aim("heartbeat_jobs", "cut")
        job = await setup.enqueue("hold")
        await setup.strike(aim)
        before = (await row(setup, job)).heartbeat_at
        await until_beaten(setup, job, before)
        setup.gate.touch()
        await setup.succeeded(job, fence=1)
    assert (await setup.runs(job), setup.reports(job)) == ([("succeeded", 1, 1)], [("RunSucceeded", 1)])


async def test_beat_that_arrives_late_renews_nothing(setup: ProxySetup) -> None:
    """It carries owner and fence, so it does not touch the next run's lock."""
    async with setup.working():
        aim = setup.proxy.aim("heartbeat_jobs", "late")
        job = await setup.enqueue("hold")
        await asyncio.to_thread(aim.struck)
    # The worker has stopped and released the job; now another worker holds it.
    async with setup.working():
        held = await claimed(setup, job, fence=2)
        setup.gate.touch()
        aim.deliver()
        await asyncio.to_thread(aim.landed)
        await setup.succeeded(job, fence=2)
    assert held.fence == 2
    assert await setup.runs(job) == [("released", 1, 1), ("succeeded", 2, 1)]


@pytest.mark.parametrize("kind", ["cut", "late"])
async def test_completion_is_recorded_and_reported_once(setup: ProxySetup, kind: Kind) -> None:
    """The same fenced statement is sent again; if it no longer matches, the ledger is read."""
    setup.gate.touch()
    async with setup.working():
        aim = setup.proxy.aim("complete_one_offs" if setup.url.startswith("postgresql") else "complete_jobs", kind)
        job = await setup.enqueue("hold")
        await settled_before_late(setup, aim, job, fence=1)
    assert (await setup.runs(job), setup.reports(job)) == ([("succeeded", 1, 1)], [("RunSucceeded", 1)])
    assert setup.starts == [1]


@pytest.mark.parametrize("kind", ["cut", "late"])
async def test_failure_is_recorded_and_reported_once(setup: ProxySetup, kind: Kind) -> None:
    """One attempt is counted, one failure is reported, and the retry runs."""
    async with setup.working():
        aim = setup.proxy.aim("fail_jobs", kind)
        job = await setup.enqueue("fail_once")
        await settled_before_late(setup, aim, job, fence=2)
    assert await setup.runs(job) == [("failed", 1, 1), ("succeeded", 2, 2)]
    assert setup.reports(job) == [("RunSucceeded", 2), ("RunFailed", 1)]


@pytest.mark.parametrize("kind", ["cut", "late"])
async def test_release_is_recorded_and_reported_once(setup: ProxySetup, kind: Kind) -> None:
    """The attempt is given back once, however often the statement arrives."""
    async with setup.working():
        aim = setup.proxy.aim("release_jobs", kind)
        job = await setup.enqueue("snooze_once")
        await settled_before_late(setup, aim, job, fence=2)
    assert await setup.runs(job) == [("snoozed", 1, 1), ("succeeded", 2, 1)]
    assert setup.reports(job) == [("RunSucceeded", 2), ("RunEnded", 1)]


@pytest.mark.parametrize("kind", ["cut", "late"])
async def test_enqueue_makes_one_row(setup: ProxySetup, kind: Kind) -> None:
    """The retry has the same id: it is inserted once, even if the first request arrives after the job is done."""
    setup.gate.touch()
    async with setup.working():
        aim = setup.proxy.aim("enqueue_job" if setup.url.startswith("postgresql") else "enqueue_jobs", kind)
        job = (await setup.app.get_task("hold").enqueue()).id
        await settled_before_late(setup, aim, job, fence=1)
        assert await setup.outside.jobs() == []
    assert (await setup.runs(job), setup.starts) == ([("succeeded", 1, 1)], [1])


@pytest.mark.parametrize("verb", ["read_now", "COMMIT"])
async def test_bulk_makes_one_row_each(postgres_setup: ProxySetup, verb: str) -> None:
    """The connection breaks before COPY, or before COMMIT's answer: each job exists and runs once."""
    setup = postgres_setup
    setup.gate.touch()
    async with setup.working():
        aim = setup.proxy.aim(verb, "cut")
        jobs = await bulk(setup)
        await setup.strike(aim)
        await all_done(setup, jobs)
    assert setup.starts == [1] * len(jobs)


async def test_bulk_that_ends_late_makes_one_row_each(postgres_setup: ProxySetup) -> None:
    """The second request waits for the first one's rows until they are committed."""
    setup = postgres_setup
    setup.gate.touch()
    async with setup.working():
        aim = setup.proxy.aim("COMMIT", "late")
        sending = asyncio.create_task(bulk(setup))
        await asyncio.to_thread(aim.struck)
        await waiting_for_a_row(setup)
        aim.deliver()
        jobs = await sending
        await all_done(setup, jobs)
    assert setup.starts == [1] * len(jobs)


async def test_large_bulk_ends_with_its_network(postgres_setup: ProxySetup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The network stops in the middle of megabytes: the call ends by its timeout, and keeps no connection."""
    setup, records = postgres_setup, values.records

    class Silencing(list[values.Row]):
        """Rows that the driver fetches when the server is ready for them."""

        def __iter__(self) -> Iterator[values.Row]:
            setup.proxy.black_hole()
            return super().__iter__()

    monkeypatch.setattr(values, "records", lambda jobs, now: map(Silencing, records(jobs, now)))
    options = PostgresOptions(connect_timeout=1.0, command_timeout=1.0, pool_size=1)
    store = PostgresStore(setup.proxy.url(setup.url), options=options)
    jobs = [NewJob(id=uuid4(), task="t", args=json.dumps({"x": "y" * 100_000})) for _ in range(WORTH_COPYING)]
    with pytest.raises(TransientError):
        await asyncio.wait_for(store.enqueue_jobs(jobs), 20)
    setup.proxy.heal()
    monkeypatch.undo()
    assert await store.enqueue_jobs(jobs) == {job.id for job in jobs}
    await store.close()


async def test_commit_whose_answer_is_lost_is_found_in_the_ledger(setup: ProxySetup) -> None:
    """The effect and the end of the slot are recorded, and the body does not run again."""
    async with setup.working():
        aim = setup.proxy.aim("COMMIT", "cut")
        job = await setup.enqueue("write")
        await setup.strike(aim)
        await setup.succeeded(job, fence=1)
    assert (await setup.runs(job), setup.reports(job)) == ([("succeeded", 1, 1)], [("RunSucceeded", 1)])
    assert (table.read(setup.url), setup.starts) == ([job], [1])


async def test_commit_that_arrives_late_still_counts_once(postgres_setup: ProxySetup) -> None:
    """The ledger has no row yet.

    The settlement waits for the job's row, finds it gone, and reads the ledger again.
    """
    setup = postgres_setup
    async with setup.working():
        aim = setup.proxy.aim("COMMIT", "late")
        job = await setup.enqueue("write")
        await asyncio.to_thread(aim.struck)
        await waiting_for_a_row(setup)
        aim.deliver()
        await setup.succeeded(job, fence=1)
    assert (await setup.runs(job), setup.reports(job)) == ([("succeeded", 1, 1)], [("RunSucceeded", 1)])
    assert (table.read(setup.url), setup.starts) == ([job], [1])


async def test_commit_that_never_arrives_is_rolled_back_by_the_server(postgres_setup: ProxySetup) -> None:
    """The server ends the idle transaction after the lock timeout.

    The next attempt writes the effect, once.
    """
    setup = postgres_setup
    async with setup.working():
        aim = setup.proxy.aim("COMMIT", "late")
        job = await setup.enqueue("write")
        await asyncio.to_thread(aim.struck)
        await setup.succeeded(job, fence=2)
    assert [outcome for outcome, *_ in await setup.runs(job)] == ["failed", "succeeded"]
    assert table.read(setup.url) == [job]


# In bulk


async def bulk(setup: ProxySetup) -> list[Job[Any]]:
    """Enough jobs at once for COPY."""
    return await setup.app.enqueue_many(setup.app.get_task("hold").call() for _ in range(WORTH_COPYING))


async def all_done(setup: ProxySetup, jobs: list[Job[Any]]) -> None:
    """Wait until each job has ended once, and none is left.

    Each is this producer's own, however often sent.
    """
    assert all(job.created for job in jobs)
    for job in jobs:
        await setup.succeeded(job.id, fence=1)
        assert await setup.runs(job.id) == [("succeeded", 1, 1)]
    assert await setup.outside.jobs() == []


# Waiting


async def settled_before_late(setup: ProxySetup, aim: Aim, job: UUID, fence: int) -> None:
    """A cut is applied before the worker knows; a late request arrives after everything is done."""
    await asyncio.to_thread(aim.struck)
    await setup.succeeded(job, fence)
    aim.deliver()
    await asyncio.to_thread(aim.landed)


async def row(setup: ProxySetup, job: UUID) -> JobView:
    found = await setup.outside.job(job).view()
    assert found is not None
    return found


async def until_beaten(setup: ProxySetup, job: UUID, before: object) -> None:
    while (await row(setup, job)).heartbeat_at == before:  # noqa: ASYNC110 - the database knows, not this loop
        await asyncio.sleep(0.02)


async def claimed(setup: ProxySetup, job: UUID, fence: int) -> JobView:
    while (view := await row(setup, job)).fence != fence:  # noqa: ASYNC110 - the database knows, not this loop
        await asyncio.sleep(0.02)
    return view


async def waiting_for_a_row(setup: ProxySetup) -> None:
    """Wait until a statement waits for a lock."""
    query = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    while not table.run(setup.url, query)[0][0]:  # noqa: ASYNC110 - the database knows, not this loop
        await asyncio.sleep(0.02)
