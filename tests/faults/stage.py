"""Where a row of the matrix plays: one database, workers on it, and a count after each trial.

    Stage ─► Cluster (tests/cluster): real processes, gates, effects, ledger
      │
      └─ trial: enqueue ─► the row's fault ─► everything ends ─► verdict: duplicates, losses, seconds to recover

A transactional effect is a row in a table without any constraint. One row too many is a duplicate; one too few, a slot
without an end, or anything that the checker finds (tests/cluster/checker.py) is a loss.
"""

from __future__ import annotations

import contextlib
import itertools
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID

from reltask.job import JobView, RunView, State
from reltask.stores.postgres.schema import migrate_postgres
from tests.cluster import table
from tests.cluster.cluster import Cluster, WorkerProcess, eventually
from tests.faults.proxy import Proxy, proxied
from tests.faults.workload import NEW, make_app, reached
from tests.postgres_server import PostgresServer, run_in_thread

Database = Literal["postgres", "sqlite"]
LOCK_TIMEOUT = 1.5
PACE = {
    "lock_timeout": f"{LOCK_TIMEOUT}s",
    "heartbeat": "300ms",
    "beat_timeout": "200ms",
    "poll": "5s",
    "shutdown_grace": "2s",
    "RELTASK_DATABASE_BREAKER_RESET": "1s",
    "RELTASK_DATABASE_RETRY_FIRST": "200ms",
    "RELTASK_DATABASE_CONNECT_TIMEOUT": "2s",
    "RELTASK_DATABASE_COMMAND_TIMEOUT": "4s",
}
"""Everything short, so that a trial takes seconds. What is promised does not depend on it."""
WORKER = ("reltask.cli", "worker", "tests.faults.workload:app")
PATIENCE = 60.0
_numbers = itertools.count(1)


class NotRunHere(Exception):
    """This machine lacks what the row needs; the text says what."""


class Verdict(NamedTuple):
    """What one trial showed."""

    duplicates: int
    lost: int
    recovery: float | None
    """Seconds by the database's clock."""
    findings: str = ""


class Stage:
    """One row's database and workers, for all its trials."""

    def __init__(self, database: Database, cluster: Cluster, proxy: Proxy | None, server: PostgresServer | None) -> None:
        self.database = database
        self.cluster = cluster
        self._proxy = proxy
        self._server = server
        self._judged = 0
        self._gates = itertools.count(1)

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None
        return self._proxy

    @property
    def server(self) -> PostgresServer:
        assert self._server is not None
        return self._server

    # Workers

    def start(self, count: int = 1, *, wait: bool = True, **settings: str) -> list[WorkerProcess]:
        """Workers of this workload; a name in capitals is a variable of their environment."""
        return self.cluster.start(count, settings, command=WORKER, wait=wait)

    def keep(self, count: int, **settings: str) -> list[WorkerProcess]:
        """Have so many living workers, whatever the last trial has done to them."""
        living = [worker for worker in self.cluster.workers if worker.alive]
        return living + (self.start(count - len(living), **settings) if len(living) < count else [])

    def direct(self) -> dict[str, str]:
        """Settings for a worker that does not go through the proxy."""
        return {"RELTASK_DATABASE_URL": self.cluster.app.url}

    def holder(self, job: UUID) -> WorkerProcess:
        """The worker that holds a job."""
        owner = eventually(lambda: self.cluster.job(job).locked_by, what=f"{job} is claimed")
        return self.cluster.worker(int(owner.split("_")[-2]))

    # Jobs

    def gate(self) -> Path:
        """A gate of this trial's own; nobody has opened it."""
        return self.cluster.gate(f"gate-{next(self._gates)}")

    def enqueue(self, count: int = 1, *, task: str = NEW, **arguments: Any) -> list[UUID]:
        """Enqueue jobs that leave an effect, or others."""
        return self.cluster.enqueue_many(task, count, **arguments)

    def begun(self, job: UUID, fence: int = 1) -> None:
        self.cluster.begun(job, fence)

    def written(self, job: UUID, gate: Path, fence: int = 1) -> None:
        """Wait until this run has written its effect and waits before the commit."""
        eventually(reached(str(gate), fence).exists, what=f"run {fence} of {job} has written")

    # Time and ends

    def now(self) -> datetime:
        """The database's time."""
        return self.cluster.app.status_sync().now

    def done(self) -> None:
        """Wait until no job is left but dead letters."""

        def left() -> list[JobView]:
            return [job for job in self.cluster.jobs() if job.state is not State.DEAD]

        eventually(lambda: not left(), within=PATIENCE, what="everything ends", seen=lambda: (left(), self._tails()))

    def _tails(self) -> list[str]:
        return [worker.output()[-1500:] for worker in self.cluster.workers[-3:]]

    def ends(self, jobs: list[UUID]) -> list[RunView]:
        """The successful run of each of these jobs."""
        return [run for run in self.cluster.runs() if run.job_id in jobs and run.outcome == "succeeded"]

    def recovered(self, jobs: list[UUID], since: datetime) -> float:
        """Wait until everything has ended; seconds from then until the last of these jobs had."""
        self.done()
        return max((run.finished_at - since).total_seconds() for run in self.ends(jobs))

    # Judging

    def judge(self, recovery: float | None) -> Verdict:
        """Count, over everything that has happened on this stage; only news count for this trial."""
        effects = Counter(table.read(self.cluster.app.url))
        succeeded = Counter(run.job_id for run in self.cluster.runs() if run.outcome == "succeeded")
        expected = {run.job_id for run in self.cluster.runs() if run.task in EFFECTS and run.outcome == "succeeded"}
        duplicates = sum(count - 1 for count in effects.values())
        report = self.cluster.report()
        losses = [*(expected - set(effects)), *(set(effects) - set(succeeded)), *report.faults.values()]
        fresh = Verdict(duplicates, len(losses), recovery, f"{report.faults or ''}")
        before, self._judged = self._judged, duplicates + len(losses)
        return fresh if self._judged > before else Verdict(0, 0, recovery)


EFFECTS = {NEW, "effect", "only_new"}


@contextlib.contextmanager
def opened(
    database: Database, server: PostgresServer | None, *, proxy: bool = False, directory: Path | None = None
) -> Iterator[Stage]:
    """A stage with a fresh database; with `directory`, an SQLite file lies there."""
    scratch = Path(tempfile.mkdtemp(prefix="reltask-faults-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        if database == "sqlite":
            url = f"sqlite:///{(directory or scratch) / 'faults.db'}"
        else:
            assert server is not None
            url = _postgres(server, stack)
        bridge = stack.enter_context(proxied(server.port)) if proxy and server is not None else None
        cluster = Cluster(bridge.url(url) if bridge else url, scratch, **PACE)
        stack.callback(cluster.stop)
        cluster.app.close()
        cluster.app = make_app(url)
        stack.callback(cluster.app.close)
        cluster.app.status_sync()  # SQLite makes its tables when it is opened
        table.create(url)
        yield Stage(database, cluster, bridge, server)


def _postgres(server: PostgresServer, stack: contextlib.ExitStack) -> str:
    name = f"faults_{next(_numbers)}"
    url = server.create_database(name)
    stack.callback(server.drop_database, name)
    run_in_thread(lambda: migrate_postgres(url))
    return url
