"""How jobs get into the database: alone or in bulk, in a transaction of the caller's or in their own.

calls ──► batches ──► ids ──► store.enqueue_jobs ──► signal ──► handles
                       │               │
                       │               └─ the answer was lost: the same ids again
                       └─ made ready while the server works on the batch before
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime
from itertools import accumulate
from typing import Any, NoReturn, TypeVar
from uuid import UUID

from msgspec.structs import replace

from reltask.errors import AmbiguousError, ReltaskError, UsageError
from reltask.model.job import NewJob
from reltask.model.schedule import decode, first_slot
from reltask.producer.call import Call, Job
from reltask.producer.client import Client, refuse_running_loop
from reltask.producer.transaction import TaskTransaction, open_transaction, run_here
from reltask.stores.store import BATCH, Borrowed, Store, Transaction

B = TypeVar("B")
T = TypeVar("T")
Place = Store | Transaction | TaskTransaction
"""Where jobs are inserted: in a statement of their own, or in somebody's transaction."""

_VERSION_7 = 7 << 76 | 0b10 << 62
AT_ONCE = 2
"""Batches that a bulk insert has under way: the server works on one while the next is made ready."""
RESENDS = 3
"""How often an insert whose answer was lost is sent again."""


class ProducerHost:
    """What a producer needs of its app: the client, the limits, and ids."""

    def __init__(
        self,
        client: Client,
        *,
        rng: random.Random,
        arguments_limit: Callable[[], int],
        wake: Callable[[], None],
        borrow: Callable[[object], Borrowed],
    ) -> None:
        self.client = client
        self._wake = wake
        self._borrow = borrow
        self._rng = rng
        self._limit = arguments_limit

    @property
    def arguments_limit(self) -> int:
        return self._limit()

    def new_ids(self, count: int) -> list[UUID]:
        """UUIDs in order, also of time (version 7): new rows lie side by side, and of two with a key the first wins.

        The first has 73 random bits, one less than there is room for; each other is a random step of 32 bits further.
        """
        milliseconds, first = time.time_ns() // 1_000_000, self._rng.getrandbits(12) << 64 | self._rng.getrandbits(61)
        steps = memoryview(self._rng.randbytes(4 * (count - 1))).cast("I")
        numbers = accumulate(steps, initial=milliseconds << 80 | _VERSION_7 | first)
        return [UUID(int=number + nth) for nth, number in enumerate(numbers)]  # no step is 0: no two are equal

    def _new_jobs(self, calls: list[Call]) -> list[NewJob]:
        return [call.job(job_id) for call, job_id in zip(calls, self.new_ids(len(calls)), strict=True)]

    async def signal(self, store: Store) -> None:
        """Tell workers, here and elsewhere, that there may be something to do."""
        self._wake()
        await store.signal()

    async def insert(self, call: Call, store: Store) -> Job:
        """Insert one job."""
        jobs = await self._rows([call], store)
        created = await self._insert_surely(jobs, store)
        (inserted,) = self._handles(jobs, created, await _owners(jobs, created, store))
        if inserted.created:
            await self.signal(store)
        return inserted

    def join(self, calls: list[Call], connection: object, *, name: str) -> Coroutine[Any, Any, list[Job]] | None:
        """Insert jobs in the transaction that the caller names or is in; None: it names none, and is in none."""
        if connection is not None:
            return self._insert_joining(self._borrowed(connection, name, is_async=True), calls)
        block = open_transaction()
        return None if block is None else self._insert_in(block, calls)

    def join_sync(self, calls: list[Call], connection: object, *, name: str) -> list[Job] | None:
        """`join` for synchronous code. With a connection also on a running loop, which the connection blocks anyway."""
        if connection is not None:
            return run_here(self._insert_joining(self._borrowed(connection, name, is_async=False), calls))
        block = open_transaction()
        if block is None:
            return None
        refuse_running_loop(name)
        return block.wait_for(self._insert_in(block, calls))

    def _borrowed(self, connection: object, name: str, *, is_async: bool) -> Borrowed:
        if open_transaction() is not None:
            raise UsageError(
                f"{name}() joins the open block by itself, and can join no other.", remedy="Leave out connection=."
            )
        borrowed = self._borrow(connection)
        if borrowed.is_async and not is_async:
            raise UsageError(
                f"{name}_sync() cannot wait for an asynchronous connection.", remedy=f"Write: await {name}()."
            )
        if is_async and not borrowed.is_async:
            raise UsageError(
                f"{name}() takes asynchronous connections.", remedy=f"With a synchronous one call {name}_sync()."
            )
        return borrowed

    async def _insert_joining(self, borrowed: Borrowed, calls: list[Call]) -> list[Job]:
        """Insert jobs in the user's open transaction. No signal: nothing is there before the user's commit."""
        return await self._insert_in(await borrowed.join(), calls)

    async def _insert_in(self, transaction: TaskTransaction | Transaction, calls: list[Call]) -> list[Job]:
        """Insert jobs inside an open transaction; a task's own block sends its signal after the commit."""
        inserted: list[Job] = []
        for batch in _batches(calls, BATCH):
            jobs = await self._rows(batch, transaction)
            created = await transaction.enqueue_jobs(jobs)
            inserted += self._handles(jobs, created, await _owners(jobs, created, transaction))
        return inserted

    async def insert_many(self, calls: list[Call], store: Store) -> list[Job]:
        """Insert jobs in as few statements as possible, and signal once. Each batch is committed by itself."""
        batches = _batches(calls, store.bulk)
        try:
            done, errors = await _overlapping(lambda batch: self._insert_batch(batch, store), batches, at_once=AT_ONCE)
        finally:
            await self.signal(store)  # also for what was inserted before one of them failed
        inserted = [job for batch in done for job in batch]
        if errors:
            _raise_first(errors, inserted=sum(job.created for job in inserted), wanted=len(calls))
        return inserted

    async def _insert_batch(self, calls: list[Call], store: Store) -> list[Job]:
        jobs = await self._rows(calls, store)
        created = await self._insert_surely(jobs, store)
        owners: dict[UUID, UUID] = {}
        try:
            owners = await _owners(jobs, created, store)
        except ReltaskError:
            if not created:  # else an error about the others' ids would say that these are not inserted
                raise
        return self._handles(jobs, created, owners)

    def _handles(self, jobs: list[NewJob], created: set[UUID], owners: dict[UUID, UUID]) -> list[Job]:
        """A handle for each; for one whose key was taken, of the job that has it."""
        if len(created) == len(jobs):  # as nearly always: nobody need be looked up
            return [Job(self.client, job.id, job.task) for job in jobs]
        return [Job(self.client, owners.get(job.id, job.id), job.task, created=job.id in created) for job in jobs]

    async def _rows(self, calls: list[Call], store: Place) -> list[NewJob]:
        """What to insert. A schedule begins at its first slot; for a grid only the database's clock can tell it."""
        jobs = await _under_former_names(calls, self._new_jobs(calls), store)
        if all(job.schedule is None for job in jobs):
            return jobs
        now = await store.read_now()
        return [_at_first_slot(job, now) for job in jobs]

    async def _insert_surely(self, jobs: list[NewJob], store: Store) -> set[UUID]:
        """Insert; when the answer is lost, send the same ids again: what has landed is not inserted twice.

        Once there is doubt, no other error takes its place: a caller who believes that nothing was applied enqueues
        again, with other ids.
        """
        try:
            return await store.enqueue_jobs(jobs)
        except AmbiguousError as error:
            lost = error
        for _ in range(RESENDS):
            try:
                return await store.enqueue_jobs(jobs, again=True)
            except AmbiguousError as error:
                lost = error
            except ReltaskError as error:
                raise lost from error
        raise lost


