"""The demo runs for real: its verdict is true, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import reltask

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not Path("/proc/self/cwd").exists(), reason="finds left-over processes by their directory"),
]


class Demo:
    """`reltask demo` with a separate temporary folder, by which its processes are found."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        source = str(Path(reltask.__file__).parents[1])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reltask.cli", "demo", *arguments, "--json"],
            env={**os.environ, "PYTHONPATH": source, "TMPDIR": str(folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, text: str) -> None:
        """Read its lines up to the one that contains this text."""
        assert self.process.stderr is not None
        assert any(text in line for line in self.process.stderr)

    def workers(self) -> list[int]:
        """The process ids of its living workers: they run in its temporary folder."""
        names = (entry.name for entry in Path("/proc").iterdir())
        return [pid for pid in map(int, filter(str.isdigit, names)) if self._is_ours(pid)]

    def _is_ours(self, pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(self.folder)
        except OSError:  # it has ended, or belongs to another user
            return False


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """A demonstration that has just begun."""
    started = Demo(tmp_path, "--seconds", "0")
    yield started
    started.process.kill()
    started.process.communicate()
    for pid in started.workers():
        os.kill(pid, signal.SIGKILL)


def test_no_slot_is_lost_or_doubled(demo: Demo) -> None:
    """One worker is killed and one stopped while they hold slots; the ledger has each slot once."""
    out, err = demo.process.communicate(timeout=60)
    summary = json.loads(out)
    assert demo.process.returncode == 0, err
    assert (summary["ok"], summary["duplicates"], summary["lost"]) == (True, 0, 0)
    assert summary["takeover"]["before"] != summary["takeover"]["after"]
    assert summary["hand_over"]["before"] != summary["hand_over"]["after"]
    assert summary["takeover"]["seconds_after_free"] >= 0
    assert summary["completed"] >= 7
    assert demo.workers() == []
    assert list(demo.folder.iterdir()) == []


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_stops_its_workers(demo: Demo, how: signal.Signals) -> None:
    """Ctrl+C also ends the workers, and removes the files."""
    demo.wait_for("slot 1 completed")
    assert len(demo.workers()) == 3
    demo.process.send_signal(how)
    assert demo.process.wait(30) == 130
    assert demo.workers() == []
    assert list(demo.folder.iterdir()) == []


def test_workers_notice_that_the_demo_was_killed(demo: Demo) -> None:
    """Even kill -9 leaves no process behind: the workers' standard input ends."""
    demo.wait_for("slot 1 completed")
    demo.process.kill()
    give_up = time.monotonic() + 30
    while demo.workers():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def test_durable_orders_survive_kills(tmp_path: Path) -> None:
    """Workers are killed while they run orders: every order ends, each effect is in the database once."""
    demo = Demo(tmp_path, "durable")
    output, errors = demo.process.communicate(timeout=120)
    summary = json.loads(output)
    assert (demo.process.returncode, summary["ok"]) == (0, True), errors
    assert (summary["succeeded"], summary["effects"], summary["duplicates"]) == (6, 12, 0)
    assert summary["killed"] == 4
    assert demo.workers() == []
