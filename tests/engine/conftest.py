"""Engine tests: real SQLite files, virtual time wherever bodies are coroutines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reltask.testing import virtual_time
from tests.engine.stage import Stage


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A database of its own and a clock that jumps."""
    with virtual_time() as time:
        yield Stage(tmp_path / "reltask.db", time)


@pytest.fixture
def live(tmp_path: Path) -> Stage:
    """A database of its own in real time, for threads and child processes."""
    return Stage(tmp_path / "reltask.db")
