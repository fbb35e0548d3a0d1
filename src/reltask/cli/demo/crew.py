"""The demonstration's worker processes: started, killed, stopped, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import reltask
from reltask.worker.posix import IS_POSIX

NAMES = ("alpha", "bravo", "charlie", "delta", "echo")
APP = "reltask.cli.demo.app:create_app()"
PATIENCE = 5.0


class Member:
    """One worker process. Its id begins with its name."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self.fate = ""

    @property
    def state(self) -> str:
        return self.fate or ("running" if self.process.poll() is None else f"ended with {self.process.returncode}")

    def kill(self) -> None:
        """SIGKILL: no time for a last word."""
        self.fate = "killed"
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM: the worker may give back what it holds."""
        self.fate = "stopped"
        self.process.terminate()


class Crew:
    """All workers of one demonstration."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._names = iter(NAMES)
        self.members: list[Member] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disband()

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def hire(self) -> Member:
        """Start one more worker."""
        name = next(self._names)
        log = self._folder / f"{name}.log"
        arguments = [sys.executable, "-m", "reltask.cli", "worker", APP, "--name", name]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                arguments,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self._folder,  # no settings file of the user's lies here
                env=_environment(self._url),
                start_new_session=IS_POSIX,  # Ctrl+C is for the demonstration, which then stops its workers
            )
        member = Member(name, process, log)
        self.members.append(member)
        return member

    def find(self, worker: str) -> Member | None:
        """The member with this worker id."""
        return next((member for member in self.members if worker.startswith(f"{member.name}_")), None)

    def disband(self) -> None:
        """Stop everybody; kill who does not listen."""
        for member in self.members:
            if member.process.poll() is None:
                member.process.terminate()
        for member in self.members:
            try:
                member.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                member.process.kill()
                member.process.wait()
            if member.process.stdin is not None:
                member.process.stdin.close()


def _environment(url: str) -> dict[str, str]:
    """The user's environment without settings of reltask, and with the path that this process imports from."""
    ours = ("RELTASK_", "TASKEXECUTION__", "CONNECTIONSTRINGS__")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}
    home = str(Path(reltask.__file__).parents[1])
    paths = [home, *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"RELTASK_DATABASE_URL": url, "PYTHONPATH": os.pathsep.join(paths)}
