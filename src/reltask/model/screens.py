"""Values of the dashboard's lists: pages with a cursor, dead letters with their error, samples of runs, actions."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from msgspec import Struct

from reltask.model.views import JobView

T = TypeVar("T")


class ListedState(StrEnum):
    """The lists of jobs, each in an order of its own. A job is in exactly one of them."""

    DUE = "due"
    LATER = "later"
    SUSPENDED = "suspended"
    CLAIMED = "claimed"
    PAUSED = "paused"
    DEAD = "dead"


LATEST_FIRST = frozenset({ListedState.PAUSED, ListedState.DEAD})
"""The lists that begin with the latest time; the others begin with the earliest."""


class Cursor(NamedTuple):
    """The last row of a page: the next page begins after it."""

    at: datetime
    id: UUID


class Page(Struct, Generic[T], frozen=True):
    """Some rows, and where the next page begins; None: there is none."""

    rows: list[T]
    next: Cursor | None


class ListedJob(Struct, frozen=True):
    """A job, and the time that its list is ordered by."""

    at: datetime
    job: JobView


class DeadLetter(Struct, frozen=True, kw_only=True):
    """A dead job with the end of its last error."""

    id: UUID
    task: str
    key: str | None
    queue: str
    fence: int
    attempt: int
    dead_at: datetime
    outcome: str | None
    error: str | None
    """None: the run is no longer in the ledger, or left none."""

    @property
    def reason(self) -> str:
        """The last line of the error: in a traceback, what was raised."""
        lines = [line for line in (self.error or "").splitlines() if line.strip()]
        return lines[-1].strip() if lines else (self.outcome or "unknown")

    @property
    def signature(self) -> str:
        """The reason without what differs from job to job: numbers, ids and quoted values."""
        return signature(self.reason)


class RunSample(NamedTuple):
    """One run: its length, and how late it began, in seconds."""

    task: str
    queue: str
    outcome: str
    seconds: float
    late: float


class Action(Struct, frozen=True, kw_only=True):
    """What an operator did, or was about to do."""

    id: UUID
    at: datetime
    actor: str
    action: str
    target: str
    seen: str | None
    """The fence or term that the page showed."""
    jobs: int
    """How many it was meant for."""
    outcome: str | None
    """None: it was begun, and may or may not be done."""
    changed: int | None


class NewAction(Struct, frozen=True, kw_only=True):
    """An action that is about to be done."""

    id: UUID
    actor: str
    action: str
    target: str
    seen: str | None = None
    jobs: int = 1


class Payload(Struct, frozen=True):
    """What a job was given, as JSON."""

    args: str | None
    """None: it has ended, and the ledger does not keep its arguments."""
    headers: str | None
    task: str
    queue: str
    priority: int | None
    """None: a worker of an older version has ended it."""


_SAME = [
    (re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}"), "<id>"),
    (re.compile(r"'(?:[^'\\]|\\.){0,200}'|\"(?:[^\"\\]|\\.){0,200}\""), "'…'"),
    (re.compile(r"0x[0-9a-fA-F]+"), "<address>"),
    (re.compile(r"\d+(?:\.\d+)?"), "N"),
]


def signature(reason: str) -> str:
    """An error without numbers, ids and quoted values: equal for errors of the same kind."""
    for pattern, same in _SAME:
        reason = pattern.sub(same, reason)
    return reason[:200]


def page_of(rows: list[ListedJob], limit: int) -> Page[ListedJob]:
    """A page of `limit` rows, from one row more: that one says whether there is a next page."""
    shown = rows[:limit]
    return Page(shown, Cursor(shown[-1].at, shown[-1].job.id) if len(rows) > limit else None)
