"""One run in this worker: its claim, its body, and whether it may still go on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from reltask.clock import DatabaseTime
from reltask.errors import LockLost, Stopped
from reltask.job import Claim, Completion
from reltask.lease import Pace
from reltask.tasks import TaskDefinition


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


class Body(Protocol):
    """A task's function on its way: on the loop, in a thread or in a child process."""

    def start(self) -> asyncio.Future[Any]:
        """Begin; the future ends with what the function returned or raised."""
        ...

    def stop(self) -> None:
        """Ask it to end. From any thread, at any time, more than once."""
        ...

    def kill(self) -> None:
        """End it by force, where that is possible."""
        ...


_stopping = threading.Lock()
"""One for all runs: stops are rare, and each holds it for a moment."""


class Run:
    """A claimed slot in this worker."""

    __slots__ = (
        "_asked_to_stop",
        "_body",
        "claim",
        "completion",
        "ending",
        "enforcing",
        "hold",
        "pace",
        "progress_at",
        "started_at",
        "stop_detail",
        "stop_reason",
        "task",
        "time",
        "timer",
    )

    def __init__(self, claim: Claim, task: TaskDefinition, pace: Pace, time: DatabaseTime) -> None:
        self.claim = claim
        self.task = task
        self.pace = pace
        self.time = time
        """The database's time at the claim, to be carried forward by monotonic time."""
        self.hold = claim.hold
        """What it presents with every write."""
        self.stop_reason: StopReason | None = None
        self.stop_detail = ""
        self.completion: Completion | None = None
        """What the body's own transaction has committed."""
        self.started_at = time.at
        """Monotonic."""
        self.progress_at = float("-inf")
        self.ending: asyncio.Future[Any] | None = None
        """Ends with what the body returned or raised."""
        self.timer: asyncio.TimerHandle | None = None
        self.enforcing: asyncio.Task[None] | None = None
        """Sees to it that a body which was asked to stop does."""
        self._body: Body | None = None
        self._asked_to_stop: Callable[[Run], object] | None = None

    def now(self, monotonic: float) -> datetime:
        """The database's time, as far as this worker can tell."""
        return self.time.now(monotonic)

    def renewed_until(self, since: float) -> float | None:
        """When a claim of that time is past its task's timeout and grace, and is left to expire; None: never."""
        timeout = self.task.options.timeout
        return None if timeout is None else since + timeout.total_seconds() + self.pace.stop_grace

    def begin(self, body: Body, asked_to_stop: Callable[[Run], object]) -> asyncio.Future[Any]:
        """Start the body; a stop that came first is passed on. Each stop calls `asked_to_stop`, on any thread."""
        self.ending = body.start()
        self._asked_to_stop, self._body = asked_to_stop, body
        if self.stop_reason is not None:  # read after the body can be seen: whoever stops now sees it, or is seen here
            self._pass_on()
        return self.ending

    def stop(self, reason: StopReason, detail: str = "") -> None:
        """Ask the body to stop. From any thread. The first reason stays, unless the claim turns out to be doubtful."""
        with _stopping:
            if self.stop_reason is None or (reason.claim_is_doubtful and not self.stop_reason.claim_is_doubtful):
                self.stop_reason, self.stop_detail = reason, detail
        self._pass_on()

    def kill(self) -> None:
        """End the body by force, where that is possible."""
        if self._body is not None:
            self._body.kill()

    def _pass_on(self) -> None:
        if self._body is not None and self._asked_to_stop is not None:
            self._body.stop()
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
