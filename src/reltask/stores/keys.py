"""The part of the store interface for unique tasks: one job per key, by the primary key of the table `keys`.

    enqueue_unique ─► insert the key, or take over one whose job has ended ─► won: insert the job
                                                     └ its job lives: refused; the handle is of that job

No end of a job touches the table: a key is taken while its job is there and not dead, and before its
time is over. A store and a transaction have the same verbs, so that all of it works in users' transactions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from reltask.model.job import NewJob


class UniqueTransaction(Protocol):
    """The verbs of unique jobs, in a transaction."""

    async def enqueue_unique(self, jobs: Sequence[NewJob]) -> set[UUID]:
        """Insert those of these jobs, all of them unique, whose key is free, and return their ids.

        Of several with one key the first is inserted. Waits for another transaction that has the key.
        """
        ...

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """The jobs that have, or had last, these (task, key) of unique tasks."""
        ...

    async def replace_job(self, job: NewJob) -> UUID | None:
        """Give the job that has this one's key these arguments, headers and time, unless its run has begun.

        Returns its id; None: it has begun, or ended.
        """
        ...


class UniqueStore(Protocol):
    """The same, each in its own transaction, and what the maintenance does."""

    async def enqueue_unique(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        """As the transaction's verb. `again`: as of `enqueue_jobs`."""
        ...

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """As the transaction's verb."""
        ...

    async def replace_job(self, job: NewJob) -> UUID | None:
        """As the transaction's verb."""
        ...

    async def prune_keys(self, *, after: tuple[str, str], limit: int) -> tuple[int, tuple[str, str] | None]:
        """Look at `limit` keys after this (task, key), and remove those that are free.

        Returns their number, and the last one that was looked at; None: there are no more.
        """
        ...
