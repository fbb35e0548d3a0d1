"""`reltask leases`, `workers` and `stats`: leaders, living workers, and counts by task."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest

from reltask.model.job import WorkerRecord
from reltask.model.lease import MAINTENANCE, Grant, LeaseRequest, Term
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.store import Store
from tests.cli.project import Project, wait_for

T = TypeVar("T")


def on(project: Project, work: Callable[[Store], Awaitable[T]], *, ago: timedelta = timedelta(0)) -> T:
    """Change the project's database, now or some time ago by its clock."""

    async def run() -> T:
        store = SqliteStore(str(Path(project.folder) / "jobs.db"), now=lambda: datetime.now(UTC) - ago)
        await store.open()
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


def lead(project: Project, name: str, holder: str, *, ago: timedelta = timedelta(0), **published: object) -> Grant:
    """Acquire a lease for an hour, and publish metadata."""

    async def acquire(store: Store) -> Grant:
        request = LeaseRequest(name=name, holder=holder, acquisition=uuid4(), ttl=timedelta(hours=1))
        answer = await store.acquire_lease(request)
        assert answer.term is not None
        grant = Grant(term=Term(name, answer.term), acquisition=request.acquisition)
        if published:
            await store.heartbeat_lease(grant, metadata=json.dumps(published))
        return grant

    return on(project, acquire, ago=ago)


# Leases


def test_leases_show_who_leads_what(project: Project) -> None:
    """Holder, term, last run, items, errors, and the number of waiters; the same as JSON."""
    run = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    lead(project, MAINTENANCE, "web_host_42_0123456789ab", last_run=run.isoformat(), items=12, errors=1)
    lead(project, "reports", "cron")
    table = project.run("leases", project.app)
    assert table.code == 0
    header, first, second = table.out.splitlines()
    assert header.split()[:3] == ["LEASE", "HOLDER", "TERM"]
    assert first.split()[:3] == [MAINTENANCE, "web_host_42_012345", "1"]
    assert first.split()[-5:] == ["2026-01-02", "03:04:05", "12", "1", "0"]
    assert second.split()[:3] == ["reports", "cron", "1"]
    listed = project.run("leases", "list", project.app, "--json").json
    assert [(lease["name"], lease["held"]) for lease in listed] == [(MAINTENANCE, True), ("reports", True)]
    assert listed[0]["metadata"]["items"] == 12


def test_a_database_without_leases_says_so(project: Project) -> None:
    """An empty table becomes a sentence."""
    project.run("migrate", project.app)
    assert project.run("leases", project.app).out == "No lease has ever been requested.\n"


def test_stuck_are_those_that_hold_and_finish_nothing(project: Project) -> None:
    """A lease that is renewed for long without finished work.

    One that publishes no work is not judged.
    """
    long_ago, now = timedelta(minutes=10), datetime.now(UTC)
    lead(project, "busy", "a", ago=long_ago, last_run=(now - timedelta(seconds=20)).isoformat())
    lead(project, "idle", "b", ago=long_ago, last_run=(now - timedelta(minutes=9)).isoformat())
    lead(project, MAINTENANCE, "c", ago=long_ago)
    lead(project, "silent", "d", ago=long_ago)
    stuck = project.run("leases", "--stuck", project.app, "--json")
    assert stuck.code == 1
    assert [lease["name"] for lease in stuck.json] == ["idle", MAINTENANCE]
    none = project.run("leases", "--stuck", "--for", "15m", project.app)
    assert (none.code, none.out) == (0, "No lease is stuck.\n")
    assert project.run("leases", "--stuck", "--for", "5", project.app).code == 2


