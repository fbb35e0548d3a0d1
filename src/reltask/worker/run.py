"""One run in this worker: its claim, its body, and whether it may still go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from msgspec import Struct

from reltask.errors import LockLost, Stopped
from reltask.model.clock import DatabaseTime
from reltask.model.job import Claim, Completion, Hold
from reltask.model.pace import Pace
from reltask.model.task import TaskDefinition


class StopReason(StrEnum):
    """Why a body is asked to stop."""

    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"
    ABANDONED = "abandoned"
    """The claim can no longer be trusted."""
    LOST = "lost"
    """The claim is known to be gone."""

    @property
    def claim_is_doubtful(self) -> bool:
        return self in (StopReason.ABANDONED, StopReason.LOST)


Ending = Callable[[Any, BaseException | None], object]
"""Is told what a body returned, or else what it raised."""


class Body(Protocol):
    """A task's function on its way: on the loop, in a thread or in a child process."""

    def start(self, ended: Ending) -> asyncio.Future[Any]:
        """Begin. `ended` is told once, on the loop; a coroutine that was cancelled before it began cannot tell it."""
        ...

    def stop(self) -> None:
        """Ask it to end. From any thread, at any time, more than once."""
        ...

    def kill(self) -> None:
        """End it by force, where that is possible."""
        ...


_stopping = threading.Lock()
"""One for all runs: stops are rare, and each holds it for a moment."""


class Run(Struct, eq=False):
    """A claimed slot in this worker."""

    claim: Claim
    hold: Hold
    """What it presents with every write."""
    task: TaskDefinition
    pace: Pace
    time: DatabaseTime
    """The database's time at the claim, to be carried forward by monotonic time."""
    stop_reason: StopReason | None = None
    stop_detail: str = ""
    redeclared: str | None = None
    """The schedule that its job was given while it ran: its end is computed by this one."""
    is_completing: bool = False
    """Whether the body's own transaction has computed its end."""
    completion: Completion | None = None
    """What the body's own transaction has committed."""
    not_stored: str | None = None
    """Why the result of that transaction could not be kept."""
    started_at: float = float("-inf")
    """Monotonic."""
    progress_at: float = float("-inf")
    ending: asyncio.Future[Any] | None = None
    """Done when the body has ended."""
    has_ended: bool = False
    timer: asyncio.TimerHandle | None = None
    enforcing: asyncio.Task[None] | None = None
    """Sees to it that a body which was asked to stop does."""
    _body: Body | None = None
    _asked_to_stop: Callable[[Run], object] | None = None

    def now(self, monotonic: float) -> datetime:
        """The database's time, as far as this worker can tell."""
        return self.time.now(monotonic)

    def renewed_until(self, since: float) -> float | None:
        """When a claim of that time is past its task's timeout and grace, and is left to expire; None: never."""
        timeout = self.task.options.timeout
        return None if timeout is None else since + timeout.total_seconds() + self.pace.stop_grace

    def begin(self, body: Body, ended: Ending, asked_to_stop: Callable[[Run], object]) -> None:
        """Start the body; a stop that came first is passed on. Each stop calls `asked_to_stop`, on any thread."""
        self.ending = body.start(ended)
        self._asked_to_stop, self._body = asked_to_stop, body
        if self.stop_reason is not None:  # read after the body can be seen: whoever stops now sees it, or is seen here
            self._pass_on()

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Ask the body to stop. From any thread. The first reason stays, unless the claim turns out to be doubtful."""
        with _stopping:
            if self.stop_reason is None or (reason.claim_is_doubtful and not self.stop_reason.claim_is_doubtful):
                self.stop_reason, self.stop_detail = reason, detail
        self._pass_on()

    def end(self) -> bool:
        """The body has ended, and is let go: it may know this run. Whether this is new."""
        new, self.has_ended, self._body = not self.has_ended, True, None
        return new

    def kill(self) -> None:
        """End the body by force, where that is possible."""
        body = self._body
        if body is not None:
            body.kill()

    def _pass_on(self) -> None:
        body = self._body
        if body is not None and self._asked_to_stop is not None:
            body.stop()
            self._asked_to_stop(self)

    def check(self) -> None:
        """Raise if the body should not go on."""
        if self.stop_reason is None:
            return
        if self.stop_reason.claim_is_doubtful:
            raise LockLost(f"This run's claim is no longer to be trusted: {self.stop_detail}.")
        raise Stopped(self.stop_detail or self.stop_reason)


def log_fields(claim: Claim, worker: str) -> dict[str, object]:
    """What every log line about a run carries."""
    return {"worker": worker, "job": str(claim.job_id), "slot": claim.slot_no, "fence": claim.fence}
