"""Jobs whose name is taken: by a job of the same task and key, or of a unique task with the same arguments.

The handle that the caller gets is then of the job that has the name. A job that exists under a former
name of its task counts as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from msgspec.structs import replace

from reltask.model.job import NewJob
from reltask.model.task import TaskDefinition
from reltask.producer.client import Place
from reltask.stores.store import BATCH

REPLACES = 3
"""How often a job is tried to be replaced, or inserted if the one that had its key has begun."""


async def owners_of(names: Sequence[tuple[str, str]], place: Place) -> dict[tuple[str, str], UUID]:
    """The jobs that have these (task, key) names."""
    found: dict[tuple[str, str], UUID] = {}
    for start in range(0, len(names), BATCH):
        found |= await place.read_keys(names[start : start + BATCH])
    return found


async def under_former_names(tasks: Sequence[TaskDefinition], jobs: list[NewJob], place: Place) -> list[NewJob]:
    """Give a job whose key is taken under a former name of its task that name, to avoid a second one."""
    renamed = {job.id: task for task, job in zip(tasks, jobs, strict=True) if job.key and task.aliases}
    names = [(name, job.key) for job in jobs if job.key and job.id in renamed for name in renamed[job.id].names]
    taken = await owners_of(names, place)

    def name_of(job: NewJob) -> str:
        names = renamed[job.id].names if job.id in renamed else ()
        return next((name for name in names if (name, job.key) in taken), job.task)

    return [replace(job, task=name_of(job)) for job in jobs]


async def owners_of_unique(refused: Sequence[tuple[NewJob, bool]], place: Place) -> dict[UUID, UUID]:
    """The jobs that have the keys of these, which were refused; if marked, they get their arguments and times.

    A job whose own id has the key was inserted by an earlier sending, or now: the key became free meanwhile.
    """
    found, names = {}, {}
    for job, replaces in refused:
        if job.unique is None:
            continue
        owner = await _replaced(job, place) if replaces else None
        if owner is not None:
            found[job.id] = owner
        else:
            names[job.id] = (job.task, job.unique.key)
    held = await place.read_unique(list(names.values())) if names else {}
    return found | {job_id: held[name] for job_id, name in names.items() if name in held}


async def _replaced(job: NewJob, place: Place) -> UUID | None:
    """The job that was given this one's arguments and time, or this one if the key has become free; else None."""
    for _ in range(REPLACES):
        owner = await place.replace_job(job) or next(iter(await place.enqueue_unique([job])), None)
        if owner is not None:
            return owner
    return None
