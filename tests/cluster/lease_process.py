"""A process that leads when it can: `python -m tests.cluster.lease_process`, controlled by files and signals.

It writes one JSON line per event. As a leader it writes a few rows on a separate connection,
guarded by its term. Once the file `RELTASK_TEST_GATE` exists it tries one more write, even if its
lease is lost.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg

from reltask import App, Lease, LeaseLost
from reltask.errors import ReltaskError
from reltask.producer.transaction import run_here

NAME = "reports"
TTL = "RELTASK_TEST_TTL"
ROWS = 3
"""Rows per term. Few: a process paused inside a transaction would block the others until it ends."""
INSERT = {"sqlite": "insert into written values ('x', ?, 1)", "postgresql": "insert into written values ('x', %s, 1)"}


def say(event: str, **more: object) -> None:
    print(json.dumps({"event": event, "pid": os.getpid(), **more}), flush=True)  # noqa: T201 - read by the test


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10)
    return psycopg.connect(url)


def write(connection: Any, url: str, lease: Lease) -> None:
    """Write one row, if this term is still the lease's."""
    try:
        if isinstance(connection, sqlite3.Connection):
            connection.execute("begin")
        lease.guard_sync(connection)
        connection.execute(INSERT[url.partition(":")[0]], (lease.term,))
        connection.commit()
    finally:
        connection.rollback()


def ask_database(connection: Any, lease: Lease) -> bool:
    """Whether the database would accept a write of this term, whatever this process knows."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("begin")
    try:
        run_here(lease._join(lease._borrowed(connection, is_async=False)))
    except LeaseLost:
        return False
    finally:
        connection.rollback()
    return True


def lead(app: App, url: str, gate: Path) -> None:
    with app.lease_sync(NAME, ttl=os.environ[TTL]) as lease, closing(connect(url)) as connection:
        say("leads", term=lease.term)
        for _ in range(ROWS):
            with suppress(LeaseLost):
                write(connection, url, lease)
        while not gate.exists() and lease.held:
            time.sleep(0.02)
        reason = lease.lost.wait(0)
        if gate.exists():
            say("late", term=lease.term, accepted=ask_database(connection, lease), held=lease.held, reason=reason)
    say("left", term=lease.term, reason=lease.lost.reason)


def main() -> None:
    url, gate = os.environ["RELTASK_DATABASE_URL"], Path(os.environ["RELTASK_TEST_GATE"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    app = App(url)
    say("waits")
    try:
        while True:
            with suppress(ReltaskError):
                lead(app, url, gate)
    finally:
        app.close()


if __name__ == "__main__":
    main()
