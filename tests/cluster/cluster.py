"""Real worker processes on a real database, to be killed, paused and counted.

    test ──► Cluster ──► reltask worker tests.cluster.workload:app   (any number, each with its own log)
      │         │                 │
      │         │                 └──► effects.log: one line per start and per end of a body, without a constraint
      │         └──► App: reads jobs and ledger, enqueues, as any producer would
      └──► gates: files that a body waits for, so that a test decides when a body ends

Nothing here sleeps for a guessed time: `eventually` asks until the condition holds, or fails with
what it saw last.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar
from uuid import UUID

from reltask import App
from reltask.model.job import State
from reltask.model.views import JobView, RunView
from tests.cluster import checker
from tests.cluster.effects import Effect, Effects
from tests.cluster.workload import make_app
from tests.mssql_server import VARIABLE, python_path

T = TypeVar("T")

figures = logging.getLogger("cluster")
"""Measurements of a test: shown with `pytest --log-cli-level=info`."""

ROOT = Path(__file__).parents[2]
WORKER = ("reltask.cli", "worker", "tests.cluster.workload:app")
EVERYTHING = 100_000
"""More rows than any test makes."""
SLOWNESS = int(os.environ.get("RELTASK_TEST_SLOWNESS", "10"))
"""A factor for times on a TDS server: it may be an emulator on a busy machine."""
PATIENCE = 30.0 * (SLOWNESS if os.environ.get(VARIABLE) else 1)
"""Seconds that a condition may take on a busy machine."""
LOCK_TIMEOUT = 2.0
"""Seconds. Heartbeats are sent every 0.5 s."""


def slowness(url: str) -> int:
    """The factor for times on this database."""
    return SLOWNESS if url.startswith("mssql") else 1


def eventually(
    condition: Callable[[], T | None],
    *,
    within: float = PATIENCE,
    what: str,
    seen: Callable[[], object] | None = None,
) -> T:
    """Return the condition's value as soon as it is true. `seen` explains a failure."""
    until = time.monotonic() + within
    while not (answer := condition()):
        if time.monotonic() > until:
            raise AssertionError(f"not within {within:g} s: {what}" + (f"; seen: {seen()}" if seen else ""))
        time.sleep(0.02)
    return answer


