"""Healthy workers: every slot once, at its time, with any number of workers."""

from __future__ import annotations

import json
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from statistics import median

import pytest

from reltask.model.duration import format_duration
from reltask.model.job import Outcome
from reltask.model.views import RunView
from tests.cluster.cluster import WORKER, Cluster, eventually, figures, running, slowness
from tests.cluster.workload import SCHEDULES, VERSION

pytestmark = pytest.mark.slow

SLOTS = 200
GRID = timedelta(milliseconds=35)
SHORT = timedelta(milliseconds=400)
LONG = timedelta(milliseconds=1500)
"""With bodies of 0.8 s: longer than a heartbeat, which comes every 0.5 s."""


def schedules(times: int) -> str:
    """Two aligned jobs, twelve short ones, and two whose bodies outlast a heartbeat; times multiplied by the factor.

    A point of the grid that has passed is covered by the next run; with missed="all" each has its own.
    """
    grid, short, long = (format_duration(interval * times) for interval in (GRID, SHORT, LONG))
    shorts = [{"key": f"short-{n}", "every": short, "arguments": {"seconds": 0.05}} for n in range(12)]
    longs = [{"key": f"long-{n}", "every": long, "arguments": {"seconds": 0.8 * times}} for n in range(2)]
    each = {"key": "each", "every": short, "align": True, "missed": "all"}
    return json.dumps([{"key": "grid", "every": grid, "align": True}, each, *shorts, *longs])


def by_key(runs: list[RunView]) -> dict[str, list[RunView]]:
    found: dict[str, list[RunView]] = {}
    for run in runs:
        found.setdefault(str(run.key), []).append(run)
    return found


def lateness(run: RunView) -> float:
    assert run.claimed_at is not None
    return (run.claimed_at - run.nominal_time).total_seconds()


def test_each_slot_runs_once_and_at_its_time(cluster: Cluster) -> None:
    """Three workers, 200 aligned slots and as many others: each slot once, no gap in their numbers, and no drift.

    The job with missed="all" runs once in every interval, none missing.
    """
    times = slowness(cluster.url)
    cluster.start(3, {SCHEDULES: schedules(times)})

    def enough() -> bool:
        jobs = {job.key: job.slot_no for job in cluster.jobs()}
        return jobs["grid"] > SLOTS and sum(n - 1 for key, n in jobs.items() if key != "grid") >= SLOTS

    eventually(enough, within=60 * times, what=f"{SLOTS} slots of each kind")
    cluster.stop()
    report = cluster.report()
    assert report.faults == {}
    assert report.overlapping == []
    assert report.outcomes.keys() == {Outcome.SUCCEEDED}
    assert set(report.bodies.values()) == {1}
    assert report.once == sum(job.slot_no - 1 for job in cluster.jobs())
    assert len({effect.worker for effect in cluster.effects.read()}) == 3
    check_rhythm(by_key(cluster.runs()), times)


def check_rhythm(ledger: dict[str, list[RunView]], times: int) -> None:
    """`every` counts exactly from the start; aligned times are exact, and lateness does not add up."""
    grid, each = ledger.pop("grid"), ledger.pop("each")
    assert {after.nominal_time - before.nominal_time for before, after in pairwise(each)} == {times * SHORT}
    assert len(each) > 1
    for key, runs in ledger.items():
        interval = times * (LONG if key.startswith("long") else SHORT)
        for before, after in pairwise(runs):
            assert before.claimed_at is not None
            assert after.nominal_time - before.claimed_at == interval
    steps = {(after.nominal_time - before.nominal_time) % (times * GRID) for before, after in pairwise(grid)}
    assert steps == {timedelta(0)}
    late = [lateness(run) for run in grid[:SLOTS]]
    quarter = SLOTS // 4
    assert median(late[-quarter:]) < times * GRID.total_seconds()
    early, last = median(late[:quarter]), median(late[-quarter:])
    figures.info("%s slots on a grid and %s others", len(grid), sum(map(len, ledger.values())))
    figures.info("median lateness %.4f s in the first quarter, %.4f s in the last", early, last)


def test_twenty_workers_start_at_once_on_an_empty_database(cluster: Cluster) -> None:
    """The tables are created once, each schedule is declared once, its first slot runs once, and no worker fails."""
    declared = [{"key": f"hourly-{n}", "every": "1h"} for n in range(5)]
    workers = cluster.start(20, {SCHEDULES: json.dumps(declared), "RELTASK_DATABASE_POOL_SIZE": "2"})
    eventually(lambda: all(job.slot_no == 2 for job in cluster.jobs()), what="each first slot has run")
    seen = cluster.app.workers_sync()
    assert len({worker.id for worker in seen}) == 20
    assert {worker.pid for worker in seen} == {worker.pid for worker in workers}
    assert sorted(str(job.key) for job in cluster.jobs()) == [f"hourly-{n}" for n in range(5)]
    cluster.stop()
    assert [worker.process.returncode for worker in workers] == [0] * 20
    report = cluster.report()
    assert (report.faults, report.once, sum(report.bodies.values())) == ({}, 5, 5)
    assert not [line for worker in workers for line in worker.events("DatabaseUnavailable")]


def test_two_versions_side_by_side(cluster: Cluster) -> None:
    """An old worker leaves a task that it does not know to a newer one, and goes on with the others."""
    (old,) = cluster.start(1, {VERSION: "1"})
    unknown = cluster.enqueue("newcomer")
    (done,) = cluster.finished(cluster.enqueue("tick"))
    assert cluster.job(unknown).fence == 0
    assert cluster.app.status_sync().unknown == {"newcomer": 1}
    (new,) = cluster.start(1, {VERSION: "2"})
    (run,) = cluster.finished(unknown)
    assert f"_{old.pid}_" in str(done.worker)
    assert f"_{new.pid}_" in str(run.worker)
    assert old.alive


def test_once_runs_what_is_due_and_ends(cluster: Cluster) -> None:
    """`worker --once` exits with status 0 when nothing is due, and leaves future jobs alone."""
    now = cluster.enqueue_many("tick", 30, seconds=0.01)
    later = cluster.app.get_task("tick").using(delay="1h").enqueue_sync()
    (worker,) = cluster.start(command=(*WORKER, "--once"), wait=False)
    assert worker.exit_code() == 0
    assert {run.job_id for run in cluster.runs()} == set(now)
    assert cluster.job(later.id).fence == 0
    assert cluster.report().faults == {}


def test_four_processes_share_one_sqlite_file(tmp_path: Path) -> None:
    """Four processes enqueue 2,000 jobs and work on them: each runs once, without "database is locked"."""
    with running(f"sqlite:///{tmp_path / 'shared.db'}", tmp_path, lock_timeout="2m") as cluster:
        workers = cluster.start(4, command=("tests.cluster.flood", "500"), wait=False)
        assert [worker.exit_code(within=60) for worker in workers] == [0] * 4
        report = cluster.report()
        assert (report.faults, report.once, sum(report.bodies.values())) == ({}, 2000, 2000)
        assert cluster.jobs() == []
        assert not [worker.output() for worker in workers if "database is locked" in worker.output()]
        assert not [line for worker in workers for line in worker.events("DatabaseUnavailable")]


def test_a_new_job_wakes_sleeping_workers(cluster: Cluster) -> None:
    """An idle worker starts a new job long before its next poll, which is a minute away."""
    cluster.start(2)
    cluster.finished(cluster.enqueue("tick"))
    (run,) = cluster.finished(cluster.enqueue("tick"))
    assert lateness(run) < 5
