"""Three kinds of body behind one face: start, stop, kill.

           stop                                    kill
async      cancel the task                         (nothing harder exists)
thread     a flag; ctx raises at its next call     (nothing harder exists)
process    SIGTERM, raised in it at our wish       SIGKILL, to its whole group
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any

from reltask.worker.run import Ending
from reltask.worker.threads import ThreadPool, in_thread


class BodyExit(Exception):
    """A body called `sys.exit()`, or raised what would have ended the whole process."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"The task raised {type(error).__name__}; a worker does not end for that.")
        self.__cause__ = error


def not_run(value: object) -> str | None:
    """Why a function that returned this has not done its work yet; None: it has."""
    if not _is_waiting(value):
        return None
    if inspect.iscoroutine(value):
        value.close()  # or else Python warns of it, later and elsewhere
    kind = type(value).__name__
    return f"The function returned a {kind}, which nobody runs: make whatever wraps it `async def`, and await it there."


def _is_waiting(value: object) -> bool:
    """Whether this is work that has not begun. A future goes on by itself."""
    if inspect.iscoroutine(value):
        return inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if inspect.isgenerator(value):
        return inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    return inspect.isasyncgen(value) or (inspect.isawaitable(value) and not asyncio.isfuture(value))


class AsyncBody:
    """A coroutine on the worker's loop. It tells of its end by itself: a callback would cost every job another turn."""

    __slots__ = ("_function", "_given", "_loop", "_named", "_task")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        function: Callable[..., Coroutine[Any, Any, Any]],
        given: tuple[Any, ...],
        named: dict[str, Any],
    ) -> None:
        self._loop = loop
        self._function = function
        self._given = given
        self._named = named
        self._task: asyncio.Task[None]

    def start(self, ended: Ending) -> asyncio.Future[None]:
        self._task = self._loop.create_task(self._run(ended))
        return self._task

    async def _run(self, ended: Ending) -> None:
        try:
            result = await self._function(*self._given, **self._named)
        except (SystemExit, KeyboardInterrupt) as error:
            ended(None, BodyExit(error))
        except GeneratorExit as error:
            if self._loop.is_running():  # else the loop is gone, and with it whoever would have to know
                ended(None, error)
        except BaseException as error:  # noqa: BLE001 - told there, a cancellation too
            ended(None, error)
        else:
            ended(result, None)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)

    def kill(self) -> None:
        self.stop()


class ThreadBody:
    """A plain function in a thread: it can be asked to stop, not forced."""

    def __init__(self, pool: ThreadPool, function: Callable[[], Any]) -> None:
        self._pool = pool
        self._function = function

    def start(self, ended: Ending) -> asyncio.Future[Any]:
        return in_thread(self._pool, self._guarded, ended)

    def _guarded(self) -> object:
        try:
            return self._function()
        except (SystemExit, KeyboardInterrupt, StopIteration) as error:
            raise BodyExit(error) from error

    def stop(self) -> None:
        """The run's flag is set already; `ctx` raises at its next call."""

    def kill(self) -> None:
        """A thread cannot be ended from outside."""
