"""What bodies did, recorded where no constraint can hide a duplicate.

Each line is one `write` to a file opened with O_APPEND: lines of several processes do not mix, and
what a process wrote before it was killed stays. Times are monotonic, which on one machine is one
clock for all processes.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

VARIABLE = "RELTASK_TEST_EFFECTS"


class Effect(NamedTuple):
    """One line: a body has started, ended, or been stopped."""

    what: str
    task: str
    job: UUID
    slot: int
    fence: int
    attempt: int
    worker: str
    pid: int
    at: float


def record(what: str, *, task: str, job: UUID, slot: int, fence: int, attempt: int, worker: str) -> None:
    """Append one line."""
    values = [what, task, str(job), slot, fence, attempt, worker, os.getpid(), time.monotonic()]
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, json.dumps(values).encode() + b"\n")
    finally:
        os.close(file)


class Effects:
    """Reads the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> list[Effect]:
        """All lines in the order of writing."""
        if not self.path.exists():
            return []
        lines = self.path.read_text().split("\n")[:-1]
        return [Effect(row[0], row[1], UUID(row[2]), *row[3:]) for row in map(json.loads, lines)]

    def find(self, *, job: UUID, fence: int, what: str) -> Effect | None:
        """The first line with these fields."""
        wanted = (job, fence, what)
        return next((e for e in self.read() if (e.job, e.fence, e.what) == wanted), None)
