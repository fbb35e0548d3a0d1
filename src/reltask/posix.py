"""Whatever differs between POSIX and Windows, in one place."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

IS_POSIX = os.name == "posix"


def install_stop_signals(loop: asyncio.AbstractEventLoop, stop: Callable[[], None]) -> Callable[[], None]:
    """Call `stop` on the loop at SIGTERM or Ctrl+C; returns a function that puts everything back."""
    names = (signal.SIGTERM, signal.SIGINT)
    before: dict[signal.Signals, Any] = {}
    for name in names:
        if IS_POSIX:
            loop.add_signal_handler(name, stop)
        else:
            before[name] = signal.signal(name, lambda *_: loop.call_soon_threadsafe(stop))

    def put_back() -> None:
        for name in names:
            if IS_POSIX:
                loop.remove_signal_handler(name)
            else:
                signal.signal(name, before[name])

    return put_back


def spawn(arguments: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    """A child in a group of its own, so that Ctrl+C in a terminal reaches only the worker, with pipes both ways."""
    windows_flag = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    options: dict[str, Any] = {"start_new_session": True} if IS_POSIX else {"creationflags": windows_flag}
    return subprocess.Popen(  # noqa: S603 - our own interpreter and module
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, **options
    )


def terminate(child: subprocess.Popen[bytes]) -> None:
    """Ask a child to end."""
    child.terminate()


def kill(child: subprocess.Popen[bytes]) -> None:
    """End a child by force, and on POSIX whatever it started."""
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


def on_terminate(handler: Callable[[], None]) -> None:
    """Call the handler in the main thread at SIGTERM; ignore Ctrl+C, which is the worker's business."""
    signal.signal(signal.SIGTERM, lambda *_: handler())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
