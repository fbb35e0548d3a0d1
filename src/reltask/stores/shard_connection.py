"""A user's own connection to a database with one shard or several, each in its own schema.

All that are in this database can be written in one transaction of the user's. If the shards are in several databases,
the connection is asked which of them it leads to; what belongs elsewhere is refused.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from reltask.errors import UsageError
from reltask.model.job import NewJob
from reltask.model.shards import Placement, shard_of
from reltask.stores.store import Borrowed, Store, Transaction


class Shard(NamedTuple):
    """One of them."""

    number: int
    store: Store
    place: str
    """What distinguishes its database from others: the URL without the schema."""
    schema: str


class ShardedConnection:
    """A user's connection to the database of one shard or of several, each in its own schema."""

    def __init__(self, shards: Mapping[int, Shard], placement: Placement, connection: object) -> None:
        self._shards = shards
        self._placement = placement
        self._connection = connection
        self._borrowed: dict[int, Borrowed] = {}

    def _of(self, number: int) -> Borrowed:
        if number not in self._borrowed:
            self._borrowed[number] = self._shards[number].store.borrow(self._connection)
        return self._borrowed[number]

    @property
    def is_async(self) -> bool:
        return self._of(self._placement.home).is_async

    async def join(self) -> ShardedTransaction:
        """The user's open transaction, and the shards that can be written in it."""
        numbers = list(self._shards)
        if len({shard.place for shard in self._shards.values()}) > 1:
            numbers = [await self._found()]
        return ShardedTransaction({number: await self._of(number).join() for number in numbers}, self._placement)

    async def _found(self) -> int:
        """The shard that the connection leads to, of several databases with one each."""
        places = {shard.number: shard.place for shard in self._shards.values()}
        if len({shard.schema for shard in self._shards.values()}) > 1:
            raise UsageError(
                "connection= is to one database, and the shards are in several, under different schemas.",
                remedy="Give each the same schema; or enqueue without connection=, or inside ctx.transaction().",
            )
        inside: Any = await self._of(self._placement.home).join()
        number: int | None = await inside.which_shard(places)
        if number is None or number not in places:
            raise UsageError(
                "connection= leads to none of the shards.", remedy="Pass a connection to the database of a shard."
            )
        return number

    def transaction(self, **_: Any) -> Any:
        raise UsageError("A transaction of a task's own is on the shard of its job.", remedy="Use ctx.transaction().")


class ShardedTransaction:
    """A user's open transaction in a database with several shards."""

    def __init__(self, inside: dict[int, Transaction], placement: Placement) -> None:
        self._inside = inside
        self._placement = placement

    async def placed(self, jobs: Sequence[NewJob]) -> list[int]:
        """The shard of each of these new jobs."""
        return self._placement.place(jobs, time.monotonic(), list(self._inside))

    async def read_now(self) -> Any:
        return await next(iter(self._inside.values())).read_now()

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        inserted: set[UUID] = set()
        for number, inside in self._inside.items():
            some = [job for job in jobs if shard_of(job.id) == number]
            inserted |= await inside.enqueue_jobs(some) if some else set()
        return inserted

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        found: dict[tuple[str, str], UUID] = {}
        for inside in self._inside.values():
            found |= await inside.read_keys(names)
        return found

    async def enqueue_unique(self, jobs: Sequence[NewJob]) -> set[UUID]:
        inserted: set[UUID] = set()
        for number, inside in self._inside.items():
            some = [job for job in jobs if shard_of(job.id) == number]
            inserted |= await inside.enqueue_unique(some) if some else set()
        return inserted

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        found: dict[tuple[str, str], UUID] = {}
        for inside in self._inside.values():
            found |= await inside.read_unique(names)
        return found

    async def replace_job(self, job: NewJob) -> UUID | None:
        return await self._inside[shard_of(job.id) or 0].replace_job(job)

    async def send_signals(self, signals: Sequence[Any]) -> dict[str, UUID]:
        for signal in signals:
            if signal.job_id is not None and shard_of(signal.job_id) not in (None, *self._inside):
                raise UsageError(
                    f"The job {signal.job_id} lives on another shard than this transaction.",
                    remedy="Send the signal after the commit.",
                )
        sent: dict[str, UUID] = {}
        for number, inside in self._inside.items():
            some = [signal for signal in signals if signal.job_id is None or shard_of(signal.job_id) in (None, number)]
            sent |= await inside.send_signals(some) if some else {}
        return sent
