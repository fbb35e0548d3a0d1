"""Processes that compete for one lease, and the time from one leader to the next.

`python -m tests.cluster.lease_candidates` prints takeover times on both databases, after SIGKILL and
after SIGTERM. All times are by the database's clock.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

from reltask import App
from reltask.model.views import LeaseView
from tests.cluster import table
from tests.cluster.cluster import ROOT, WorkerProcess, eventually
from tests.cluster.lease_process import NAME, ROWS, TTL

MEASURED = timedelta(seconds=1)
"""The TTL of the figures in docs/leases.md."""


class LeaseCandidates:
    """Some processes on one database, one of which leads."""

    def __init__(self, url: str, directory: Path, ttl: timedelta) -> None:
        self.url = url
        self._ttl = ttl
        self.app = App(url)
        self.app.status_sync()
        table.create(url)
        self.processes: list[WorkerProcess] = []
        self._directory = directory
        self._numbers = itertools.count()

    def start(self, count: int) -> None:
        """Start `count` processes, and wait until each waits for the lease."""
        started = [self._start(next(self._numbers)) for _ in range(count)]
        self.processes += started
        for process in started:
            self._wait_for(process)

    def _wait_for(self, process: WorkerProcess) -> None:
        eventually(lambda: process.events("waits"), what="the process waits", seen=process.output)

    def _start(self, number: int) -> WorkerProcess:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RELTASK_")} | {
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")]),
            "RELTASK_DATABASE_URL": self.url,
            "RELTASK_TEST_GATE": str(self.gate(number)),
            TTL: f"{self._ttl.total_seconds()}s",
        }
        command = [sys.executable, "-m", "tests.cluster.lease_process"]
        return WorkerProcess(command, environment, self._directory / f"candidate-{number}.log")

    def gate(self, number: int) -> Path:
        return self._directory / f"gate-{number}"

    def lease(self) -> LeaseView | None:
        """The lease's row."""
        return next((lease for lease in self.app.leases_sync() if lease.name == NAME), None)

    def wait_for_leader(self, *, after: int = 0) -> LeaseView:
        """Wait until a later term than `after` is held, and its holder has logged it."""

        def found() -> LeaseView | None:
            lease = self.lease()
            return lease if lease is not None and lease.held and lease.term > after and self._knows(lease) else None

        return eventually(found, what=f"a candidate leads after term {after}", seen=self.lease)

    def _knows(self, lease: LeaseView) -> bool:
        """Whether its holder has logged it.

        A holder from an earlier group, whose lease has not ended, never does.
        """
        return any(event["term"] == lease.term for process in self._holders(lease) for event in process.events("leads"))

    def _holders(self, lease: LeaseView) -> list[WorkerProcess]:
        pid = int(str(lease.holder).split("_")[-2])
        return [process for process in self.processes if process.pid == pid]

    def leader(self, lease: LeaseView) -> WorkerProcess:
        """The process that holds the lease."""
        (leader,) = self._holders(lease)
        return leader

    def takeover_after(self, lease: LeaseView, number: signal.Signals) -> timedelta:
        """Signal the leader; return the time until the next term begins, by the database's clock."""
        leader, seen = self.leader(lease), self.lease()
        assert seen is not None
        leader.signal(number)
        leader.process.wait(10)
        self.processes.remove(leader)
        return self.wait_for_leader(after=lease.term).acquired_at - seen.now

    def wait_for_rows(self, term: int) -> None:
        """Wait until all rows of this term exist, so that no transaction is open.

        Terms must be in order.
        """

        def complete() -> bool:
            terms = [row[0] for row in table.run(self.url, "select slot from written")]
            assert terms == sorted(terms)
            return terms.count(term) == ROWS

        eventually(complete, what=f"the rows of term {term}")

    def stop(self) -> None:
        for process in self.processes:
            if process.alive:
                process.signal(signal.SIGCONT)
                process.kill()
        self.app.close()


@contextlib.contextmanager
def open_candidates(url: str, directory: Path, count: int, ttl: timedelta) -> Iterator[LeaseCandidates]:
    """Start candidates, and stop them at the end."""
    found = LeaseCandidates(url, directory, ttl)
    try:
        found.start(count)
        yield found
    finally:
        found.stop()


# For the figures


def measure(url: str, number: signal.Signals, trials: int) -> list[float]:
    """Measure `trials` takeovers. Each leader that ended is replaced."""
    with tempfile.TemporaryDirectory() as name, open_candidates(url, Path(name), 3, MEASURED) as found:
        seconds = []
        for _ in range(trials):
            lease = found.wait_for_leader()
            found.wait_for_rows(lease.term)
            seconds.append(found.takeover_after(lease, number).total_seconds())
            found.start(1)
        return seconds


def main() -> None:
    """The command line."""
    from tests.postgres_server import PostgresServer  # noqa: PLC0415 - tests without PostgreSQL need no driver

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=50)
    trials = parser.parse_args().trials
    with PostgresServer() as server, tempfile.TemporaryDirectory() as name:
        for kind, url in (
            ("postgresql", _migrated(server.create_database("leases"))),
            ("sqlite", f"sqlite:///{name}/l.db"),
        ):
            for number in (signal.SIGKILL, signal.SIGTERM):
                seconds = measure(url, number, trials)
                figures = {
                    "database": kind,
                    "signal": number.name,
                    "trials": len(seconds),
                    "median": round(statistics.median(seconds), 3),
                    "most": round(max(seconds), 3),
                    "within TTL + 1 s": sum(value <= 2.0 for value in seconds),
                    "within 200 ms": sum(value <= 0.2 for value in seconds),
                }
                print(json.dumps(figures), flush=True)  # noqa: T201 - this is what the command is for


def _migrated(url: str) -> str:
    from reltask.stores.postgres.schema import migrate_postgres  # noqa: PLC0415 - as above
    from tests.postgres_server import run_in_thread  # noqa: PLC0415

    run_in_thread(lambda: migrate_postgres(url))
    return url


if __name__ == "__main__":
    main()
