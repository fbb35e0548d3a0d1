"""Durable functions on real processes that are killed and paused, on a database that restarts."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import pytest

from reltask import App, JobEnded
from reltask.model.job import Outcome
from reltask.stores.postgres.schema import migrate_postgres
from tests.cluster import table
from tests.cluster.cluster import Cluster, eventually, figures, pause, running, slowness
from tests.cluster.durable_workload import CALLS, EFFECTS_PER_FUNCTION, approve, make_app
from tests.postgres_server import PostgresServer, run_in_thread

pytestmark = pytest.mark.slow

FUNCTIONS = int(os.environ.get("RELTEST_FUNCTIONS", "30"))
"""The contract's number is 200."""
WORKERS = 3
COMMAND = ("reltask.cli", "worker", "tests.cluster.durable_workload:app")
SETTINGS = {"concurrency": "20", "RELTASK_DATABASE_BREAKER_RESET": "1s"}


class Functions:
    """Twenty-step functions on a cluster, and what was done to them."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster = cluster
        self.app: App = make_app(cluster.url)
        self.calls = folder / "calls.txt"
        self.calls.touch()
        self._settings = {**SETTINGS, CALLS: str(self.calls)}
        table.run(cluster.url, "create table effects (what varchar(100))")
        self.ids: list[UUID] = []

    def start(self, count: int = 1) -> None:
        self.cluster.start(count, self._settings, command=COMMAND)

    def enqueue(self, count: int) -> None:
        long = self.app.get_task("long")
        self.ids = [job.id for job in self.app.enqueue_many_sync(long.call(number=n) for n in range(count))]

    def left(self) -> int:
        return len(self.app.jobs_sync(limit=10_000))

    def send(self, rng: random.Random) -> None:
        """Send the signals, some of them twice, some before they are waited for."""
        for job_id in rng.sample(self.ids, k=max(1, len(self.ids) // 5)):
            for nth in (0, 1):
                try:
                    self.app.job(job_id).signal_sync(approve, 10 + nth, id=f"click-{nth}")
                except JobEnded:
                    break

    def send_to_all(self) -> None:
        for job_id in self.ids:
            for nth in (0, 1):
                try:
                    self.app.job(job_id).signal_sync(approve, 10 + nth, id=f"click-{nth}")
                except JobEnded:
                    break

    def check(self) -> None:
        """Every function has ended once, with the sum of its parts; each transactional effect is there once."""
        runs = self.app.runs_sync(task="long", limit=100_000)
        ended = Counter(run.job_id for run in runs if run.outcome is Outcome.SUCCEEDED)
        assert ended == Counter(self.ids)
        assert {run.result for run in runs if run.outcome is Outcome.SUCCEEDED} == {"22"}
        effects = Counter(row[0] for row in table.run(self.cluster.url, "select what from effects"))
        assert [what for what, count in effects.items() if count > 1] == []
        assert len(effects) == EFFECTS_PER_FUNCTION * len(self.ids)
        calls = Counter(self.calls.read_text(encoding="utf-8").splitlines())
        outcomes = Counter(run.outcome for run in runs)
        figures.info("%s calls, %s repeated; %s", calls.total(), calls.total() - len(calls), dict(outcomes))
        assert len(calls) == 6 * len(self.ids)
        assert self.app.audit_sync().violations == 0

    def close(self) -> None:
        """Close the test's own connections."""
        self.app.close()


def interrupted(functions: Functions, blows: list[Callable[[], None]], rng: random.Random) -> None:
    """Do all of these while the functions run, then let them end."""
    for blow in blows:
        until = time.monotonic() + rng.uniform(0.5, 1.5)
        while time.monotonic() < until and functions.left():
            functions.send(rng)
        blow()
    functions.send_to_all()
    eventually(
        lambda: not functions.left(),
        within=180 * slowness(functions.cluster.url),
        what="every function ends",
        seen=functions.left,
    )


def kill_one(functions: Functions, rng: random.Random) -> None:
    """SIGKILL a worker, and start another."""
    rng.choice([worker for worker in functions.cluster.workers if worker.alive]).kill()
    functions.start()


def pause_one(functions: Functions, rng: random.Random) -> None:
    """SIGSTOP a worker past its locks."""
    worker = rng.choice([worker for worker in functions.cluster.workers if worker.alive])
    pause(functions.cluster.url, worker)
    time.sleep(1.5 * functions.cluster.lock_timeout)
    worker.signal(signal.SIGCONT)


def test_functions_survive_kills_and_pauses(cluster: Cluster, tmp_path: Path) -> None:
    """Whatever happens to the workers: each transactional effect once, every function ends."""
    rng = random.Random(7)
    functions = Functions(cluster, tmp_path)
    functions.start(WORKERS)
    functions.enqueue(FUNCTIONS)
    kill, stop = (lambda: kill_one(functions, rng)), (lambda: pause_one(functions, rng))
    interrupted(functions, [kill, stop, kill, kill], rng)
    cluster.stop()
    functions.check()
    functions.close()


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    with PostgresServer() as own:
        yield own


def test_functions_survive_restarts_of_the_database(server: PostgresServer, tmp_path: Path) -> None:
    """The server crashes and restarts, twice, beside a killed worker: nothing is lost or doubled."""
    rng = random.Random(8)
    url = server.create_database("cluster")
    run_in_thread(lambda: migrate_postgres(url))

    def restart() -> None:
        server.stop("immediate")
        server.start()

    with running(url, tmp_path) as cluster:
        functions = Functions(cluster, tmp_path)
        functions.start(WORKERS)
        functions.enqueue(FUNCTIONS)
        interrupted(functions, [restart, lambda: kill_one(functions, rng), restart], rng)
        cluster.stop()
        functions.check()
        functions.close()
