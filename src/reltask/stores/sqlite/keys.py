"""Unique tasks on SQLite."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from reltask.model.job import NewJob
from reltask.stores.sqlite import values


class UniqueVerbs(ABC):
    """The verbs of unique jobs, each in its own transaction."""

    @abstractmethod
    async def _read(self, verb: str, **parameters: object) -> list[list[Any]]: ...

    @abstractmethod
    async def _write(self, verb: str, **parameters: object) -> list[list[Any]]: ...

    @abstractmethod
    async def _knows(self, job_id: UUID) -> bool: ...

    async def enqueue_unique(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        _, rows = await self._write("enqueue_unique", jobs=unique_jobs(jobs))
        inserted = {UUID(row["id"]) for row in rows}
        return inserted | {job.id for job in jobs if again and await self._knows(job.id)}

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        (rows,) = await self._read("read_unique", names=values.batch(names))
        return values.keys(rows)

    async def replace_job(self, job: NewJob) -> UUID | None:
        (rows,) = await self._write("replace_job", **replacement(job))
        return UUID(rows[0]["id"]) if rows else None

    async def prune_keys(self, *, after: tuple[str, str], limit: int) -> tuple[int, tuple[str, str] | None]:
        last, removed = await self._write("prune_keys", task=after[0], key=after[1], limit=limit)
        return len(removed), (last[0]["task"], last[0]["key"]) if last else None


def unique_jobs(given: Sequence[NewJob]) -> str:
    """Jobs with their keys, as enqueue_unique.sql wants them."""
    return values.batch({**values.job_row(job), "unique": _key(job)} for job in given)


def _key(job: NewJob) -> dict[str, object] | None:
    if job.unique is None:
        return None
    key = job.unique
    return {"key": key.key, "keep": values.length(key.keep), "until_start": int(key.until_start)}


def replacement(job: NewJob) -> dict[str, object]:
    """What a waiting job is given instead."""
    row = values.job_row(job)
    key = None if job.unique is None else job.unique.key
    return {**{name: row[name] for name in ("task", "args", "headers", "run_at", "delay")}, "unique_key": key}
