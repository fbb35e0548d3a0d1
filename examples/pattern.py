"""The whole pattern and nothing else: claim, heartbeat, complete. The shipped .sql files, sqlite3, and no engine.

    python pattern.py work.db & python pattern.py work.db & python pattern.py work.db

Each worker takes the one recurring job when it is due and no worker holds it. While the body runs, a thread renews the
claim. The last write ends the slot and schedules the next one. Kill the process that holds the claim: after the lock
timeout another one takes the slot over, and a late write of the first is refused, because its fence is old.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from reltask.stores.migration import migrations
from reltask.stores.statement import load

SECOND = 1_000_000  # times are whole microseconds since 1970
INTERVAL = SECOND
LOCK_TIMEOUT_MS = 2_000
HEARTBEAT = 0.5
JOB = str(uuid.UUID(int=1))
WORKER = f"pattern_{os.getpid()}_{uuid.uuid4().hex}"
DUE, TAKE = 2, 3  # statements of claim_jobs.sql
STALE, LEDGER, FREE = 0, 1, 2  # statements of reclaim_jobs.sql

Rows = list[sqlite3.Row]
Run = Callable[..., Rows]


def connect(path: str) -> sqlite3.Connection:
    """Open the file, and make the tables if they are missing."""
    connection = sqlite3.connect(path, timeout=5, isolation_level=None)
    connection.row_factory = sqlite3.Row
    scripts = [migration.sql for migration in migrations("sqlite")]
    connection.executescript("\n".join(["begin immediate;", *scripts, "commit;"]))  # other processes may be starting
    with suppress(sqlite3.OperationalError):  # another process has the file open, and has switched it
        connection.execute("pragma journal_mode = wal")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[Run]:
    """One verb: become the writer, read the database's time, run statements, commit all or nothing."""
    connection.execute("begin immediate")
    try:
        (read_now,) = load("sqlite", "read_now", "named")
        now = connection.execute(read_now.text, {"now": None}).fetchone()["now"]

        def run(verb: str, which: int = 0, **values: object) -> Rows:
            statement = load("sqlite", verb, "named")[which]
            return connection.execute(statement.text, {"now": now, **values}).fetchall()

        yield run
    except BaseException:
        connection.execute("rollback")
        raise
    connection.execute("commit")


def enqueue(connection: sqlite3.Connection) -> None:
    """One recurring job. The id is ours, so sending it again changes nothing."""
    job = {"id": JOB, "task": "tick", "queue": "default", "priority": 5, "args": "{}", "schedule": '{"every":"1s"}'}
    with transaction(connection) as run:
        run("enqueue_jobs", jobs=json.dumps([job]))


def reclaim(connection: sqlite3.Connection) -> int:
    """Take expired claims away. The write names the fence and the heartbeat that were seen expired."""
    with transaction(connection) as run:
        stale = json.dumps([list(row) for row in run("reclaim_jobs", STALE, limit=10)])
        run("reclaim_jobs", LEDGER, stale=stale)
        return len(run("reclaim_jobs", FREE, stale=stale))


def claim(connection: sqlite3.Connection) -> sqlite3.Row | None:
    """Take the job if it is due and no worker holds it: owner, fence + 1, heartbeat = database time."""
    with transaction(connection) as run:
        lane = {"queue": "default", "task": "tick", "priority": 5, "room": 1}
        due = [row for isolated in (0, 1) for row in run("claim_jobs", DUE, isolated=isolated, **lane)]
        ids = [row["id"] for row in due]
        lock = {"worker": WORKER, "token": str(uuid.uuid4()), "lock_timeout_ms": LOCK_TIMEOUT_MS}
        taken = run("claim_jobs", TAKE, ids=json.dumps(ids), **lock)
    return taken[0] if taken else None


def heartbeat(connection: sqlite3.Connection, held: sqlite3.Row) -> bool:
    """Renew the claim where owner and fence still match; say whether they did."""
    with transaction(connection) as run:
        return bool(run("heartbeat_jobs", worker=WORKER, holds=json.dumps([[held["id"], held["fence"]]])))


def complete(connection: sqlite3.Connection, held: sqlite3.Row) -> bool:
    """End the slot where owner and fence still match: ledger row, next slot counted from the start, lock cleared."""
    end = {"id": held["id"], "fence": held["fence"], "outcome": "succeeded", "skipped": []}
    end["next_run_time"] = held["slot_started_at"] + INTERVAL
    with transaction(connection) as run:
        answers = [run("complete_jobs", part, worker=WORKER, completions=json.dumps([end])) for part in range(6)]
    return bool(answers[0])


@contextmanager
def beating(path: str, held: sqlite3.Row) -> Iterator[threading.Event]:
    """Renew the claim on a thread and a connection of its own. The event is set when the claim is lost."""
    done, lost = threading.Event(), threading.Event()

    def beat() -> None:
        with closing(connect(path)) as connection:
            while not done.wait(HEARTBEAT) and not lost.is_set():
                if not heartbeat(connection, held):
                    lost.set()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield lost
    finally:
        done.set()
        thread.join()


def work(path: str, body: Callable[[sqlite3.Row, threading.Event], Any], *, slots: int) -> None:
    """Poll until this worker has run this many slots."""
    with closing(connect(path)) as connection:
        enqueue(connection)
        while slots:
            reclaim(connection)
            held = claim(connection)
            if held is None:
                time.sleep(0.1)
                continue
            with beating(path, held) as lost:
                body(held, lost)
            print(f"slot {held['slot_no']} fence {held['fence']} recorded: {complete(connection, held)}", flush=True)
            slots -= 1


if __name__ == "__main__":
    work(sys.argv[1], lambda _held, lost: lost.wait(0.2), slots=int((sys.argv[2:] or ["5"])[0]))
