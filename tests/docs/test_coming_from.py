"""The guides for people who come from elsewhere: the same small program before and after.

The first program needs the other package. All of them are locked in `tools/requirements-peers.txt`, and installed into
an environment below this one when a test first asks; without an index to install from, the tests say so.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import Terminal
from tests.environments import environment

GUIDES = sorted((ROOT / "docs/coming-from").glob("*.md"))
LOCK = ROOT / "tools" / "requirements-peers.txt"
LINES = ["rates refreshed", "welcome, user 42"]

pytestmark = pytest.mark.slow


def before(guide: Path) -> str | None:
    return next((block.text for block in blocks(guide) if block.title == "before.py"), None)


@pytest.fixture(scope="module")
def peers() -> str:
    """A Python that has the other packages."""
    options = ["--no-deps", "--require-hashes", "-r", str(LOCK)]
    found = environment("peers", sys.executable, *options, stamp=LOCK.read_text(encoding="utf-8"))
    if found is None:
        pytest.skip("NOT RUN: APScheduler, Celery, procrastinate, huey and django-tasks could not be installed")
    return found


def test_all_guides_are_here() -> None:
    """One for each; only Hangfire's first program cannot be run."""
    names = ["apscheduler", "celery", "django-tasks", "hangfire", "procrastinate", "rq-huey"]
    assert [guide.stem for guide in GUIDES] == names
    assert [guide.stem for guide in GUIDES if before(guide) is None] == ["hangfire"]


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: guide.stem)
def test_the_program_after(terminal: Terminal, guide: Path) -> None:
    """It runs as written, and prints what the one before printed.

    Bodies run one after another: two that print at the same moment would share a line.
    """
    terminal.environment["RELTASK_WORKER_CONCURRENCY"] = "1"
    for block in blocks(guide):
        if block.title != "before.py":
            terminal.read(block)
    assert terminal.close() == []


@pytest.mark.timeout(300)
@pytest.mark.skipif(os.name != "posix", reason="the environment's paths are those of POSIX")
@pytest.mark.parametrize("guide", [guide for guide in GUIDES if before(guide)], ids=lambda guide: guide.stem)
def test_the_program_before(tmp_path: Path, guide: Path, peers: str) -> None:
    """It runs as written with the other package, and prints the same."""
    (tmp_path / "before.py").write_text(before(guide) or "", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [peers, "before.py"]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in LINES if line not in done.stdout] == []
