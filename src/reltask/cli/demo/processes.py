"""The demo's worker processes: start, kill and stop them, and leave none behind."""

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

NAMES = ("alpha", "bravo", "charlie", "delta", "echo", "foxtrot", "golf", "hotel")
APP = "reltask.cli.demo.app:create_app()"
STOP_TIMEOUT = 5.0


class WorkerProcess:
    """One worker process. The worker's id begins with its name."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.process = process
        self.log = log
        self._interrupted = ""

    @property
    def state(self) -> str:
        if self._interrupted:
            return self._interrupted
        return "running" if self.process.poll() is None else f"ended with {self.process.returncode}"

    def kill(self) -> None:
        """SIGKILL: the worker can release nothing."""
        self._interrupted = "killed"
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        """SIGTERM: the worker can release what it holds."""
        self._interrupted = "stopped"
        self.process.terminate()


class WorkerProcesses:
    """All workers of one demo."""

    def __init__(self, folder: Path, url: str, *, app: str = APP) -> None:
        self._folder = folder
        self._url = url
        self._app = app
        self._names = iter(NAMES)
        self._started: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop_all()

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(self._started)

    def __len__(self) -> int:
        return len(self._started)

    def start(self) -> WorkerProcess:
        """Start one more worker."""
        name = next(self._names)
        log = self._folder / f"{name}.log"
        arguments = [sys.executable, "-m", "reltask.cli", "worker", self._app, "--name", name]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command line
                arguments,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                cwd=self._folder,  # away from the user's settings file
                env=_environment(self._url),
                start_new_session=IS_POSIX,  # Ctrl+C goes to the demo alone, which then stops its workers
            )
        worker = WorkerProcess(name, process, log)
        self._started.append(worker)
        return worker

    def find(self, worker_id: str) -> WorkerProcess | None:
        """The process of the worker with this id."""
        return next((worker for worker in self._started if worker_id.startswith(f"{worker.name}_")), None)

    def stop_all(self) -> None:
        """Stop all workers; kill those that do not stop in time."""
        for worker in self._started:
            if worker.process.poll() is None:
                worker.process.terminate()
        for worker in self._started:
            try:
                worker.process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()
            if worker.process.stdin is not None:
                worker.process.stdin.close()


def _environment(url: str) -> dict[str, str]:
    """The user's environment without reltask's settings, and with this process's import path."""
    ours = ("RELTASK_", "TASKEXECUTION__", "CONNECTIONSTRINGS__")
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(ours)}
    home = str(Path(reltask.__file__).parents[1])
    paths = [home, *filter(None, [kept.get("PYTHONPATH")])]
    return kept | {"RELTASK_DATABASE_URL": url, "PYTHONPATH": os.pathsep.join(paths)}
