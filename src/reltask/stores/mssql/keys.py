"""Unique tasks on SQL Server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from uuid import UUID

from reltask.model.job import NewJob
from reltask.stores.mssql import values
from reltask.stores.mssql.values import Row


class UniqueVerbs(ABC):
    """The verbs of unique jobs, each in its own transaction."""

    @abstractmethod
    async def _ask(self, verb: str, **columns: object) -> list[Row]: ...

    async def enqueue_unique(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        rows = await self._ask("enqueue_unique", jobs=unique_jobs(jobs))
        return {row["id"] for row in rows if row["inserted"] or again}

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self._ask("read_unique", names=values.names(names)))

    async def replace_job(self, job: NewJob) -> UUID | None:
        rows = await self._ask("replace_job", **replacement(job))
        return rows[0]["id"] if rows else None

    async def prune_keys(self, *, after: tuple[str, str], limit: int) -> tuple[int, tuple[str, str] | None]:
        (row,) = await self._ask("prune_keys", task=after[0], key=after[1], limit=limit)
        return row["removed"], None if row["task"] is None else (row["task"], row["key"])


def unique_jobs(given: Sequence[NewJob]) -> str:
    """Jobs with their keys, numbered: of two with one key, the first is inserted."""
    return values.batch(
        {**values.new_job(job), **_key(job), "run_at": values.written(job.run_at), "nth": nth}
        for nth, job in enumerate(given)
    )


def _key(job: NewJob) -> values.Columns:
    if job.unique is None:
        return {}
    key = job.unique
    return {"unique_key": key.key, "keep": values.length(key.keep), "until_start": int(key.until_start)}


def replacement(job: NewJob) -> values.Columns:
    """What a waiting job is given instead."""
    row = values.new_job(job)
    key = None if job.unique is None else job.unique.key
    return {**{name: row[name] for name in ("task", "args", "headers", "run_at", "delay")}, "unique_key": key}
