"""A worker's id: name, host, process id and a random part."""

from __future__ import annotations

import os
import random
import re
import socket
from pathlib import Path

import pytest

from reltask import App
from reltask.errors import SettingsError
from reltask.service import worker_id


def test_parts_of_a_worker_id() -> None:
    """The name, if there is one, comes first; an operator finds the host and the process id in it."""
    tail = rf"{re.escape(socket.gethostname())}_{os.getpid()}_[0-9a-f]{{32}}"
    assert re.fullmatch(tail, worker_id(None, random.Random(1)))
    assert re.fullmatch(rf"web_{tail}", worker_id("web", random.Random(1)))


def test_worker_ids_are_unique_on_equal_hosts_with_equal_process_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers share host names and start with process id 1: the random part alone tells their workers apart."""
    monkeypatch.setattr(socket, "gethostname", lambda: "web")
    monkeypatch.setattr(os, "getpid", lambda: 1)
    containers = [App("sqlite:///unused.db") for _ in range(1000)]
    assert len({worker_id("blue", app._rng) for app in containers}) == 1000


async def test_name_with_a_control_character_is_refused(tmp_path: Path) -> None:
    """It would be printed wherever the worker is named."""
    app = App(f"sqlite:///{tmp_path}/jobs.db", settings={"worker.name": "a\x1b[2J"})
    with pytest.raises(SettingsError, match=r"worker.name='a\\x1b\[2J' contains the control character U\+001B"):
        async with app.worker():
            pass
