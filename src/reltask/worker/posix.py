"""The differences between POSIX and Windows."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

IS_POSIX = os.name == "posix"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""The signals by which a supervisor or a terminal ends a worker."""


def install_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` on the loop at SIGTERM or Ctrl+C; returns a function that restores the handlers."""
    before: dict[signal.Signals, Any] = {}
    for name in _STOP_SIGNALS:
        if IS_POSIX:
            loop.add_signal_handler(name, stop)
        else:
            before[name] = signal.signal(name, lambda *_: loop.call_soon_threadsafe(stop))

    def put_back() -> None:
        for name in _STOP_SIGNALS:
            if IS_POSIX:
                loop.remove_signal_handler(name)
            else:
                signal.signal(name, before[name])

    return put_back


def spawn(arguments: list[str]) -> subprocess.Popen[bytes]:
    """A child in a group of its own, so that Ctrl+C in a terminal reaches only the worker, with pipes both ways.

    Until it calls `on_stop`, SIGTERM and Ctrl+C are blocked: they would kill the interpreter.
    """
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    if not IS_POSIX:
        pipes["creationflags"] = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
        return subprocess.Popen(arguments, **pipes)  # noqa: S603 - our own interpreter and module
    mine = signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)  # of this thread alone; the child inherits it
    try:
        return subprocess.Popen(arguments, start_new_session=True, **pipes)  # noqa: S603 - the same
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mine)


def ask_to_stop(child: subprocess.Popen[bytes]) -> None:
    """Ask a child to end, by a signal that supervisors do not send. On Windows, terminate it."""
    if IS_POSIX:
        child.send_signal(signal.SIGUSR2)
    else:
        child.terminate()


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child by force, and on POSIX the processes that it started."""
    if child.poll() is not None:
        return
    if IS_POSIX:
        os.killpg(child.pid, signal.SIGKILL)
    else:
        child.kill()


def end_at_once(code: int) -> None:
    """End this process and, on POSIX, its group: for a child whose worker is gone."""
    sys.stderr.flush()
    if IS_POSIX and os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(code)


def on_stop(noted: Callable[[], None], stop: Callable[[], None]) -> None:
    """In a child: when its worker asks it to stop, call `noted`, then raise SIGTERM here, which calls `stop`.

    So a task that installs its own SIGTERM handler is asked, too. SIGTERM from elsewhere is
    ignored, as is Ctrl+C: a supervisor may signal the worker and its children at once (systemd
    does), and then the worker decides what ends. SIGTERM is ignored by a handler. Programs that the
    child starts do not inherit it, and processes that it forks remove it, so these can be ended as
    usual.
    """
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True
        noted()
        signal.raise_signal(signal.SIGTERM)

    def terminate(*_: object) -> None:
        if asked:
            stop()

    def forget() -> None:
        for number, handler in ((signal.SIGTERM, terminate), (signal.SIGUSR2, ask)):
            if signal.getsignal(number) is handler:
                signal.signal(number, signal.SIG_DFL)
        hear()

    def hear() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOP_SIGNALS)

    def hold() -> None:  # a signal that comes while Python forks would be dropped
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)

    signal.signal(signal.SIGTERM, terminate)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if IS_POSIX:
        signal.signal(signal.SIGUSR2, ask)
        os.register_at_fork(before=hold, after_in_parent=hear, after_in_child=forget)
        hear()
