"""The environment of a row of the matrix: one database, its workers, and a count after each trial.

    Environment ─► Cluster (tests/cluster): real processes, gates, effects, ledger
      │
      └─ trial: enqueue ─► the row's fault ─► everything ends ─► verdict: duplicates, losses, seconds to recover

A transactional effect is a row in a table without any constraint. One row too many is a duplicate.
One row too few, a slot without an end, or anything that the checker finds
(tests/cluster/checker.py) is a loss.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

from reltask.model.job import Outcome, State
from reltask.model.views import JobView, RunView
from reltask.stores.postgres.schema import migrate_postgres
from tests import mssql_server
from tests.cluster import table
from tests.cluster.cluster import Cluster, WorkerProcess, eventually, slowness
from tests.faults.proxy import PATIENCE as PROXY_PATIENCE
from tests.faults.proxy import Proxy
from tests.faults.tds import TDS
from tests.faults.workload import NEW, make_app, reached
from tests.postgres_server import PostgresServer, run_in_thread

Database = Literal["postgres", "sqlite", "mssql"]
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
"""Short times, so that a trial takes seconds. The promises do not depend on them."""
WORKER = ("reltask.cli", "worker", "tests.faults.workload:app")
PATIENCE = 60.0
_numbers = itertools.count(1)


class NotRunHere(Exception):
    """This machine lacks something that the row needs. The text says what."""


class Verdict(NamedTuple):
    """The result of one trial."""

    duplicates: int
    lost: int
    recovery: float | None
    """Seconds by the database's clock."""
    cut_short: int = 0
    """Runs that the fault ended: lost, failed, released or abandoned."""
    findings: str = ""


class Environment:
    """One row's database and workers, for all its trials."""

    def __init__(
        self,
        database: Database,
        cluster: Cluster,
        *,
        proxy: Proxy | None = None,
        server: PostgresServer | None = None,
        disk: Path | None = None,
    ) -> None:
        self.database = database
        self.cluster = cluster
        self._disk = disk
        self._proxy = proxy
        self._server = server
        self._counted = (0, 0, 0)
        self._gates = itertools.count(1)

    @property
    def lock_timeout(self) -> float:
        """Seconds."""
        return self.cluster.lock_timeout if self.database == "mssql" else LOCK_TIMEOUT

    @property
    def patience(self) -> float:
        """Seconds to wait for something that usually takes no time."""
        return PATIENCE * slowness(self.cluster.url)

    @property
    def proxy(self) -> Proxy:
        assert self._proxy is not None
        return self._proxy

    @property
    def server(self) -> PostgresServer:
        assert self._server is not None
        return self._server

    @property
    def disk(self) -> Path:
        """The small file system of the database."""
        assert self._disk is not None
        return self._disk

    # Workers

    def start(
        self, count: int = 1, settings: Mapping[str, str] | None = None, *, wait: bool = True
    ) -> list[WorkerProcess]:
        """Start workers of this workload. A setting in capitals is an environment variable."""
        return self.cluster.start(count, settings, command=WORKER, wait=wait)

    def keep(self, count: int, settings: Mapping[str, str] | None = None) -> list[WorkerProcess]:
        """Start workers until `count` are alive, whatever the last trial did to them."""
        living = [worker for worker in self.cluster.workers if worker.alive]
        return living + (self.start(count - len(living), settings) if len(living) < count else [])

    def direct(self) -> dict[str, str]:
        """Settings for a worker that does not go through the proxy."""
        return {"RELTASK_DATABASE_URL": self.cluster.app.url}

    def holder(self, job: UUID) -> WorkerProcess:
        """The worker that holds a job."""
        owner = eventually(lambda: self.cluster.job(job).locked_by, what=f"{job} is claimed")
        return self.cluster.worker(int(owner.split("_")[-2]))

    # Jobs

    def gate(self) -> Path:
        """A gate for this trial, still closed."""
        return self.cluster.gate(f"gate-{next(self._gates)}")

    def enqueue(self, count: int = 1, *, task: str = NEW, **arguments: Any) -> list[UUID]:
        """Enqueue jobs: by default those that write an effect."""
        return self.cluster.enqueue_many(task, count, **arguments)

    def begun(self, job: UUID, fence: int = 1) -> None:
        self.cluster.begun(job, fence)

    def some_begun(self, jobs: list[UUID]) -> None:
        """Wait until the body of at least one of these jobs runs."""
        eventually(lambda: {e.job for e in self.cluster.effects.read()} & set(jobs), what="work is under way")

    def written(self, job: UUID, gate: Path, fence: int = 1) -> None:
        """Wait until this run has written its effect and waits before the commit."""
        eventually(reached(str(gate), fence).exists, what=f"run {fence} of {job} has written")

    # Time and ends

    def now(self) -> datetime:
        """The database's time."""
        return self.cluster.app.status_sync().now

    def done(self) -> None:
        """Wait until only dead letters are left."""

        def left() -> list[JobView]:
            return [job for job in self.cluster.jobs() if job.state is not State.DEAD]

        eventually(
            lambda: not left(), within=self.patience, what="everything ends", seen=lambda: (left(), self._tails())
        )

    def _tails(self) -> list[str]:
        return [worker.output()[-1500:] for worker in self.cluster.workers[-3:]]

    def ends(self, jobs: list[UUID]) -> list[RunView]:
        """The successful run of each of these jobs."""
        return [run for run in self.cluster.runs() if run.job_id in jobs and run.outcome == "succeeded"]

    def recovered(self, jobs: list[UUID], since: datetime) -> float:
        """Wait until everything has ended; return the seconds until the last of these jobs did."""
        self.done()
        return max(0.0, *((run.finished_at - since).total_seconds() for run in self.ends(jobs)))

    # Judging

    def judge(self, recovery: float | None) -> Verdict:
        """Count everything that happened in this environment, minus what earlier trials reported."""
        runs = self.cluster.runs()
        effects = Counter(table.read(self.cluster.app.url))
        succeeded = {run.job_id for run in runs if run.task in EFFECTS and run.outcome == "succeeded"}
        duplicates = sum(count - 1 for count in effects.values())
        faults = self.cluster.report().faults
        lost = len(succeeded ^ set(effects)) + sum(map(len, faults.values()))
        cut_short = sum(1 for run in runs if run.outcome in CUT_SHORT)
        now = (duplicates, lost, cut_short)
        news = [new - old for new, old in zip(now, self._counted, strict=True)]
        self._counted = now
        return Verdict(news[0], news[1], recovery, news[2], str(faults or ""))


