"""The part of the store interface that wakes sleepers: signals after a commit, and listening for them.

A lost signal costs time, never a job: a listener also looks at intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime
from typing import Protocol
from uuid import UUID

News = datetime | int | None
"""What a signal says: the time at which something becomes due; None: it is due now; a number: it is
due now, and this many workers should look, not as many as usual."""
Wake = Callable[[News], None]
LeaseWake = Callable[[str | None], None]
"""Called with the name of a lease that was given back; None: look at all of them."""
Cancelled = Callable[[Sequence[UUID]], None]
"""Called with jobs that are cancelled; empty: any may be."""
Ids = Callable[[Sequence[UUID]], None]
"""Called with jobs whose results are awaited, or that have ended; empty: any may have."""
Lost = Callable[[str], None]
"""Called with the reason when signals may not have arrived, and the store listens again."""


class WakingStore(Protocol):
    """Signals, where the database has them."""

    async def signal(self, due_at: datetime | None = None, *, wanted: int | None = None) -> None:
        """After the commit: notify sleeping workers that a job is due, now or at `due_at`.

        `wanted` of the idle ones should look; None: as many as usual.

        Does nothing where the database has no signals. A lost signal costs time, not a job. So a
        signal that cannot be sent is no error: the write before it is committed, and a caller that
        saw an error would write again.
        """
        ...

    def listen(
        self,
        wake: Wake,
        lease: LeaseWake | None = None,
        lost: Lost | None = None,
        *,
        cancelled: Cancelled | None = None,
        awaited: Ids | None = None,
        ended: Ids | None = None,
    ) -> AbstractAsyncContextManager[bool]:
        """Call `wake` at each signal while the block is open; yields False where the database has no signals.

        `lease`, `cancelled`, `awaited` and `ended` are called at signals about leases and such jobs, over the
        same connection. When that connection is lost, silently or not, the store notices within seconds,
        calls `lost`, listens again, and calls `wake`.
        """
        ...

    async def signal_awaited(self, job_ids: Sequence[UUID]) -> None:
        """Ask the workers to signal the ends of these jobs, for a while."""
        ...

    async def signal_ended(self, job_ids: Sequence[UUID]) -> None:
        """Notify those who wait for the results of these jobs."""
        ...
