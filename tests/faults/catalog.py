"""Every row of the matrix: the fault, its databases, how often it runs, and what recovery counts from."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Literal, NamedTuple

from tests.faults import rows_database, rows_network, rows_process, rows_tasks
from tests.faults.environment import Database, Environment, open_environment
from tests.postgres_server import PostgresServer

OWN: tuple[Database, ...] = ("postgres", "sqlite")
"""The databases that the suite starts itself."""
DATABASES: tuple[Database, ...] = (*OWN, "mssql")
TRIALS: dict[Database, int] = {"postgres": 12, "sqlite": 20, "mssql": 2}
"""Trials of each row. SQLite has fewer rows; a TDS server may be ten times as slow."""
DISK: dict[Database, int] = {"postgres": 32, "sqlite": 24}
"""Megabytes of a small disk: room for the database and, on SQLite, for a WAL not yet checkpointed."""
COSTLY = 3
"""A costly row runs this many times less often."""


class Row(NamedTuple):
    """One fault."""

    name: str
    fault: str
    """Its text on the page."""
    run: Callable[[Environment], float]
    """One trial: prepare, cause the fault, wait for the end. Returns the seconds to recover."""
    since: Literal["fault", "end"] = "fault"
    """Whether recovery counts from the fault, or from its end."""
    proxy: bool = False
    costly: bool = False
    without: Mapping[Database, str] = MappingProxyType({})
    """Why a database does not have this row."""
    around: Literal["", "few connections", "small disk"] = ""
    """What must be set up around all trials of the row."""

    def missing(self, database: Database) -> str:
        """Why this database does not have this row; empty if it has."""
        return self.without.get(database, "")

    def trials(self, database: Database) -> int:
        """How often it runs."""
        return max(2, TRIALS[database] // (COSTLY if self.costly else 1))

    @contextlib.contextmanager
    def env(self, database: Database, server: PostgresServer | None) -> Iterator[Environment]:
        """The environment of all its trials."""
        with contextlib.ExitStack() as stack:
            size = DISK[database] if self.around == "small disk" else 0
            disk = stack.enter_context(rows_database.small_disk(size)) if size else None
            proxy = self.proxy and database != "sqlite"
            env = stack.enter_context(open_environment(database, server, proxy=proxy, disk=disk))
            if self.around == "few connections":
                stack.enter_context(rows_database.few_connections(env))
            yield env


NETWORK: Mapping[Database, str] = {"sqlite": "no network between worker and file"}
SERVER: Mapping[Database, str] = {"sqlite": "no server that could do so", "mssql": "the server is not the suite's own"}

ROWS = [
    Row(
        "kill-before-claim-answer",
        "SIGKILL before the claim's answer",
        rows_process.kill_before_claim_answer,
        proxy=True,
    ),
    Row("kill-after-claim", "SIGKILL just after the claim", rows_process.kill_after_claim),
    Row("kill-mid-body", "SIGKILL in the middle of bodies", rows_process.kill_mid_body),
    Row(
        "kill-before-completion", "SIGKILL after the effect, before its completion", rows_process.kill_before_completion
    ),
    Row("kill-with-child", "SIGKILL of a worker whose body is a child process", rows_process.kill_with_child),
    Row("pause", "SIGSTOP past the lock timeout, then SIGCONT", rows_process.pause_past_timeout),
    Row(
        "pause-in-transaction",
        "SIGSTOP inside an open transaction",
        rows_process.pause_in_transaction,
        without={
            "sqlite": "not covered: a paused writer blocks all other writers until it continues",
            "mssql": "not covered: no server setting ends an idle transaction; it keeps its rows until it goes on",
        },
    ),
    Row("refused", "connections refused", rows_network.refused, "end", proxy=True, without=NETWORK),
    Row("black-hole", "black hole", rows_network.black_hole, "end", proxy=True, without=NETWORK),
    Row("reset", "connections reset", rows_network.reset, "end", proxy=True, without=NETWORK),
    Row("half-open", "half-open: one direction only", rows_network.half_open, "end", proxy=True, without=NETWORK),
    Row("latency", "packets take 0.4 s", rows_network.latency, "end", proxy=True, without=NETWORK),
    Row("answer-cut", "request arrives, answer is lost", rows_network.answer_cut, proxy=True, without=NETWORK),
    Row(
        "request-late", "connection lost, request arrives late", rows_network.request_late, proxy=True, without=NETWORK
    ),
    Row("crash", "database crash and restart under load", rows_database.crash, "end", without=SERVER),
    Row(
        "connections-exhausted",
        "no connection left at the server",
        rows_database.connections_exhausted,
        "end",
        without=SERVER,
        around="few connections",
    ),
    Row(
        "disk-full",
        "disk full, then freed",
        rows_database.disk_full,
        "end",
        without={"mssql": SERVER["mssql"]},
        around="small disk",
    ),
    Row("migration", "two migrations at once under load", rows_database.migration, costly=True),
    Row("start-together", "20 workers started at once", rows_process.start_together, costly=True),
    Row("rolling-deploy", "rolling deploy with a renamed and a new task", rows_tasks.rolling_deploy, costly=True),
    Row(
        "clock",
        "a worker's wall clock moved by +2 h or −2 h, and SIGKILL",
        rows_process.clock_moved,
        without={"sqlite": "not covered: the database's clock is the host's"},
    ),
    Row("poison-exit", "poison task: `os._exit`", rows_tasks.poison_exit, costly=True),
    Row("poison-memory", "poison task: out of memory", rows_tasks.poison_memory),
    Row("poison-payload", "poison job: arguments that cannot be decoded", rows_tasks.poison_payload),
    Row("unknown-name", "a task name that no worker knows", rows_tasks.unknown_name),
]
QUICK: dict[str, tuple[Database, ...]] = {
    "kill-mid-body": ("mssql",),
    "kill-before-completion": DATABASES,
    "kill-with-child": ("mssql",),
    "pause": DATABASES,
    "black-hole": ("postgres", "mssql"),
    "answer-cut": ("postgres", "mssql"),
}
"""A selection for `make test`, one trial each."""
