"""An event loop that owns the time, and runs one step of one simulated process at a time.

    processes   world   w1 ▌▌   w1/beat ▌   w2 ▌▌▌  (paused)       ▌ = a step that is ready
                        ▲
                        └ the seed picks a process; within a process steps keep their order, as on a real loop

Each step belongs to the process whose context it was created in. A paused process keeps its steps until it is resumed,
while time goes on, as under SIGSTOP. A dead process never takes another step, not even for its `finally` blocks, as
under SIGKILL. When no step is ready, the clock jumps to the next timer.
"""

from __future__ import annotations

import asyncio
import contextvars
import heapq
import random
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

PROCESS: contextvars.ContextVar[str] = contextvars.ContextVar("process", default="world")


class Stuck(Exception):
    """Nothing is ready, and no timer is set."""


class Spinning(Exception):
    """More than MOST_STEPS steps in one history: an endless loop."""


MOST_STEPS = 200_000
"""A history takes about three thousand steps."""


class SimLoop(asyncio.BaseEventLoop):
    """One thread, one clock, many processes."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self._rng = rng
        self._seconds = 0.0
        self._ready_of: dict[str, deque[asyncio.Handle]] = {}
        """The steps of each process that has any, in their order."""
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._sequence = 0
        self._paused: set[str] = set()
        self._dead: set[str] = set()
        self.tasks: list[asyncio.Task[Any]] = []
        """Every task ever made.

        Kept, so that the garbage collector does not close a dead process's coroutines.
        """
        self.steps = 0
        self.set_task_factory(self._make_task)

    # Processes

    def pause(self, process: str) -> None:
        """Take no step of this process; time goes on."""
        self._paused.add(process)

    def resume(self, process: str) -> None:
        """Continue a paused process."""
        self._paused.discard(process)

    def kill(self, process: str) -> None:
        """Never take a step of this process again."""
        self._dead.add(process)
        self._ready_of.pop(process, None)

    def is_paused(self, process: str) -> bool:
        return process in self._paused

    def spawn(self, process: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine as part of this process."""
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        return self.create_task(work, context=context)

    # The loop

    def time(self) -> float:
        return self._seconds

    def call_soon(  # type: ignore[override]  # the base class's signature differs between Python versions
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._add(handle)
        return handle

    call_soon_threadsafe = call_soon  # type: ignore[assignment]  # there is one thread

    def call_at(  # type: ignore[override]  # as above
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._sequence += 1
        heapq.heappush(self._timers, (when, self._sequence, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when its time comes."""

    def _run_once(self) -> None:
        """One step. Nothing in a simulation runs more often, so it is written for speed."""
        runnable = [process for process in self._ready_of if process not in self._paused]
        if not runnable:
            self._jump()
            return
        process = runnable[0] if len(runnable) == 1 else self._rng.choice(runnable)
        steps = self._ready_of[process]
        handle = steps.popleft()
        if not steps:
            del self._ready_of[process]
        if not handle._cancelled:
            self.steps += 1
            if self.steps > MOST_STEPS:
                raise Spinning
            handle._run()

    def _add(self, handle: asyncio.Handle) -> None:
        process = handle._context.get(PROCESS, "world")  # type: ignore[attr-defined]
        if process in self._ready_of:
            self._ready_of[process].append(handle)
        elif process not in self._dead:
            self._ready_of[process] = deque((handle,))

    def _jump(self) -> None:
        """Nothing is ready: set the clock to the next timer, and run all timers of that moment."""
        while self._timers and self._timers[0][2]._cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            raise Stuck
        self._seconds = max(self._seconds, self._timers[0][0])
        while self._timers and self._timers[0][0] <= self._seconds:
            timer = heapq.heappop(self._timers)[2]
            if not timer._cancelled:
                self._add(timer)

    def _make_task(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=loop, **options)
        task._log_destroy_pending = False  # type: ignore[attr-defined]  # the tasks of dead processes never end
        self.tasks.append(task)
        return task

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """An exception in a callback is a finding, unless it belongs to a dead process."""
        error = context.get("exception")
        if "never retrieved" in context["message"]:
            return
        raise error if error is not None else RuntimeError(context["message"])
