"""What runs inside the child process of `process.py`."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any
from uuid import UUID

import msgspec

from reltask.errors import Cancel, ConfigurationError, Retry, Snooze, Stopped
from reltask.model.arguments import Arguments, encode_json
from reltask.model.durable import CALLS
from reltask.model.surroundings import Surroundings
from reltask.producer.result import in_task
from reltask.worker import posix
from reltask.worker.base_context import BaseContext
from reltask.worker.process import Message, Order
from reltask.worker.run import not_run

WORKER_GONE = 70
"""Exit status of a child whose worker is gone."""


class ProcessContext(BaseContext):
    """Handed to `def` tasks with `isolation="process"`: the facts of the run, progress and the cancelled flag."""

    def __init__(self, facts: dict[str, Any], say: Callable[[Message], None]) -> None:
        self._say = say
        self.task = facts["task"]
        self.job_id = UUID(facts["job_id"])
        self.key = facts["key"]
        self.queue = facts["queue"]
        self.slot_no = facts["slot_no"]
        self.nominal_time = datetime.fromisoformat(facts["nominal_time"])
        self.attempt = facts["attempt"]
        self.fence = facts["fence"]
        self.idempotency_key = facts["idempotency_key"]
        self.worker = facts["worker"]
        self.logger = logging.getLogger(f"reltask.task.{self.task}")
        self.is_stopping = False
        self._headers = facts["headers"]
        self._last_progress: str = facts["last_progress"] or "null"

    @property
    def last_progress(self) -> Any:
        """What an earlier run of this slot has published last with `progress`; None if none has."""
        return msgspec.json.decode(self._last_progress)

    @property
    def cancelled(self) -> bool:
        """Whether this body has been asked to stop."""
        return self.is_stopping

    def check(self) -> None:
        """Raise `Stopped` if this body has been asked to stop."""
        if self.is_stopping:
            raise Stopped

    if not TYPE_CHECKING:  # a type checker refuses unknown names itself

        def __getattr__(self, name: str) -> Any:
            if name in CALLS:
                raise AttributeError(f"ctx.{name}() cannot be called in a child process, which records no steps.")
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def progress(self, value: Any) -> None:
        """Publish how far this run has come: any JSON value, shown by `reltask jobs show`."""
        self.check()
        self._say(Message(kind="progress", value=msgspec.Raw(encode_json(value))))


def main() -> None:
    """Read the order, call the function, send the answer."""
    answers = _take_over_stdout()

    def say(message: Message) -> None:
        message.text = _readable(message.text)
        answers.write(msgspec.json.encode(message) + b"\n")
        answers.flush()

    order = msgspec.json.decode(_read_line(), type=Order)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    _log_through(say)
    context = ProcessContext(order.facts, say)
    posix.on_stop(lambda: setattr(context, "is_stopping", True), _stop)
    say(_run(order, context))


class _LogPipe(logging.Handler):
    """Sends log lines to the worker, which formats and writes them."""

    def __init__(self, say: Callable[[Message], None]) -> None:
        super().__init__()
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        """Like Python's own handlers, report a record that cannot be formatted on stderr, and go on."""
        try:
            self._say(Message(kind="log", text=self.format(record), level=record.levelno, logger=record.name))
        except Stopped:
            raise  # raised by a signal handler, for the task
        except Exception:  # noqa: BLE001 - reported there
            self.handleError(record)


def _readable(text: str) -> str:
    """The text with lone surrogates (from file names) as escapes: JSON and databases refuse them."""
    return text.encode("utf-8", "backslashreplace").decode()


def _log_through(say: Callable[[Message], None]) -> None:
    root = logging.getLogger()
    root.addHandler(_LogPipe(say))
    root.setLevel(logging.INFO)


def _take_over_stdout() -> IO[bytes]:
    """Keep the pipe to the worker for answers; the task's own output goes to stderr."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _read_line() -> bytes:
    """The order.

    Read from the file descriptor: the lock of a buffered stdin could block the exit.
    """
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 65536)
        if not piece:
            posix.end_at_once(WORKER_GONE)
        line += piece
    return line


def _end_with_the_worker() -> None:
    while os.read(0, 4096):
        pass
    posix.end_at_once(WORKER_GONE)


def _stop() -> None:
    raise Stopped


class _ChildsBody(msgspec.Struct):
    """The body that runs in this process, as enqueues in it see it."""

    headers: str | None
    on_enqueue: Callable[[str], None] | None = None


def _run(order: Order, context: ProcessContext) -> Message:
    """Call the function, and describe its end in a message."""
    value: object = None
    try:
        found = _find(order)
        function: Callable[..., Any] = getattr(found, "function", found)
        given = (context,) if order.takes_context else ()
        arguments = Arguments(function, skip_first=order.takes_context).decode(order.args)
        in_task.set(_ChildsBody(order.facts["headers"]))
        with _surroundings(order, found).around(context, order.facts["headers"]):
            value = function(*given, **arguments)
    except Retry as signal:
        seconds = None if signal.delay is None else signal.delay.total_seconds()
        return Message(kind="retry", text=str(signal), seconds=seconds)
    except Snooze as signal:
        return Message(kind="snooze", text=str(signal), seconds=signal.delay.total_seconds())
    except Cancel as signal:
        return Message(kind="cancel", text=str(signal))
    except Stopped as signal:
        return Message(kind="stopped", text=str(signal))
    except BaseException:  # noqa: BLE001 - the ledger records it
        return Message(kind="failed", text=traceback.format_exc())
    return _returned(value)


def _returned(value: object) -> Message:
    try:
        return Message(kind="returned", value=msgspec.Raw(encode_json(value)))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        why = not_run(value)
        return Message(kind="unkept", text=str(error)) if why is None else Message(kind="failed", text=why)


def _surroundings(order: Order, found: Any) -> Surroundings:
    """What the app of the task puts around its runs; the child knows the app by the task alone."""
    definition = getattr(found, "definition", None)
    if definition is not None:
        surroundings: Surroundings = definition.surroundings
        return surroundings
    if order.is_surrounded:
        raise ConfigurationError(
            f"The child process found {order.module}.{order.qualname} without its app, and so without middleware.",
            remedy="Keep the decorated function under its own name: @app.task(…) above the def.",
        )
    return Surroundings()


def _find(order: Order) -> Any:
    """Import the module that the worker named, and find the task in it."""
    sys.path[:] = order.path
    found: Any = _import(order)
    for name in order.qualname.split("."):
        found = getattr(found, name)
    return found


def _import(order: Order) -> Any:
    if order.module != "__main__" or order.file is None:
        return importlib.import_module(order.module)
    spec = importlib.util.spec_from_file_location("__reltask_main__", order.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["__reltask_main__"] = module
    spec.loader.exec_module(module)
    return module