EFFECTS = {NEW, "effect", "only_new"}
CUT_SHORT = {Outcome.LOST, Outcome.FAILED, Outcome.RELEASED, Outcome.ABANDONED}


@contextlib.contextmanager
def open_environment(
    database: Database, server: PostgresServer | None, *, proxy: bool = False, disk: Path | None = None
) -> Iterator[Environment]:
    """Open an environment with a fresh database, on `disk` if one is given."""
    scratch = Path(tempfile.mkdtemp(prefix="reltask-faults-"))
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        if database == "sqlite":
            url = f"sqlite:///{(disk or scratch) / 'faults.db'}"
        elif database == "mssql":
            url = stack.enter_context(_mssql())
        else:
            assert server is not None
            url = stack.enter_context(_postgres(server, disk))
        bridge = stack.enter_context(proxy_before(url)) if proxy else None
        pace = (
            {} if database == "mssql" else PACE
        )  # a TDS server may be slow: it keeps the lengths of the cluster tests
        cluster = Cluster(bridge.url(url) if bridge else url, scratch, **pace)
        stack.callback(cluster.stop)
        cluster.app.close()
        cluster.app = make_app(url)
        stack.callback(cluster.app.close)
        cluster.app.status_sync()  # SQLite creates its tables when it is opened
        table.create(url)
        yield Environment(database, cluster, proxy=bridge, server=server, disk=disk)


def proxy_before(url: str) -> Proxy:
    """A proxy in front of this database."""
    port = urlsplit(url).port
    assert port is not None
    if not url.startswith("mssql"):
        return Proxy(port)
    if "encrypt=no" not in url:
        raise NotRunHere(f"the proxy cannot read what is encrypted; end {mssql_server.VARIABLE} with ?encrypt=no")
    return Proxy(port, TDS, patience=PROXY_PATIENCE * slowness(url))


@contextlib.contextmanager
def _mssql() -> Iterator[str]:
    from reltask.stores.mssql.schema import migrate_mssql  # noqa: PLC0415 - tests without SQL Server need no driver

    with mssql_server.mssql_server() as server:
        url = server.create_database()
        run_in_thread(lambda: migrate_mssql(url))
        yield url


@contextlib.contextmanager
def _postgres(server: PostgresServer, disk: Path | None) -> Iterator[str]:
    name = f"faults_{next(_numbers)}"
    if disk is None:
        url = server.create_database(name)
    else:
        server.execute(
            f"create tablespace {name} location '{_for_the_server(disk, server)}'",
            f"create database {name} tablespace {name}",
        )
        url = server.url(name)
    run_in_thread(lambda: migrate_postgres(url))
    try:
        yield url
    finally:
        server.drop_database(name)
        if disk is not None:
            server.execute(f"drop tablespace {name}")


def _for_the_server(disk: Path, server: PostgresServer) -> Path:
    """A directory on that disk that belongs to the server's user."""
    place = disk / "postgres"
    place.mkdir(mode=0o700)
    owner = (server.directory / "data").stat()
    os.chown(place, owner.st_uid, owner.st_gid)
    return place
