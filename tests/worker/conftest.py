"""Worker tests: real SQLite files, on virtual time where bodies are coroutines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reltask.testing import virtual_time
from tests.worker.worker_harness import WorkerHarness


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[WorkerHarness]:
    """A separate database and a virtual clock."""
    with virtual_time() as time:
        yield WorkerHarness(tmp_path / "reltask.db", time)


@pytest.fixture
def live(tmp_path: Path) -> WorkerHarness:
    """A separate database in real time, for threads and child processes."""
    return WorkerHarness(tmp_path / "reltask.db")
