"""What people decide about queues and tasks while workers run.

A *pause* keeps workers from claiming the jobs of a queue or a task. It is one row, and the claim reads it in its own
statement, so it holds everywhere from the moment of its commit:

    pause ───► row ───► every claim that begins later leaves these lanes out; what runs goes on
    resume ──► row removed ───► signal: workers look at once

A claim that was sent before the pause may be answered after it: what it took counts as running.
"""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum

from msgspec import Struct


class PauseKind(StrEnum):
    """What is paused."""

    QUEUE = "queue"
    TASK = "task"


class Pause(Struct, frozen=True, kw_only=True):
    """A queue or a task of which nothing is to be claimed."""

    kind: PauseKind
    name: str
    reason: str | None = None
    paused_by: str


class PauseView(Struct, frozen=True, kw_only=True):
    """A queue or a task of which nothing is claimed."""

    kind: PauseKind
    name: str
    reason: str | None
    paused_by: str
    paused_at: datetime
    due: int
    """Its jobs that are due and wait."""

    def covers(self, *, queue: str, task: str) -> bool:
        """Whether it keeps the jobs of this task in this queue from being claimed."""
        return self.name == (queue if self.kind is PauseKind.QUEUE else task)
