"""Takes expired claims away from their owners. Used by pollers and by the maintenance."""

from __future__ import annotations

from reltask import events
from reltask.stores.store import BATCH, Store


async def reclaim(store: Store, *, worker: str, emit: events.Subscriber, limit: int = BATCH) -> int:
    """Reclaim one batch, and return its size. If that is `limit`, there may be more."""
    reclaimed = await store.reclaim_jobs(limit=limit)
    for lost in reclaimed:
        emit(
            events.JobReclaimed(
                worker=worker,
                task=lost.task,
                job_id=lost.job_id,
                slot_no=lost.slot_no,
                fence=lost.fence,
                owner=lost.worker,
                dead=lost.dead,
            )
        )
    if len(reclaimed) > 1:
        await store.signal()  # each is claimed alone, so wake more than one worker
    return len(reclaimed)
