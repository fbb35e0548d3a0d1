"""Cancelling jobs, and the children that cancelled jobs leave."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from reltask.errors import UnknownJob
from reltask.model.job import Cancellation, Outcome
from reltask.stores.store import BATCH, Store


async def cancel_job(store: Store, job_id: UUID) -> Cancellation:
    """Cancel a job, and say what became of it: what the ledger says, if it has ended."""
    while True:
        answer = await store.cancel_job(job_id)
        if answer is Cancellation.CANCELLED:
            await cancel_children(store, [job_id])
            await store.signal_ended([job_id])
        elif answer is Cancellation.STOPPING:
            await store.signal_cancel([job_id])
            await store.signal()  # if no worker holds it, one has to claim it
        if answer is not None:
            return answer
        for end in await store.read_results([job_id]):
            if end.outcome is None and not end.dead:
                raise UnknownJob(
                    f"There is no job {job_id}, and the ledger has no run of it.",
                    remedy="Its runs may have been pruned from the ledger.",
                )
            return Cancellation.CANCELLED if end.outcome is Outcome.CANCELLED else Cancellation.ENDED
        # It was dead, and was retried between the two statements.


async def cancel_children(store: Store, parents: Sequence[UUID]) -> None:
    """End the children of jobs that have ended, and the children of these; those that run are stopped."""
    while parents:
        orphans = await store.cancel_children(parents=parents[:BATCH])
        if orphans.stopping:
            await store.signal_cancel(orphans.stopping)
        is_full = len(orphans.ended) + len(orphans.stopping) >= BATCH
        parents = [*orphans.ended, *(parents if is_full else parents[BATCH:])]
