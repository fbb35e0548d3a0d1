"""Reclaims expired claims, but only those seen expired twice.

On SQLite the database's clock is the host's. When a laptop wakes up, or an administrator sets the clock, every claim
looks expired at the same moment, although its owner is alive and about to send a heartbeat. So the first read only
records the expired claims; a claim is reclaimed when a later read, `confirm` of monotonic time afterwards, finds the
same heartbeat.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple
from uuid import UUID

from reltask.model.job import Reclaimed
from reltask.stores.sqlite import values
from reltask.stores.sqlite.connections import FileTransaction, Session


class _Stale(NamedTuple):
    """An expired claim; after a heartbeat it is a different value."""

    id: str
    fence: int
    heartbeat_at: int


class Reclaimer:
    """Records which claims were seen expired, and since when."""

    def __init__(self, confirm: timedelta, monotonic: Callable[[], float]) -> None:
        self._confirm = confirm.total_seconds()
        self._monotonic = monotonic
        self._seen: dict[_Stale, float] = {}

    def reclaim_jobs(self, session: Session, limit: int) -> list[Reclaimed]:
        """Reclaim what has been seen expired for long enough."""
        stale = session.read(lambda transaction: _read_stale(transaction, limit))
        now = self._monotonic()
        self._seen = {claim: self._seen.get(claim, now) for claim in stale}
        confirmed = [claim for claim, since in self._seen.items() if now - since >= self._confirm]
        return session.write(lambda transaction: _take(transaction, confirmed)) if confirmed else []


def _read_stale(transaction: FileTransaction, limit: int) -> list[_Stale]:
    rows = transaction.run(transaction.statements("reclaim_jobs")[0], limit=limit)
    return [_Stale(row["id"], row["fence"], row["heartbeat_at"]) for row in rows]


def _take(transaction: FileTransaction, stale: list[_Stale]) -> list[Reclaimed]:
    _, *writes = transaction.statements("reclaim_jobs")
    lost, freed, *_ = [transaction.run(statement, stale=values.batch(stale)) for statement in writes]
    dead = {row["id"] for row in freed if row["dead"]}
    return [
        Reclaimed(
            job_id=UUID(row["id"]),
            fence=row["fence"],
            task=row["task"],
            slot_no=row["slot_no"],
            worker=row["worker"],
            dead=row["id"] in dead,
        )
        for row in lost
    ]
