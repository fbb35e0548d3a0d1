"""Leases by name: what is asked of the database, and what it answers.

A lease has one holder at a time. Its `term` grows by one at *every* acquisition, so that a write made under an older
term can be recognised. `holder` names the process for users; `acquisition` identifies the try, so that a try whose
answer was lost can be sent again and finds the lease that it has already won.

    waiting ──acquire──► held ──beat──► held ──…──► resigned, rotated, stalled, or not renewed for a TTL
       ▲                 term 7                               │
       └──────────────── another holder: term 8 ◄─────────────┘

A candidate that waits receives its rank among those that wait; `leases/candidacy.py` says what it does with it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

MAINTENANCE = "reltask:maintenance"
"""The workers' own lease: its holder does the maintenance."""


class Term(NamedTuple):
    """One term of one lease; it fences the holder's writes."""

    lease: str
    number: int


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """One try to acquire a lease."""

    name: str
    holder: str
    acquisition: UUID
    ttl: timedelta
    waits: timedelta | None = None
    """How long a refused candidate counts as waiting. None: it does not wait, and nothing is written."""


class Grant(Struct, frozen=True, kw_only=True):
    """A held lease: every heartbeat and the resignation name both term and acquisition."""

    term: Term
    acquisition: UUID


class LeaseAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a try."""

    term: int | None
    """The term that was acquired; None: another process holds the lease."""
    now: datetime
    expires_at: datetime
    """When the lease expires unless its current holder renews it."""
    rank: int = 0
    """How many waiting candidates come before this one; all of them see the same order."""
    waiting: int = 1
    """How many wait, this one included."""
