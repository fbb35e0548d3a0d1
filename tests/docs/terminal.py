"""A terminal that runs what a page shows: `$ ` lines are commands, the lines below them their expected output.

    $ reltask enqueue app:app hello '{"name": "Ada"}'       run, and waited for
    hello enqueued: …                                       must appear in its output; … stands for anything
    $ reltask worker app:app                                a worker keeps running, as in a terminal of its own,
                                                            and so does a web server
    Hello, Ada!                                             is waited for before the page ends

Only what a reader would have to replace is replaced: see `Terminal.instead`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tests.docs.pages import ROOT, Block

PATIENCE = 60.0
ENVIRONMENT = ("python3 -m venv .venv", ". .venv/bin/activate")
"""A reader makes an environment of their own; the tests have one."""
SERVERS = ("uvicorn", "flask", "python manage.py runserver")


class Command(NamedTuple):
    """One command, and the lines that must be seen."""

    line: str
    expected: list[str]


def commands(text: str) -> list[Command]:
    """The commands of a console block."""
    found: list[Command] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(Command(line[2:], []))
        elif line.strip():
            found[-1].expected.append(line)
    return found


class Background:
    """A worker in a terminal of its own."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path, command: Command) -> None:
        self.process = process
        self.log = log
        self.command = command

    def output(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_for(self, expected: list[str]) -> None:
        """Wait until these lines have been seen."""
        until = time.monotonic() + PATIENCE
        while not seen(expected, self.output()):
            assert time.monotonic() < until, f"$ {self.command.line}\n{self.output()}\nnever showed {expected}"
            assert self.process.poll() is None, f"$ {self.command.line}\nended:\n{self.output()}"
            time.sleep(0.05)

    def interrupt(self) -> int:
        """Ctrl+C; the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.wait(PATIENCE)


class Terminal:
    """A directory, an environment, and what has been started there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.skip: Mapping[str, str] = {}
        """Commands that cannot be run here, each with its reason."""
        self.instead: dict[str, str] = {}
        """What a reader would have to replace: a database's address, a process id."""
        self.skipped: set[str] = set()
        self.shown = ""
        """The output of the last command that has ended."""
        self.background: list[Background] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RELTASK_")}
        self.environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "1"}

    # What a page holds

    def read(self, block: Block) -> None:
        """Do what a reader does with a block: write a file, run a program, type commands."""
        if block.language == "python" and block.title:
            (self.directory / block.title).write_text(block.text, encoding="utf-8")
            if '"__main__"' not in block.text:  # the page shows the command that runs it
                self.run_python(block.title)
        elif block.language == "python":
            (self.directory / "snippet.py").write_text(block.text, encoding="utf-8")
            self.run_python("snippet.py")
        elif block.language == "console":
            for command in commands(block.text):
                self.type(command)
        elif block.title:
            (self.directory / block.title).write_text(block.text, encoding="utf-8")

    def run_python(self, file: str) -> None:
        self._finish(Command(f"python {file}", []))

    def type(self, command: Command) -> None:
        """Run one command."""
        line = command.line
        if line in ENVIRONMENT:
            return
        if line in self.skip:
            self.skipped.add(line)
            return
        for shown, real in self.instead.items():
            line = line.replace(shown, real)
            command = Command(line, [each.replace(shown, real) for each in command.expected])
        if line.startswith("export "):
            set_variable(self.environment, line.removeprefix("export "))
        elif line.startswith("kill "):
            self._kill(*line.split()[1:])
        elif " worker " in f"{line} " and "--once" not in line:
            self._start(command, ready=["…next due…"])
        elif line.startswith(SERVERS):
            self._start(command, ready=command.expected)
        else:
            self._finish(command)

    def close(self) -> list[int]:
        """Wait for the expected output of the background commands, then send Ctrl+C; returns their exit statuses."""
        try:
            for one in self.background:
                if one.process.poll() is None:
                    one.wait_for(one.command.expected)
        finally:
            statuses = [one.interrupt() for one in self.background]
        return statuses

    def kill(self) -> None:
        """Kill every process that is left."""
        for one in self.background:
            with suppress(ProcessLookupError):
                one.process.kill()
            one.process.wait()

    # Inside

    def _start(self, command: Command, *, ready: list[str]) -> None:
        log = self.directory / f"terminal-{len(self.background) + 1}.log"
        words, environment = self._words(command.line)
        with log.open("wb") as output:
            process = subprocess.Popen(
                words, cwd=self.directory, env=environment, stdout=output, stderr=subprocess.STDOUT
            )
        self.background.append(Background(process, log, command))
        self.background[-1].wait_for(ready)

    def _kill(self, name: str, pid: str) -> None:
        """Signal one of the background processes; any other process id is an error."""
        (one,) = (one for one in self.background if one.process.pid == int(pid))
        one.process.send_signal(signal.Signals["SIG" + name.removeprefix("-")])

    def _finish(self, command: Command) -> None:
        words, environment = self._words(command.line)
        done = subprocess.run(
            words, cwd=self.directory, env=environment, capture_output=True, timeout=PATIENCE, check=False
        )
        self.shown = output = (done.stdout + b"\n" + done.stderr).decode()
        assert done.returncode == 0, f"$ {command.line}\n{output}"
        assert seen(command.expected, output), f"$ {command.line}\n{output}\ndoes not show {command.expected}"

    def _words(self, line: str) -> tuple[list[str], dict[str, str]]:
        """The words of a command, and its environment: `NAME=value` may stand in front."""
        words, environment = shlex.split(line), dict(self.environment)
        while re.fullmatch(r"[A-Z_]+=.*", words[0]):
            set_variable(environment, words.pop(0))
        programs = {"reltask": [sys.executable, "-m", "reltask.cli"], "python": [sys.executable]}
        programs |= {name: [sys.executable, "-m", name] for name in SERVERS}
        return [*programs.get(words[0], words[:1]), *words[1:]], environment


def set_variable(environment: dict[str, str], assignment: str) -> None:
    """Do what `NAME=value` says."""
    name, _, value = assignment.partition("=")
    environment[name] = value


def seen(expected: list[str], output: str) -> bool:
    """Whether these lines appear in this order; … stands for anything, and spaces for any number of them."""
    parts = [re.escape(line).replace("…", ".*").replace("\\ ", " ") for line in expected if line.strip() != "…"]
    pattern = "(?s:.*?)".join(rf"^{re.sub(' +', ' +', part)}\s*?$" for part in parts)
    return re.search(pattern, output, re.MULTILINE) is not None
