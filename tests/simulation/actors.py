"""Bodies in threads and in child processes, in virtual time.

    the loop's thread                                the body's own thread
    ─────────────────                                ──────────────────────────────────────────
    a step of `w1/threads`  ──── your turn ────►     the body goes on, until it sleeps or ends
                            ◄──── my turn ─────      sleep(seconds) sets the timer of its next step

One of the two runs at a time, so a seed still replays exactly. The threads of a worker stop with the whole worker, but
not with its event loop alone. A child is played by the thread that drives it, in place of `worker/posix.py`: it goes on
while its worker is paused, can be asked to stop, and can be killed.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import Any, NamedTuple, Self
from uuid import UUID

import msgspec

from reltask.worker.process import Message, Order
from reltask.worker.threads import ThreadPool
from tests.simulation.loop import PROCESS, SimLoop

THREADS, CHILDREN = "threads", "children"
"""What the parts of a node are called, after its name and a slash."""


class Over(BaseException):
    """The history has ended: what still waits in a thread ends with it."""


class Actor:
    """One body in a thread of its own, which runs only while the loop waits for it."""

    def __init__(self, loop: SimLoop, process: str, function: Callable[[], Any], future: Future[Any]) -> None:
        self.loop = loop
        self._function = function
        self._future = future
        self._inside, self._at_its_end = contextvars.copy_context(), contextvars.copy_context()
        self._inside.run(ACTOR.set, self)
        self._steps: contextvars.Context
        self.move_to(process)
        self._mine, self._loops = threading.Semaphore(0), threading.Semaphore(0)
        self._timer: Any = None
        self._is_over = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        loop.call_soon(self._step, context=self._steps)

    def move_to(self, process: str) -> None:
        """Take further steps as a part of this process."""
        self._steps = contextvars.copy_context()
        self._steps.run(PROCESS.set, process)

    def sleep(self, seconds: float) -> None:
        """In its thread: let time pass, until then or until it is woken."""
        self._timer = self.loop.call_later(seconds, self._step, context=self._steps)
        self._loops.release()
        self._mine.acquire()
        if self._is_over:
            raise Over

    def wake(self) -> None:
        """On the loop: end its sleep."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.loop.call_soon(self._step, context=self._steps)

    def finish(self) -> None:
        """End what still waits."""
        self._is_over = True
        if self._thread.is_alive():
            self._mine.release()
            self._thread.join()

    def _step(self) -> None:
        self._timer = None
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._mine.release()
        self._loops.acquire()

    def _run(self) -> None:
        try:
            result = self._inside.run(self._function)
        except BaseException as error:  # noqa: BLE001 - the future carries it to the run
            end = partial(self._future.set_exception, error)
        else:
            end = partial(self._future.set_result, result)
        if not self._is_over:
            self._at_its_end.run(end)
        self._loops.release()


ACTOR: ContextVar[Actor] = ContextVar("actor")
"""The actor of the body that asks."""


class SimThreads(ThreadPool):
    """The threads of one worker."""

    def __init__(self, loop: SimLoop, node: str) -> None:
        super().__init__()
        self._loop = loop
        self._node = node
        self._actors: list[Actor] = []

    def submit(self, function: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._actors.append(Actor(self._loop, f"{self._node}/{THREADS}", function, future))
        return future

    def close(self) -> None:
        """They end with their bodies, or with the history."""

    def finish(self) -> None:
        """End the bodies of a history that has ended."""
        for actor in self._actors:
            actor.finish()


class ChildRun(NamedTuple):
    """What a child knows of its run."""

    task: str
    job_id: UUID
    fence: int


Act = Callable[["SimChild", ChildRun], Message | None]
"""What the function of a child does: it returns what the child answers; None: it was killed."""


class SimChild:
    """Has what `subprocess.Popen` has, as far as `worker/process.py` uses it."""

    def __init__(self, act: Act) -> None:
        self._act = act
        self.actor = ACTOR.get()
        self.actor.move_to(PROCESS.get().replace(THREADS, CHILDREN))
        self.is_asked = self.is_killed = False
        self.returncode = 0
        self.stdin, self.stdout = self, self._lines()
        self._order: Order

    def write(self, order: bytes) -> None:
        self._order = msgspec.json.decode(order, type=Order)

    def flush(self) -> None:
        """Nothing is kept back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """It has ended."""

    def _lines(self) -> Iterator[bytes]:
        facts = self._order.facts
        message = self._act(self, ChildRun(facts["task"], UUID(facts["job_id"]), facts["fence"]))
        if message is not None:
            yield msgspec.json.encode(message)
        else:
            self.returncode = -9


class SimPosix:
    """Takes the place of `worker/posix.py` for child processes."""

    def __init__(self, act: Act) -> None:
        self._act = act

    def spawn(self, _command: list[str]) -> SimChild:
        return SimChild(self._act)

    @staticmethod
    def ask_to_stop(child: SimChild) -> None:
        child.is_asked = True
        child.actor.wake()

    @staticmethod
    def kill(child: SimChild) -> None:
        child.is_killed = True
        child.actor.wake()