class WorkerProcess:
    """One worker process and its log."""

    def __init__(self, command: list[str], environment: dict[str, str], log: Path) -> None:
        self._log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT
            )
        self.pid = self.process.pid

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, to this process only."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self.process.kill()
        self.process.wait(PATIENCE)

    def exit_code(self, *, within: float = PATIENCE) -> int:
        """Wait for its end."""
        return self.process.wait(within)

    def output(self) -> str:
        """Everything it has written."""
        return self._log.read_text(errors="replace")

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log lines of one event class."""
        found = []
        for line in self.output().splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return [line for line in found if isinstance(line, dict) and line.get("event") == name]

    def has_started(self) -> bool:
        """Whether it claims jobs by now. If it has exited, fail with its log."""
        if not self.alive and not self.events("WorkerStarted"):
            raise AssertionError(f"the worker ended with {self.process.returncode}:\n{self.output()[-3000:]}")
        return bool(self.events("WorkerStarted"))


def pause(url: str, process: WorkerProcess) -> None:
    """SIGSTOP while the process is not SQLite's writer.

    A paused writer would block all others: not covered.
    """

    def paused() -> bool:
        process.signal(signal.SIGSTOP)
        if not url.startswith("sqlite") or _is_writable(url.removeprefix("sqlite:///")):
            return True
        process.signal(signal.SIGCONT)
        return False

    eventually(paused, what="the process is paused")


def _is_writable(path: str) -> bool:
    """Whether another process can write to the file within half a second."""
    with contextlib.closing(sqlite3.connect(path, timeout=0.5, isolation_level=None)) as connection:
        try:
            connection.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        connection.execute("rollback")
        return True


class Cluster:
    """Workers on one database."""

    def __init__(self, url: str, directory: Path, **settings: str) -> None:
        self.url = url
        self.directory = directory
        self.effects = Effects(directory / "effects.log")
        self.workers: list[WorkerProcess] = []
        self.enqueued: list[UUID] = []
        self.lock_timeout = LOCK_TIMEOUT * slowness(url)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("RELTASK_")},
            "PYTHONPATH": python_path(ROOT, ROOT / "src"),
            "RELTASK_DATABASE_URL": url,
            "RELTASK_LOG_FORMAT": "json",
            "RELTASK_TEST_EFFECTS": str(self.effects.path),
            **self._variables({**self._pace(), **settings}),
        }
        self.app: App = make_app(url)

    def _pace(self) -> dict[str, str]:
        """Lock and statement timeouts, and the poll where there are no signals."""
        pace = {"lock_timeout": f"{self.lock_timeout}s"}
        if self.url.startswith("mssql"):
            pace |= {"poll": "500ms", "RELTASK_DATABASE_COMMAND_TIMEOUT": "5m"}
            pace |= {"RELTASK_MAINTENANCE_LEASE_TTL": f"{10 * slowness(self.url)}s"}
        return pace

    @staticmethod
    def _variables(settings: Mapping[str, str]) -> dict[str, str]:
        """`lock_timeout` is a worker setting; a name in capitals is an environment variable."""
        return {name if name.isupper() else f"RELTASK_WORKER_{name.upper()}": v for name, v in settings.items()}

    # Processes

    def start(
        self,
        count: int = 1,
        settings: Mapping[str, str] | None = None,
        *,
        command: tuple[str, ...] = WORKER,
        wait: bool = True,
    ) -> list[WorkerProcess]:
        """Start workers, and `wait` until each of them claims jobs."""
        environment = self._environment | self._variables(settings or {})
        numbers = range(len(self.workers), len(self.workers) + count)
        started = [self._process(command, environment, n) for n in numbers]
        self.workers += started
        for worker in started if wait else []:
            eventually(worker.has_started, what="the worker starts")
        return started

    def _process(self, command: tuple[str, ...], environment: dict[str, str], number: int) -> WorkerProcess:
        return WorkerProcess([sys.executable, "-m", *command], environment, self.directory / f"worker-{number}.log")

    def worker(self, pid: int) -> WorkerProcess:
        """The worker that has this process id."""
        return next(worker for worker in self.workers if worker.pid == pid)

    def stop(self) -> None:
        """SIGTERM to all workers; those that do not exit are killed."""
        for worker in self.workers:
            if worker.alive:
                worker.signal(signal.SIGCONT)
                worker.signal(signal.SIGTERM)
        for worker in self.workers:
            with contextlib.suppress(subprocess.TimeoutExpired):
                worker.process.wait(30)
            worker.kill()

    # Bodies under the test's control

    def gate(self, name: str = "gate") -> Path:
        """A file that bodies wait for. It does not exist yet."""
        return self.directory / name

    def enqueue(self, task: str, **arguments: Any) -> UUID:
        """Enqueue a job of the workload."""
        job = self.app.get_task(task).enqueue_sync(**arguments)
        self.enqueued.append(job.id)
        return job.id

    def enqueue_later(self, task: str, delay: timedelta, **arguments: Any) -> UUID:
        """Enqueue a job that is due after a delay."""
        job = self.app.get_task(task).using(delay=delay).enqueue_sync(**arguments)
        self.enqueued.append(job.id)
        return job.id

    def enqueue_many(self, task: str, count: int, **arguments: Any) -> list[UUID]:
        """Enqueue many equal jobs."""
        call = self.app.get_task(task).call(**arguments)
        jobs = [job.id for job in self.app.enqueue_many_sync([call] * count)]
        self.enqueued += jobs
        return jobs

    def begun(self, job: UUID, fence: int = 1) -> Effect:
        """Wait until the body of this run has begun."""
        return eventually(
            lambda: self.effects.find(job=job, fence=fence, what="start"), what=f"run {fence} of {job} starts"
        )

    # What the database says

    def job(self, job: UUID) -> JobView:
        """One job's row."""
        row = self.app.job(job).view_sync()
        assert row is not None, job
        return row

    def jobs(self, *, state: State | None = None, task: str | None = None) -> list[JobView]:
        return self.app.jobs_sync(state=state, task=task, limit=EVERYTHING)

    def runs(self, job: UUID | None = None, *, task: str | None = None) -> list[RunView]:
        """The ledger, by fence."""
        found = self.app.runs_sync(job_id=job, task=task, limit=EVERYTHING)
        return sorted(found, key=lambda run: (run.job_id, run.fence))

    def finished(self, job: UUID, outcome: str = "succeeded") -> list[RunView]:
        """Wait until the job's last run has this outcome; return all its runs."""

        def ended() -> list[RunView] | None:
            runs = self.runs(job)
            return runs if runs and runs[-1].outcome == outcome else None

        return eventually(ended, what=f"{job} ends with {outcome}", seen=lambda: self.runs(job))

    def report(self) -> checker.Report:
        """Count slots, gaps and bodies. Call it when no worker runs: it takes three reads."""
        return checker.check(self.runs(), self.jobs(), self.effects.read(), enqueued=self.enqueued)


@contextlib.contextmanager
def running(url: str, directory: Path, **settings: str) -> Iterator[Cluster]:
    """A cluster without workers. Workers that the test starts are stopped at the end."""
    cluster = Cluster(url, directory, **settings)
    try:
        yield cluster
    finally:
        cluster.stop()
        cluster.app.close()
