"""Threads for plain functions. They are daemons: a body that hangs does not keep the process alive."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from reltask.worker.run import Ending


class ThreadPool:
    """Runs each function on an idle thread, or on a new one; the worker's concurrency bounds their number."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._threads = 0

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        """Run the function, in the caller's context variables."""
        future: Future[Any] = Future()
        context = contextvars.copy_context()
        if not self._idle.acquire(blocking=False):
            # Before the queue: if no thread can be started, no other one may run the function later.
            threading.Thread(target=self._serve, name=f"reltask-body-{self._threads + 1}", daemon=True).start()
            self._threads += 1
        self._work.put((future, lambda: context.run(function)))
        return future

    def close(self) -> None:
        """Let the threads end when they have nothing left to do."""
        for _ in range(self._threads):
            self._work.put(None)

    def _serve(self) -> None:
        while (item := self._work.get()) is not None:
            future, function = item
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - the future carries it to the run
                future.set_exception(error)
            del item, future, function
            self._idle.release()


def in_thread(pool: ThreadPool, function: Callable[[], Any], ended: Ending) -> asyncio.Future[Any]:
    """Run the function in a thread; `ended` is called on the loop."""
    future = asyncio.wrap_future(pool.submit(function))
    future.add_done_callback(partial(_report_end, ended))
    return future


def _report_end(ended: Ending, future: asyncio.Future[Any]) -> None:
    error = asyncio.CancelledError() if future.cancelled() else future.exception()
    ended(None if error is not None else future.result(), error)
