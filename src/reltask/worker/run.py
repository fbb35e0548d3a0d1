"""One run in this worker: its claim, its body, and whether it may continue."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from reltask.errors import LockLost, Stopped
from reltask.model.clock import DatabaseTime
from reltask.model.job import Claim, Completion, Hold, Suspension
from reltask.model.pace import Pace
from reltask.model.task import TaskDefinition


class StopReason(StrEnum):
    """Why a body is asked to stop."""

    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    CANCELLED = "cancelled"
    """The slot was cancelled."""
    ABANDONED = "abandoned"
    """The claim can no longer be trusted."""
    LOST = "lost"
    """The claim is known to be gone."""

    @property
    def claim_is_doubtful(self) -> bool:
        return self in (StopReason.ABANDONED, StopReason.LOST)

    @property
    def overrules_waiting(self) -> bool:
        """Whether a durable function that was about to be suspended ends otherwise."""
        return self is StopReason.CANCELLED or self.claim_is_doubtful


Ending = Callable[[Any, BaseException | None], object]
"""Called with what a body returned, or else with what it raised."""


class Body(Protocol):
    """A call of a task's function: on the loop, in a thread or in a child process."""

    def start(self, ended: Ending) -> asyncio.Future[Any]:
        """Begin. `ended` is called once, on the loop, except for a coroutine that is cancelled before it begins."""
        ...

    def stop(self) -> None:
        """Ask it to end. From any thread, at any time, more than once."""
        ...

    def kill(self) -> None:
        """End it by force, where that is possible."""
        ...


BY_REQUEST = "cancelled by request"
"""Why a cancelled run has ended, in the ledger."""
_stopping = threading.Lock()
"""One for all runs: stops are rare, and each holds it for a moment."""


class Run(Struct, eq=False):
    """A claimed slot in this worker."""

    claim: Claim
    hold: Hold
    """The id and fence that every write names."""
    task: TaskDefinition
    pace: Pace
    time: DatabaseTime
    """The database's time at the claim; monotonic time since then is added to it."""
    keeps_arguments: bool = True
    """Whether the ledger keeps the arguments of jobs that end, by this worker's setting."""
    is_limited: bool = False
    """Whether it holds places of limits: its end lets other jobs begin."""
    stop_reason: StopReason | None = None
    stop_detail: str = ""
    starved: bool = False
    """Whether it was abandoned because this process could not renew it, not because the database did not answer."""
    redeclared: str | None = None
    """A new schedule that was declared for its job while it ran: its end is computed by this one."""
    is_completing: bool = False
    """Whether the body's own transaction has computed its end."""
    completion: Completion | None = None
    """What the body's own transaction has committed."""
    not_stored: str | None = None
    """Why the result of that transaction could not be stored."""
    suspension: Suspension | None = None
    """Set when a durable function waits, and its body is asked to end."""
    durable: Any = None
    """Its `Durable`, once it has made a durable call."""
    on_enqueue: Callable[[str], None] | None = None
    """Called when the body of a durable function enqueues or signals, with what it did."""
    has_progressed: bool = False
    """Whether it has recorded a step: its attempts are counted anew from there."""
    fatal: str | None = None
    """Why the job is dead at once, whatever its attempts: a step's value cannot be recorded."""
    started_at: float = float("-inf")
    """Monotonic."""
    progress_at: float = float("-inf")
    ending: asyncio.Future[Any] | None = None
    """Done when the body has ended."""
    has_ended: bool = False
    timer: asyncio.TimerHandle | None = None
    enforcing: asyncio.Task[None] | None = None
    """The task that kills a body which was asked to stop and does not."""
    body: Body | None = None
    """None before it begins and after it has ended."""
    asked_to_stop: Callable[[Run], object] | None = None
    """Called at each request to stop, on any thread."""

    @property
    def headers(self) -> str | None:
        """What jobs that its body enqueues inherit."""
        return self.claim.headers

    @property
    def attempt(self) -> int:
        """The attempt as the job's row has it now."""
        return 1 if self.has_progressed else self.claim.attempt

    def now(self, monotonic: float) -> datetime:
        """The database's time, as this worker estimates it."""
        return self.time.now(monotonic)

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Ask the body to stop.

        From any thread. The first reason stays, unless a later one doubts the claim.
        """
        with _stopping:
            if self.stop_reason is None or (reason.claim_is_doubtful and not self.stop_reason.claim_is_doubtful):
                self.stop_reason, self.stop_detail = reason, detail
        self.pass_on()

    def suspend(self, suspension: Suspension) -> None:
        """End the body, because everything that it does is waiting."""
        self.suspension = suspension
        self.pass_on()

    def kill(self) -> None:
        """End the body by force, where that is possible."""
        body = self.body
        if body is not None:
            body.kill()

    def pass_on(self) -> None:
        """Pass a request to stop to the body, if there is one."""
        body = self.body
        if body is not None and self.asked_to_stop is not None:
            body.stop()
            self.asked_to_stop(self)

    def check(self) -> None:
        """Raise if the body should not go on."""
        if self.stop_reason is None:
            return
        if self.stop_reason.claim_is_doubtful:
            raise LockLost(f"This run's claim is no longer to be trusted: {self.stop_detail}.")
        raise Stopped(self.stop_detail or self.stop_reason)


def log_fields(claim: Claim, worker: str) -> dict[str, object]:
    """The fields of every log line about a run."""
    return {"worker": worker, "job": str(claim.job_id), "slot": claim.slot_no, "fence": claim.fence}


def not_run(value: object) -> str | None:
    """Why a function that returned this has not done its work yet; None: it has."""
    if not _is_waiting(value):
        return None
    if inspect.iscoroutine(value):
        value.close()  # else Python warns later that it was never awaited
    kind = type(value).__name__
    return f"The function returned a {kind} that was never run: make its wrapper `async def`, and await it there."


def _is_waiting(value: object) -> bool:
    """Whether this is work that has not begun. A future runs by itself."""
    if inspect.iscoroutine(value):
        return inspect.getcoroutinestate(value) == inspect.CORO_CREATED
    if inspect.isgenerator(value):
        return inspect.getgeneratorstate(value) == inspect.GEN_CREATED
    return inspect.isasyncgen(value) or (inspect.isawaitable(value) and not asyncio.isfuture(value))
