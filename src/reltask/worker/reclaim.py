"""Taking ended claims away from their owners, and telling of each: done by every poller, and by the maintenance."""

from __future__ import annotations

from reltask import events
from reltask.model.job import Reclaimed
from reltask.stores.store import BATCH, Store


async def reclaim(store: Store, *, worker: str, emit: events.Subscriber, limit: int = BATCH) -> int:
    """Reclaim one batch; how many there were. With `limit` of them there may be more."""
    reclaimed = await store.reclaim_jobs(limit=limit)
    for lost in reclaimed:
        emit(_event(worker, lost))
    if len(reclaimed) > 1:
        await store.signal()  # each of them is claimed alone: one worker is not enough
    return len(reclaimed)


def _event(worker: str, lost: Reclaimed) -> events.JobReclaimed:
    return events.JobReclaimed(
        worker=worker,
        task=lost.task,
        job_id=lost.job_id,
        slot_no=lost.slot_no,
        fence=lost.fence,
        owner=lost.worker,
        dead=lost.dead,
    )
