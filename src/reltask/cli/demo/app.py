"""What the demonstration's workers run: the sample task in a hurry."""

from __future__ import annotations

import sys
import threading

from reltask.app import App
from reltask.sample import create_app as create_sample
from reltask.worker.posix import end_at_once

SETTINGS = {
    "sample.task_duration": "800ms",
    "worker.poll": "5s",
    "worker.lock_timeout": "2s",
    "worker.heartbeat": "400ms",
    "worker.beat_timeout": "300ms",
    "worker.stop_grace": "200ms",
    "worker.shutdown_grace": "0s",  # a stopped worker hands over instead of finishing: that is to be seen
    "log.format": "text",
}


def create_app() -> App:
    """The sample task about each second, with a lock of two seconds."""
    threading.Thread(target=_end_with_the_demo, daemon=True).start()
    return create_sample(every="1200ms", settings=SETTINGS)


def _end_with_the_demo() -> None:
    """Our standard input is a pipe from the demonstration: it ends when that does, however it ends."""
    sys.stdin.read()
    end_at_once(1)
