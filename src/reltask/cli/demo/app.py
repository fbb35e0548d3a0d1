"""The app of the demo's workers: the sample task with short times."""

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
    "worker.shutdown_grace": "0s",  # a stopped worker hands its slot over instead of finishing it, to show that
    "log.format": "text",
}


def create_app() -> App:
    """The sample task about once a second, with a lock timeout of two seconds."""
    threading.Thread(target=exit_with_demo, daemon=True).start()
    return create_sample(every="1200ms", settings=SETTINGS)


def exit_with_demo() -> None:
    """Standard input is a pipe from the demo's process. It closes when that process ends, even if it is killed."""
    sys.stdin.read()
    end_at_once(1)
