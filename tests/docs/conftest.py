"""A terminal in an empty directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.terminal import Terminal


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal whose processes end with the test."""
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.kill()
