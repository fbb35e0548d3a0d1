"""A body in a child process: for code that holds the interpreter's lock or must be killable.

    worker                                          child: main() of worker/child.py
      │  stdin:  one line: function, arguments, facts of the run ──►  imports the module, calls the function
      │  stdout: ◄── one line per progress, one line for the end      (what the task prints goes to stderr)
      │  SIGUSR2: please stop ──►                                     raises SIGTERM in itself, and so `Stopped`
      │
      └─ stdin stays open: when the worker is gone, the child reads the end of the file and ends itself

The worker's registry, never the database, names the module to import. Arguments are JSON. The child starts with the
options that limit where the worker's Python imports from, and always with -P: a file in the working directory must not
replace a module of Python's own. Then it imports by the worker's `sys.path`.
"""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from reltask import version
from reltask.errors import Cancel, Retry, Snooze, Stopped
from reltask.worker import posix
from reltask.worker.run import Ending, Run, log_fields
from reltask.worker.threads import ThreadPool, in_thread


class RaisedInChild(Exception):
    """The function raised in the child; the text is its traceback there."""


class ChildDied(Exception):
    """The child ended without an answer."""


class Unkept(msgspec.Struct, frozen=True):
    """A return value that the child could not put into JSON."""

    reason: str


class Order(msgspec.Struct, kw_only=True):
    """What the child is to do."""

    module: str
    file: str | None
    """Of the main module, which has no importable name."""
    qualname: str
    path: list[str]
    args: str
    takes_context: bool
    is_surrounded: bool
    """Whether the app has middleware or context variables."""
    facts: dict[str, Any]
    """For the context."""


class Message(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What the child sends: progress, a line for the log, or its end."""

    kind: str
    value: msgspec.Raw = msgspec.Raw(b"null")
    text: str = ""
    seconds: float | None = None
    level: int = 0
    logger: str = ""


def order_for(run: Run, worker: str) -> Order:
    """The order for this run, taken from the registry and the claim."""
    function, claim = run.task.function, run.claim
    main = sys.modules.get("__main__") if function.__module__ == "__main__" else None
    facts = {
        "task": claim.task,
        "job_id": claim.job_id,
        "key": claim.key,
        "queue": claim.queue,
        "slot_no": claim.slot_no,
        "nominal_time": claim.nominal,
        "attempt": claim.attempt,
        "last_progress": claim.progress,
        "headers": claim.headers,
        "fence": claim.fence,
        "idempotency_key": claim.idempotency_key,
        "worker": worker,
    }
    return Order(
        module=function.__module__,
        file=getattr(main, "__file__", None),
        qualname=function.__qualname__,
        path=sys.path,
        args=claim.args,
        takes_context=run.task.context is not None,
        is_surrounded=not run.task.surroundings.is_empty,
        facts=facts,
    )


_START = "import sys; sys.path.insert(0, sys.argv.pop()); from reltask.worker.child import main; main()"
"""The child imports the worker's own reltask, installed or not: its place is an argument, because with -E and -I Python
ignores PYTHONPATH."""


def child_command() -> list[str]:
    """How a child is started."""
    given = {
        "-I": sys.flags.isolated,
        "-E": sys.flags.ignore_environment,
        "-s": sys.flags.no_user_site,
        "-S": sys.flags.no_site,
    }
    options = ["-P", *(option for option, is_given in given.items() if is_given)]
    return [sys.executable, *options, "-c", _START, str(Path(version.__file__).parents[1])]


class ProcessBody:
    """Drives one child from a thread of the worker."""

    def __init__(self, pool: ThreadPool, run: Run, *, worker: str, progress: Callable[[str], None]) -> None:
        self._pool = pool
        self._run = run
        self._order = order_for(run, worker)
        self._progress = progress
        self._extra = log_fields(run.claim, worker)
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def start(self, ended: Ending) -> asyncio.Future[Any]:
        return in_thread(self._pool, self._run_child, ended)

    def stop(self) -> None:
        with self._lock:
            if self._child is not None:
                posix.ask_to_stop(self._child)

    def kill(self) -> None:
        with self._lock:
            if self._child is not None:
                posix.kill(self._child)

    def _spawn(self) -> subprocess.Popen[bytes]:
        """Start the child, unless the run was stopped first; from here on `stop` reaches it."""
        with self._lock:
            self._run.check()
            self._child = posix.spawn(child_command())
            return self._child

    def _run_child(self) -> object:
        with self._spawn() as child:
            assert child.stdin is not None
            assert child.stdout is not None
            end: Message | None = None
            try:
                child.stdin.write(msgspec.json.encode(self._order) + b"\n")
                child.stdin.flush()
            except BrokenPipeError:
                pass  # it died at once; its exit status is reported below
            for line in child.stdout:
                message = msgspec.json.decode(line, type=Message)
                if message.kind == "progress":
                    self._progress(bytes(message.value).decode())
                elif message.kind == "log":
                    logging.getLogger(message.logger).log(message.level, message.text, extra=self._extra)
                else:
                    end = message
        return self._judge(end, child.returncode)

    def _judge(self, end: Message | None, status: int) -> object:
        """Return or raise what the function returned or raised in the child."""
        if end is None:
            if self._run.stop_reason is not None:
                raise Stopped(self._run.stop_detail)
            raise ChildDied(f"The child process ended without an answer (exit status {status}).")
        delay = None if end.seconds is None else timedelta(seconds=end.seconds)
        match end.kind:
            case "returned":
                return msgspec.json.decode(end.value)
            case "unkept":
                return Unkept(end.text)
            case "retry":
                raise Retry(end.text, delay=delay)
            case "snooze":
                raise Snooze(delay or timedelta(0), end.text)
            case "cancel":
                raise Cancel(end.text)
            case "stopped":
                raise Stopped(end.text)
        raise RaisedInChild(end.text)
