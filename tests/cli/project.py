"""A user's directory with an app in it, and ways to run the command line there."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import reltask
from reltask.cli import run
from tests.mssql_server import python_path

_numbers = itertools.count(1)

APP = """
import asyncio, time
from reltask import App, Context

app = App("sqlite:///jobs.db")

@app.task
async def hello(name: str) -> str:
    return f"hello {name}"

@app.task(max_attempts=1)
async def fragile(secret: str) -> None:
    raise ValueError("it broke")

@app.task(every="10m")
async def tick() -> None: ...

@app.task(queue="slow")
async def sleepy(ctx: Context) -> None:
    await asyncio.sleep(600)

@app.task(queue="slow", lock_timeout="2s")
def stubborn() -> None:
    time.sleep(600)

def create_app() -> App:
    return app

def broken_factory() -> App:
    raise RuntimeError("no luck today")

number = 7
"""


class Result(NamedTuple):
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The output as JSON."""
        return json.loads(self.out)


class Project:
    """A directory with a module of tasks.

    `name` is the module's name, `app` refers to the app in it.
    """

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.name = f"project_{next(_numbers)}"  # Python imports a name only once
        self.app = f"{self.name}:app"
        self.folder = folder
        self._capsys = capsys
        self._started: list[subprocess.Popen[str]] = []
        (folder / f"{self.name}.py").write_text(APP)

    def run(self, *arguments: str) -> Result:
        """Run a command in this process."""
        self._capsys.readouterr()
        code = run(list(arguments))
        return Result(code, *self._capsys.readouterr())

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        """Start a command in a separate process."""
        process = subprocess.Popen(
            [sys.executable, "-m", "reltask.cli", *arguments],
            cwd=self.folder,
            env=environment(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def close(self) -> None:
        """Kill running processes, and close their pipes."""
        for process in self._started:
            process.kill()
            process.wait()
            for stream in (process.stdout, process.stderr):
                if stream is not None:
                    stream.close()

    def call(self, *arguments: str, **variables: str) -> Result:
        """Run a command in a separate process."""
        process = self.start(*arguments, **variables)
        out, err = process.communicate(timeout=60)
        return Result(process.returncode, out, err)

    def enqueue(self, task: str, **arguments: object) -> str:
        """Enqueue a job; its id."""
        result = self.run("enqueue", self.app, task, json.dumps(arguments), "--json")
        assert result.code == 0, result.err
        return str(result.json["id"])


def environment(**variables: str) -> dict[str, str]:
    """This process's environment, with the same import path."""
    return {**os.environ, "PYTHONPATH": python_path(Path(reltask.__file__).parents[1]), **variables}


def wait_for(process: subprocess.Popen[str], text: str) -> str:
    """Read the process's log up to the line that contains this text."""
    assert process.stderr is not None
    for line in process.stderr:
        if text in line:
            return line
    raise AssertionError(f"The process ended without writing {text!r}.")