async def _under_former_names(calls: list[Call], jobs: list[NewJob], store: Place) -> list[NewJob]:
    """The jobs; one whose key is taken under a former name of its task has that name: two would do everything twice."""
    renamed = {job.id: call.task for call, job in zip(calls, jobs, strict=True) if job.key and call.task.aliases}
    if not renamed:
        return jobs
    names = [(name, job.key) for job in jobs if job.key and job.id in renamed for name in renamed[job.id].names]
    taken = await _keys(names, store)

    def name_of(job: NewJob) -> str:
        names = renamed[job.id].names if job.id in renamed else ()
        return next((name for name in names if (name, job.key) in taken), job.task)

    return [replace(job, task=name_of(job)) for job in jobs]


async def _keys(names: list[tuple[str, str]], store: Place) -> dict[tuple[str, str], UUID]:
    """Who has which of these names."""
    found: dict[tuple[str, str], UUID] = {}
    for start in range(0, len(names), BATCH):
        found |= await store.read_keys(names[start : start + BATCH])
    return found


async def _owners(jobs: list[NewJob], created: set[UUID], store: Place) -> dict[UUID, UUID]:
    """For each of these that was not created because its key was taken: the job that has the key."""
    names = {job.id: (job.task, job.key) for job in jobs if job.key is not None and job.id not in created}
    found = await _keys(list(names.values()), store)
    return {job_id: found[name] for job_id, name in names.items() if name in found}


def _batches(calls: list[Call], size: int) -> Iterator[list[Call]]:
    return (calls[start : start + size] for start in range(0, len(calls), size))


async def _overlapping(
    work: Callable[[B], Coroutine[Any, Any, T]], given: Iterable[B], *, at_once: int
) -> tuple[list[T], list[BaseException]]:
    """Work on all of these, so many at a time: what was done, and the errors of what was not.

    After a failure nothing more is begun, and nothing left under way.
    """
    waiting, done = deque(enumerate(given)), {}

    async def one_by_one() -> None:
        while waiting:
            nth, one = waiting.popleft()
            try:
                done[nth] = await work(one)
            except BaseException:
                waiting.clear()
                raise

    ended = await asyncio.gather(*(one_by_one() for _ in range(at_once)), return_exceptions=True)
    return [done[nth] for nth in sorted(done)], [error for error in ended if error is not None]


def _raise_first(errors: list[BaseException], *, inserted: int, wanted: int) -> NoReturn:
    """Raise the error of a bulk that broke off; as doubt, where some of its jobs are inserted, or may be.

    An error that speaks of one batch alone would say that all may be enqueued again.
    """
    lost = [error for error in errors if isinstance(error, AmbiguousError)]
    first = (lost or errors)[0]
    if not isinstance(first, ReltaskError) or not (inserted or lost):
        raise first
    raise AmbiguousError(
        f"{inserted} of {wanted} jobs are certainly inserted. {first}",
        remedy="Look which are there before you enqueue them again. With connection= it is all or nothing.",
    ) from first


def _at_first_slot(job: NewJob, now: datetime) -> NewJob:
    if job.schedule is None or job.run_at is not None or job.delay is not None:
        return job
    return replace(job, run_at=first_slot(decode(job.schedule), now))
