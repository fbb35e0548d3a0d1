"""Three kinds of body behind one face: run, stop, kill.

               stop                                    kill
    async      cancel the task                         (nothing harder exists)
    thread     a flag; ctx raises at its next call     (nothing harder exists)
    process    SIGTERM                                 SIGKILL
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from reltask.engine.threads import ThreadPool


class BodyExit(Exception):
    """A body called `sys.exit()`, or raised what would have ended the whole process."""


class AsyncBody:
    """A coroutine on the worker's loop."""

    def __init__(self, function: Callable[[], Awaitable[Any]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._function = function
        self._task: asyncio.Task[Any] | None = None

    async def run(self) -> object:
        self._task = asyncio.create_task(self._guarded())
        await asyncio.wait([self._task])
        return self._task.result()

    async def _guarded(self) -> object:
        try:
            return await self._function()
        except (SystemExit, KeyboardInterrupt) as error:
            raise BodyExit(f"The task raised {type(error).__name__}; a worker does not end for that.") from error

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def kill(self) -> None:
        self.stop()

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


class ThreadBody:
    """A plain function in a thread: it can be asked to stop, not forced."""

    def __init__(self, pool: ThreadPool, function: Callable[[], Any]) -> None:
        self._pool = pool
        self._function = function

    async def run(self) -> object:
        return await asyncio.wrap_future(self._pool.submit(self._guarded))

    def _guarded(self) -> object:
        try:
            return self._function()
        except (SystemExit, KeyboardInterrupt) as error:
            raise BodyExit(f"The task raised {type(error).__name__}; a worker does not end for that.") from error
        except StopIteration as error:
            raise RuntimeError("The task raised StopIteration") from error

    def stop(self) -> None:
        """The run's flag is set already; `ctx` raises at its next call."""

    def kill(self) -> None:
        """A thread cannot be ended from outside."""
