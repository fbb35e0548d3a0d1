"""Leases by name: what is asked of the database, and what it answers.

A lease has one holder at a time. Its `term` grows by one at *every* acquisition, so that a write made under an older
term can be told from one made under the newer. `holder` says who, for people; `acquisition` says which of the holder's
tries it was, so that a try whose answer was lost can be sent again and finds the lease that it has already won.

    waiting ──acquire──► held ──beat──► held ──…──► resigned, rotated, stalled, or not renewed for a TTL
       ▲                 term 7                               │
       └──────────────── somebody else: term 8 ◄──────────────┘

Whoever waits is told its rank among those that wait. See `engine/leader.py` for what follows from it.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

MAINTENANCE = "reltask:maintenance"
"""The workers' own lease: whoever holds it keeps the database in order."""


class Term(NamedTuple):
    """One leadership of one lease: what fences a leader's writes."""

    lease: str
    number: int


class LeaseRequest(Struct, frozen=True, kw_only=True):
    """One try to acquire a lease."""

    name: str
    holder: str
    acquisition: UUID
    ttl: timedelta
    waits: timedelta | None = None
    """If refused, how long to count the holder among those that wait. None: it does not wait; nothing is written."""


class Grant(Struct, frozen=True, kw_only=True):
    """A lease as its holder knows it: every beat and the resignation name both term and acquisition."""

    term: Term
    acquisition: UUID


class LeaseAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a try."""

    term: int | None
    """Of the lease that was acquired; None: somebody else holds it."""
    now: datetime
    expires_at: datetime
    """When the lease ends unless it is renewed, whoever holds it."""
    rank: int = 0
    """How many of those that wait come before this one, in an order that all of them see alike."""
    waiting: int = 1
    """How many wait, this one included."""