def test_release_ends_the_term_that_was_seen(project: Project) -> None:
    """It shows, asks, and ends that term; the row stays, so that the next term differs."""
    grant = lead(project, "reports", "cron")
    refused = project.call("leases", "release", "reports", "--app", project.app)
    assert refused.code == 130
    assert "Take lease reports away from cron?" in refused.err
    assert project.run("leases", project.app, "--json").json[0]["held"]
    done = project.run("leases", "release", "reports", "--app", project.app, "--yes")
    assert done.code == 0
    assert "Ended term 1 of lease reports." in done.out
    assert not on(project, lambda store: store.heartbeat_lease(grant))
    assert not project.run("leases", project.app, "--json").json[0]["held"]
    assert lead(project, "reports", "other").term.number == 2


def test_release_of_a_lease_that_is_not_held_says_so(project: Project) -> None:
    """Nothing is changed, and the error names the leases that are held."""
    lead(project, "reports", "cron")
    result = project.run("leases", "release", "report", "--app", project.app, "--yes")
    assert result.code == 2
    assert "Held leases: reports." in result.err


# Workers


def test_workers_are_alive_dead_or_stopped(project: Project) -> None:
    """A silent worker is dead once another worker has marked it; host, queues and last heartbeat are shown."""

    async def register(store: Store) -> None:
        record = WorkerRecord(
            id="far_7_abc",
            host="far",
            pid=7,
            version="1",
            app_version=None,
            queues=["mail"],
            tasks=[],
            concurrency=3,
            alive_for=timedelta(minutes=1),
        )
        await store.register_worker(record)

    on(project, register, ago=timedelta(minutes=10))
    assert on(project, lambda store: store.mark_dead_workers(leader=None)) == ["far_7_abc"]
    assert project.call("worker", project.app, "--once").code == 0
    states = {worker["id"]: worker["state"] for worker in project.run("workers", project.app, "--json").json}
    assert states.pop("far_7_abc") == "dead"
    assert list(states.values()) == ["stopped"]
    line = next(line for line in project.run("workers", project.app).out.splitlines() if "far_7_abc" in line)
    assert line.split()[1:6] == ["dead", "far", "0", "3", "mail"]


@pytest.mark.slow
def test_status_names_the_leader(project: Project) -> None:
    """A running worker leads the maintenance, and resigns when it stops."""
    assert "no leader" in project.run("migrate", project.app).out + project.run("status", project.app).out
    worker = project.start("worker", project.app, "--name", "web")
    wait_for(worker, f"Lease {MAINTENANCE} acquired")
    assert "maintenance    led by web_" in project.run("status", project.app).out
    (lease,) = project.run("leases", project.app, "--json").json
    assert lease["holder"] == project.run("status", project.app, "--json").json["maintenance"]
    worker.terminate()
    assert worker.wait(30) == 0
    assert "no leader" in project.run("status", project.app).out
    assert "released" in project.run("leases", project.app).out


# Stats


def test_stats_count_by_task(project: Project) -> None:
    """Runs, failures and their share by task; a period without counts says so."""
    project.enqueue("hello", name="Ada")
    project.enqueue("fragile", secret="hush")
    assert project.call("worker", project.app, "--once").code == 0
    assert "No runs were counted" in project.run("stats", project.app).out
    on(project, lambda store: store.roll_up_runs(leader=None))
    stats = {one["task"]: one for one in project.run("stats", project.app, "--json").json}
    assert {task: (one["runs"], one["failed"], one["failed_share"]) for task, one in stats.items()} == {
        "fragile": (1, 1, 1.0),
        "hello": (1, 0, 0.0),
        "tick": (1, 0, 0.0),
    }
    header, row = project.run("stats", project.app, "--task", "fragile", "--since", "2h").out.splitlines()
    assert header.split()[:4] == ["TASK", "RUNS", "FAILED", "SHARE"]
    assert row.split()[:4] == ["fragile", "1", "1", "100.0%"]


def test_stats_want_one_length(project: Project) -> None:
    """Minutes or a duration, with a unit, and not both."""
    project.run("migrate", project.app)
    assert project.run("stats", project.app, "--minutes", "5", "--since", "5m").code == 2
    assert "is not a duration" in project.run("stats", project.app, "--since", "5").err
