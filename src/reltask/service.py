"""Start, stop and a loop: written once, so that cancellation is handled in one place.

A service supplies `tick()`: do what is due, and return the seconds until the next call (None: only when woken).
`wake()` may be called from any thread. A service runs on its caller's loop, or on a thread with a loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import threading
from abc import ABC, abstractmethod
from uuid import UUID

ERROR_PAUSE = 1.0
"""Seconds that a service pauses after an unexpected error."""

SHORTEST_PAUSE = 1e-6
"""The shortest pause: an event loop may fire a timer early by less than its clock's resolution."""


def worker_id(name: str | None, rng: random.Random) -> str:
    """`name_host_pid_uuid`: unique even with equal host names and reused process ids."""
    parts = [name] if name else []
    return "_".join([*parts, socket.gethostname(), str(os.getpid()), UUID(int=rng.getrandbits(128), version=4).hex])


class Service(ABC):
    """Something that runs until it is stopped."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._woken = asyncio.Event()
        self._stopping = False

    @abstractmethod
    async def tick(self) -> float | None:
        """Do what is due; return the seconds until the next time, or None to wait for `wake()`."""

    async def closed(self) -> None:  # noqa: B027 - most services have nothing to clean up
        """Called once on the service's own loop, after the last tick."""

    def wake(self) -> None:
        """Tick now. Callable from any thread; after the end it does nothing."""
        if threading.get_ident() == self._thread:
            self._woken.set()  # cheaper: waking a loop from another thread costs a system call
        elif self._loop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._woken.set)

    def finish(self) -> None:
        """Ask the loop to end after the current tick. Callable from any thread."""
        self._stopping = True
        self.wake()

    async def run(self) -> None:
        """Tick until asked to finish."""
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        try:
            while not self._stopping:
                self._woken.clear()
                pause = await self._tick()
                if not self._stopping:
                    await self._wait(pause)
        finally:
            await self.closed()

    async def _tick(self) -> float | None:
        """One tick. An unexpected error is logged and the service continues: the worker needs each of its parts."""
        try:
            return await self.tick()
        except Exception:
            logging.getLogger("reltask").exception(
                "Unexpected error in %s; it continues in %g s", type(self).__name__, ERROR_PAUSE
            )
            return ERROR_PAUSE

    async def _wait(self, pause: float | None) -> None:
        if pause is not None and pause <= 0:
            await asyncio.sleep(0)
            return
        loop = asyncio.get_running_loop()
        timer = None if pause is None else loop.call_later(max(pause, SHORTEST_PAUSE), self._woken.set)
        try:
            await self._woken.wait()
        finally:
            if timer is not None:
                timer.cancel()


class Host(ABC):
    """Where a service runs."""

    def __init__(self, service: Service) -> None:
        self.service = service

    @abstractmethod
    async def start(self) -> None:
        """Start the service."""

    @abstractmethod
    async def stop(self) -> None:
        """Ask the service to end, and wait until it has."""


class LoopHost(Host):
    """Runs a service as a task of the calling loop."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self.service.run(), name=type(self.service).__name__)

    async def stop(self) -> None:
        self.service.finish()
        if self._task is None:
            return
        try:
            await self._task
        except asyncio.CancelledError:
            waiting = asyncio.current_task()
            if waiting is None or waiting.cancelling():
                raise
            # else the patience of another stop has ended, and with it the service

    async def ended(self) -> None:
        """Wait until the service has ended. Cancelling this wait does not cancel the service's last tick."""
        if self._task is not None:
            await asyncio.wait({self._task})


class ThreadHost(Host):
    """Runs a service on a thread and a loop of its own, so that a blocked caller's loop does not block it."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        self._thread = threading.Thread(target=self._main, name=type(service).__name__, daemon=True)
        self._done = threading.Event()
        self._error: BaseException | None = None

    def _main(self) -> None:
        try:
            asyncio.run(self.service.run())
        except BaseException as error:  # noqa: BLE001 - raised again by stop()
            self._error = error
        finally:
            self._done.set()

    async def start(self) -> None:
        self._thread.start()

    async def stop(self) -> None:
        self.service.finish()
        await asyncio.get_running_loop().run_in_executor(None, self._done.wait)
        if self._error is not None:
            raise self._error
