"""Unique tasks on PostgreSQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from reltask.errors import TransientError
from reltask.model.job import NewJob
from reltask.stores.postgres import values
from reltask.stores.postgres.errors import EndedBefore


class UniqueVerbs(ABC):
    """The verbs of unique jobs, each in its own transaction."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Any]: ...

    async def enqueue_unique(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        try:
            rows = await self._ask("enqueue_unique", **unique_jobs(jobs))
        except EndedBefore as error:
            raise TransientError("enqueue_unique: a job of the first sending has just ended; rolled back.") from error
        return {job_id for job_id, inserted in rows if inserted or again}

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self._ask("read_unique", **values.names(names)))

    async def replace_job(self, job: NewJob) -> UUID | None:
        rows = await self._ask("replace_job", **replacement(job))
        return rows[0][0] if rows else None

    async def prune_keys(self, *, after: tuple[str, str], limit: int) -> tuple[int, tuple[str, str] | None]:
        ((removed, task, key),) = await self._ask("prune_keys", task=after[0], key=after[1], limit=limit)
        return removed, None if task is None else (task, key)


def unique_jobs(given: Sequence[NewJob]) -> values.Columns:
    """One column per field."""
    keys = [job.unique for job in given]
    return {
        **values.new_jobs(given),
        "unique_keys": [key and key.key for key in keys],
        "keeps": [key and key.keep for key in keys],
        "until_starts": [bool(key and key.until_start) for key in keys],
    }


def replacement(job: NewJob) -> values.Columns:
    """What a waiting job is given instead."""
    key = None if job.unique is None else job.unique.key
    return {
        "task": job.task,
        "unique_key": key,
        "args": job.args,
        "headers": job.headers,
        "run_at": job.run_at,
        "delay": job.delay,
    }
