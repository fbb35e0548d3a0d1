"""The part of the store interface that cancels jobs.

    cancel_job ─► unclaimed one-off: ends here
               └► else: cancel_slot = slot_no ─► signal_cancel ─► the holder looks: read_cancelled ─► stops the body
                                                                └ or learns it from its next heartbeat
                  no holder: due now ─► the next claim says `cancelled` ─► ended without a body

A slot is cancelled, not a job: when its completion wins, the next slot of a recurring job is another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from reltask.model.job import Cancellation, Hold, Orphans

BATCH = 1_000


class CancelStore(Protocol):
    """Cancelling jobs, and the children of jobs that have ended."""

    async def cancel_job(self, job_id: UUID, *, fence: int | None = None) -> Cancellation | None:
        """End an unclaimed one-off, or mark the current slot as cancelled; None: the job is gone or dead."""
        ...

    async def cancel_children(self, *, parents: Sequence[UUID] | None = None, limit: int = BATCH) -> Orphans:
        """End unclaimed jobs whose parent's slot has ended, and cancel those that run. Never waits.

        With `parents` only the children of these.
        """
        ...

    async def read_cancelled(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        """Those of this worker's claims whose slot is cancelled, according to the committed rows."""
        ...

    async def signal_cancel(self, job_ids: Sequence[UUID]) -> None:
        """Notify the holders of these jobs, as `signal` notifies workers."""
        ...
