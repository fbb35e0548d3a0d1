"""Tasks for child processes. They are imported by name, so they are at the top level of a module."""

from __future__ import annotations

import ctypes
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from reltask import App, Cancel, ProcessContext, Retry, Snooze

UNREADABLE = "\udcff"
"""A byte in a file name that is not text, as Python represents it."""
app = App("sqlite:///never-opened.db")
"""For the decorators only: each test registers these functions with its own app."""


def add(a: int, b: int) -> int:
    return a + b


def fork_and_terminate() -> int | None:
    process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    process.start()
    process.terminate()
    process.join()
    return process.exitcode


def facts(ctx: ProcessContext, note: str) -> dict[str, object]:
    ctx.progress({"note": note})
    return {
        "task": ctx.task,
        "job": str(ctx.job_id),
        "slot": ctx.slot_no,
        "attempt": ctx.attempt,
        "fence": ctx.fence,
        "key": ctx.idempotency_key,
        "worker": ctx.worker,
        "cancelled": ctx.cancelled,
        "last_progress": ctx.last_progress,
        "pid": os.getpid(),
    }


def end(how: str) -> object:
    match how:
        case "retry":
            raise Retry("again", delay="7s")
        case "snooze":
            raise Snooze("7s", "later")
        case "cancel":
            raise Cancel("enough")
        case "raise":
            raise ZeroDivisionError("by nought")
        case "exit":
            sys.exit(3)
        case "die":
            os._exit(9)
        case "segfault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "unstorable":
            return object()
        case "nothing":
            return None
    raise AssertionError(how)


def log(line: str) -> str:
    logging.getLogger(__name__).warning(line, UNREADABLE)
    return "logged"


def cancel() -> None:
    raise Cancel(f"cannot read {UNREADABLE}")


async def _never_awaited() -> None: ...


def forget_to_await() -> object:
    return _never_awaited()


def talk() -> str:
    print("for people only")  # noqa: T201 - what tasks do
    os.write(1, b'{"kind":"returned","value":"forged"}\n')
    return "said"


def sleep_until_stopped(ctx: ProcessContext, mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    while not ctx.cancelled:
        time.sleep(0.005)


def wait_for(go: str, mark: str) -> str:
    Path(mark).write_text(str(os.getpid()))
    while not Path(go).exists():
        time.sleep(0.005)
    return "finished"


def run_a_program(mark: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as program:
        try:
            Path(mark).write_text(str(program.pid))  # from here on the test may stop it
            program.wait()
        finally:
            program.terminate()
            Path(mark).with_suffix(".ended").write_text(f"ended by {signal.Signals(-program.wait()).name}")


def stop_in_its_own_way(ctx: ProcessContext, mark: str) -> None:
    def say_so(*_: object) -> None:
        Path(mark).with_suffix(".ended").write_text(f"cancelled: {ctx.cancelled}")
        sys.exit()

    signal.signal(signal.SIGTERM, say_so)
    Path(mark).write_text(str(os.getpid()))
    time.sleep(60)


def ignore_everything(mark: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path(mark).write_text(str(os.getpid()))
    while True:
        time.sleep(0.05)


def hold_the_interpreter(mark: str) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # otherwise the first one ends the sleep
    Path(mark).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(60)  # C code that does not release the GIL


decorated = app.task(isolation="process", name="decorated")(add)
