"""The examples do what they say."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import MutableMapping
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from reltask import App, testing
from reltask.events import RunSucceeded
from tests.docs.pages import ROOT

EXAMPLES = ROOT / "examples"
PATTERN = EXAMPLES / "pattern.py"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_pattern_is_short() -> None:
    """The whole pattern fits into 150 lines, comments and all, and uses no engine."""
    text = PATTERN.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert "reltask.worker" not in text


@pytest.mark.slow
def test_pattern_shares_slots_among_processes(tmp_path: Path) -> None:
    """Three processes with nothing but the pattern: slots without gaps, each ended once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(PATTERN), "work.db", "1"]
    processes = [subprocess.Popen(command, cwd=tmp_path, env=environment) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    with closing(sqlite3.connect(tmp_path / "work.db")) as connection:
        ended = connection.execute("select slot_no, worker from reltask_runs where outcome = 'succeeded'").fetchall()
    assert sorted(slot for slot, _ in ended) == [1, 2, 3]
    assert len({worker for _, worker in ended}) == 3


def test_pattern_refuses_an_old_fence(tmp_path: Path) -> None:
    """A claim that expired and was taken over can neither be renewed nor completed by its former owner."""
    pattern = load("pattern")
    with closing(pattern.connect(str(tmp_path / "work.db"))) as connection:
        pattern.enqueue(connection)
        old = pattern.claim(connection)
        assert pattern.claim(connection) is None
        assert pattern.reclaim(connection) == 0
        connection.execute("update reltask_jobs set heartbeat_at = 0, lock_expires_at = 0")
        assert pattern.reclaim(connection) == 1
        new = pattern.claim(connection)
        assert (new["slot_no"], new["fence"]) == (old["slot_no"], old["fence"] + 1)
        assert not pattern.heartbeat(connection, old)
        assert not pattern.complete(connection, old)
        assert pattern.heartbeat(connection, new)
        assert pattern.complete(connection, new)


def test_pattern_notices_a_lost_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The heartbeat thread notifies the body when its claim is lost."""
    pattern = load("pattern")
    monkeypatch.setattr(pattern, "HEARTBEAT", 0.01)
    path = str(tmp_path / "work.db")
    with closing(pattern.connect(path)) as connection:
        pattern.enqueue(connection)
        held = pattern.claim(connection)
        connection.execute("update reltask_jobs set fence = fence + 1")
        with pattern.beating(path, held) as lost:
            assert lost.wait(30)


class Server:
    """As much of an ASGI server as a test needs."""

    def __init__(self, application: Any) -> None:
        self.application = application
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: asyncio.Queue[MutableMapping[str, Any]] = asyncio.Queue()

    async def lifespan(self) -> None:
        await self.application({"type": "lifespan"}, self.events.get, self.sent.put)

    async def get(self, path: str) -> tuple[int, str]:
        sent: list[MutableMapping[str, Any]] = []

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(message)

        await self.application({"type": "http", "path": path}, self.events.get, send)
        return sent[0]["status"], sent[1]["body"].decode().strip()


@pytest.mark.slow
async def test_asgi_worker_lives_as_long_as_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between startup and shutdown a request's job is run; afterwards the worker is gone."""
    monkeypatch.chdir(tmp_path)
    example = load("asgi")
    server = Server(example.web)
    serving = asyncio.create_task(server.lifespan())
    await server.events.put({"type": "lifespan.startup"})
    assert (await server.sent.get())["type"] == "lifespan.startup.complete"
    ended = asyncio.Event()
    example.app.subscribe(lambda event: ended.set() if isinstance(event, RunSucceeded) else None)
    status, job_id = await server.get("/hello/Ada")
    await asyncio.wait_for(ended.wait(), 30)
    await server.events.put({"type": "lifespan.shutdown"})
    assert (await server.sent.get())["type"] == "lifespan.shutdown.complete"
    await serving
    (run,) = await example.app.runs()
    example.app.close()
    assert (status, str(run.job_id)) == (202, job_id)
    assert "Hello, Ada!" in capsys.readouterr().out


def test_docstring_of_testing_runs_as_written() -> None:
    """What `help(reltask.testing)` shows is what people copy."""
    example = textwrap.dedent("".join(re.findall(r"^(?:    .*)?\n", testing.__doc__ or "", re.MULTILINE)))
    names: dict[str, Any] = {"App": App, "asyncio": asyncio, "virtual_time": testing.virtual_time}
    exec(example, names)
    assert names["time"].now() == testing.START + timedelta(hours=1)
