"""`reltask status --watch`: the overview in a terminal, live."""

from __future__ import annotations

import json
import signal

import pytest

from tests.cli.project import Project

pytestmark = pytest.mark.slow


def test_frames_follow_the_database(project: Project) -> None:
    """Each frame is read again: a job that is enqueued meanwhile is in a later one. Ctrl+C ends it."""
    project.enqueue("hello", name="Ada")
    process = project.start("status", project.app, "--watch")
    assert process.stdout is not None
    frame = iter(process.stdout.readline, "")
    assert next(line for line in frame if line.startswith("! ")) == "! No worker is alive, and 1 job is due.\n"
    assert next(line for line in frame if line.startswith("due ")).startswith("due 1, running 0 of 0")
    project.enqueue("hello", name="Bob")
    assert next(line for line in frame if line.startswith("due 2,"))
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130


def test_each_frame_is_one_line_of_json(project: Project) -> None:
    """For programs: the whole overview, as the dashboard reads it."""
    project.enqueue("hello", name="Ada")
    process = project.start("status", project.app, "--watch", "--json")
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    project.enqueue("hello", name="Bob")
    counts = [first["lanes"][0][2]]
    while counts[-1] != 2:
        counts.append(json.loads(process.stdout.readline())["lanes"][0][2])
    assert counts[0] == 1
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 130
