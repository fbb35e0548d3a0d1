"""The guides for people who come from elsewhere: the same small program before and after.

The second program is always run. The first needs the other package: `RELTASK_TEST_PEERS` names a Python that has
APScheduler 3, celery, procrastinate, huey and django-tasks.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks
from tests.docs.terminal import Terminal

GUIDES = sorted((ROOT / "docs/coming-from").glob("*.md"))
PEERS = os.environ.get("RELTASK_TEST_PEERS")
LINES = ["rates refreshed", "welcome, user 42"]

pytestmark = pytest.mark.slow


def before(guide: Path) -> str | None:
    return next((block.text for block in blocks(guide) if block.title == "before.py"), None)


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


@pytest.mark.skipif(PEERS is None, reason="RELTASK_TEST_PEERS names no Python with the other packages")
@pytest.mark.parametrize("guide", [guide for guide in GUIDES if before(guide)], ids=lambda guide: guide.stem)
def test_the_program_before(tmp_path: Path, guide: Path) -> None:
    """It runs as written with the other package, and prints the same."""
    (tmp_path / "before.py").write_text(before(guide) or "", encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(PEERS), "before.py"]
    done = subprocess.run(command, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert [line for line in LINES if line not in done.stdout] == []
