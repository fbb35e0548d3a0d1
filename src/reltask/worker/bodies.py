"""Three kinds of body behind one interface: start, stop, kill.

           stop                                    kill
async      cancel the task                         (nothing harder exists)
thread     a flag; ctx raises at its next call     (nothing harder exists)
process    SIGTERM, raised in it at our request    SIGKILL, to its whole group
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from reltask.errors import DatabaseError, LockLost
from reltask.model.codec import WRAPPERS, refuse_encoded
from reltask.model.task import TaskKind
from reltask.producer.result import in_task
from reltask.producer.transaction import wait_for
from reltask.worker.context import Context, ContextServices, SyncContext
from reltask.worker.process import ProcessBody
from reltask.worker.run import Body, Ending, Run
from reltask.worker.threads import ThreadPool, in_thread


class Bodies:
    """Makes the bodies of one worker's runs."""

    def __init__(self, services: ContextServices, pool: ThreadPool) -> None:
        self._services = services
        self._pool = pool

    def make(self, run: Run) -> Body:
        """The body of a run, not yet started. Raises if the stored arguments do not fit the function."""
        task, claim = run.task, run.claim
        if claim.args.startswith(WRAPPERS) or claim.headers is not None or claim.progress is not None:
            for text in (claim.args, claim.headers, claim.progress):
                refuse_encoded(text)
        if task.kind is TaskKind.PROCESS:
            save = partial(self._save_progress, run, asyncio.get_running_loop())
            return ProcessBody(self._pool, run, worker=self._services.worker, progress=save)
        given: tuple[Any, ...] = ()
        around = None
        if task.context or not task.surroundings.is_empty:
            context = (Context if task.kind is TaskKind.ASYNC else SyncContext)(run, self._services)
            given = (context,) if task.context else ()
            if not task.surroundings.is_empty:
                around = task.surroundings.around(context, claim.headers)
        named = task.arguments.decode(claim.args)
        if task.kind is TaskKind.ASYNC:
            return AsyncBody(asyncio.get_running_loop(), run, given, named, around)
        return ThreadBody(self._pool, run, partial(task.function, *given, **named), around)

    def _save_progress(self, run: Run, loop: asyncio.AbstractEventLoop, text: str) -> None:
        """Called on a child's thread. A child does not fail because its progress could not be written."""
        with suppress(DatabaseError, LockLost):
            wait_for(self._services.save_progress(run, text), loop)


class BodyExit(Exception):
    """A body called `sys.exit()`, or raised another exception that would end the process."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(f"The task raised {type(error).__name__}, which does not end a worker.")
        self.__cause__ = error


class AsyncBody:
    """A coroutine on the worker's loop.

    It reports its end itself, which saves each job a turn of the loop.
    """

    __slots__ = ("_around", "_given", "_loop", "_named", "_run_of_body", "_task")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run: Run,
        given: tuple[Any, ...],
        named: dict[str, Any],
        around: AbstractContextManager[None] | None,
    ) -> None:
        self._loop = loop
        self._run_of_body = run
        self._given = given
        self._named = named
        self._around = around
        self._task: asyncio.Task[None]

    def start(self, ended: Ending) -> asyncio.Future[None]:
        self._task = self._loop.create_task(self._run(ended))
        return self._task

    async def _run(self, ended: Ending) -> None:
        in_task.set(self._run_of_body)
        function, result = self._run_of_body.task.function, None
        try:
            if self._around is None:
                result = await function(*self._given, **self._named)
            else:
                with self._around:
                    result = await function(*self._given, **self._named)
        except (SystemExit, KeyboardInterrupt) as error:
            ended(None, BodyExit(error))
        except GeneratorExit as error:
            if self._loop.is_running():  # else the loop has ended, and the worker with it
                ended(None, error)
        except BaseException as error:  # noqa: BLE001 - reported there, a cancellation too
            ended(None, error)
        else:
            ended(result, None)
        finally:
            in_task.set(None)  # the run keeps its task, and the task these variables: no cycle may remain

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._task.cancel)

    def kill(self) -> None:
        self.stop()


class ThreadBody:
    """A plain function in a thread: it can be asked to stop, not forced."""

    def __init__(
        self, pool: ThreadPool, run: Run, function: Callable[[], Any], around: AbstractContextManager[None] | None
    ) -> None:
        self._pool = pool
        self._run = run
        self._function = function
        self._around = around or nullcontext()

    def start(self, ended: Ending) -> asyncio.Future[Any]:
        return in_thread(self._pool, self._guarded, ended)

    def _guarded(self) -> object:
        in_task.set(self._run)
        try:
            with self._around:
                return self._function()
        except (SystemExit, KeyboardInterrupt, StopIteration) as error:
            raise BodyExit(error) from error
        return None  # middleware has suppressed an exception

    def stop(self) -> None:
        """The run's flag is set already; `ctx` raises at its next call."""

    def kill(self) -> None:
        """A thread cannot be ended from outside."""
