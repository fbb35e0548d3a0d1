"""Command line tests: a separate directory and SQLite file, no settings from outside."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Project]:
    """The working directory of a user who has written an app."""
    for name in os.environ:
        if name.startswith("RELTASK_") and not name.startswith("RELTASK_TEST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    before = sys.path[:]
    made = Project(tmp_path, capsys)
    yield made
    made.close()
    sys.path[:] = before
