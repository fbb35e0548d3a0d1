"""Rows that no worker can run, in one history of eight: each must end as a dead letter, alone.

The tables refuse such rows by constraints, which the connections of these histories ignore.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Mapping
from uuid import UUID

from reltask.errors import TransientError
from tests.simulation.database import Database

SHARE = 0.125
"""The share of histories with such rows."""
TASK = "malformed"
KINDS: tuple[tuple[str, object], ...] = (
    ("lock_timeout_ms", 9 * 10**18),
    ("lock_timeout_ms", 0),
    ("slot_started_at", "Monday"),
    ("next_run_time", -(2**63)),
)
"""A column, and a value that cannot be read or computed with. The error of the only run names the column."""


def has_malformed(seed: int) -> bool:
    """Whether this history has such rows. Asked without the history's own random numbers."""
    return random.Random(f"malformed:{seed}").random() < SHARE


def plant(database: Database, job_id: UUID, column: str, value: object) -> None:
    """Insert a due row with this value."""
    row: Mapping[str, object] = {"id": str(job_id), "task": TASK, "next_run_time": 0, column: value}
    marks = ", ".join("?" * len(row))
    try:
        database.session.connection().execute(
            f"insert into reltask_jobs ({', '.join(row)}) values ({marks})",
            list(row.values()),
        )
    except sqlite3.OperationalError as error:  # a transaction is open
        raise TransientError(str(error)) from error
