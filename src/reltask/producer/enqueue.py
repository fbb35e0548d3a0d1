"""Inserts jobs, in an open transaction or in their own. Every enqueue goes through here.

    calls ──► is a transaction open, or a connection given?
                 │ yes: join it                                    no: a statement of its own
                 ▼                                                 ▼
              rows ──► enqueue_jobs, in that transaction           rows ──► enqueue_jobs ──► signal ──► handles
                 ──► handles; it exists when that commits                     │
                                                                              └─ answer lost: the same ids again

Many jobs go in batches, each committed by itself. While the server inserts one, the next is
prepared.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from itertools import accumulate
from typing import Any, NoReturn, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reltask.errors import AmbiguousError, ReltaskError, UsageError
from reltask.model.job import NewJob
from reltask.model.schedule import decode, encode, first_slot
from reltask.model.task import ONE_OFF_ATTEMPTS, TaskDefinition
from reltask.producer.client import Client, refuse_running_loop
from reltask.producer.job import Job
from reltask.producer.options import JobOptions
from reltask.producer.transaction import TaskTransaction, current, run_here
from reltask.stores.store import BATCH, Borrowed, Store, Transaction

B = TypeVar("B")
T = TypeVar("T")
Place = Store | Transaction | TaskTransaction
"""Where jobs are inserted: in a statement of their own, or in an open transaction."""

_VERSION_7 = 7 << 76 | 0b10 << 62
AT_ONCE = 2
"""Batches of a bulk insert in progress at once: the server inserts one while the next is prepared."""
RESENDS = 3
"""How often an insert whose answer was lost is sent again."""


class Call(Struct, frozen=True):
    """A task together with its arguments, checked, ready to be enqueued with others or to be scheduled."""

    task: TaskDefinition
    args: str
    options: JobOptions

    def job(self, job_id: UUID) -> NewJob:
        """The row to insert."""
        task, options = self.task, self.options
        max_attempts = task.options.max_attempts if options.max_attempts is msgspec.UNSET else options.max_attempts
        if max_attempts is msgspec.UNSET:  # no limit for a recurring job, a few attempts for a one-off
            max_attempts = ONE_OFF_ATTEMPTS if options.schedule is None else None
        return NewJob(
            id=job_id,
            task=task.name,
            args=self.args,
            queue=task.options.queue if options.queue is None else options.queue,
            priority=task.options.priority if options.priority is None else options.priority,
            key=options.key,
            schedule=None if options.schedule is None else encode(options.schedule),
            run_at=options.at,
            delay=options.delay,
            max_attempts=max_attempts,
            lock_timeout=task.options.lock_timeout if options.lock_timeout is None else options.lock_timeout,
        )


class Enqueuer:
    """Enqueues calls for one app."""

    def __init__(
        self,
        client: Client,
        *,
        rng: random.Random,
        arguments_limit: Callable[[], int],
        borrow: Callable[[object], Borrowed],
    ) -> None:
        self.client = client
        self.wakes: set[Callable[[], None]] = set()
        """Callbacks that wake this process's own workers, without a signal from the database."""
        self._rng = rng
        self._borrow = borrow
        self._read_limit = arguments_limit
        self.arguments_limit: int | None = None
        """Bytes; None: to be read from the settings by the next call."""

    def check(self, task: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any], options: JobOptions) -> Call:
        """The call with these arguments, or ArgumentsError."""
        if self.arguments_limit is None:
            self.arguments_limit = self._read_limit()
        return Call(task, task.arguments.encode(args, kwargs, limit=self.arguments_limit), options)

    def enqueue(self, calls: list[Call], connection: object, *, name: str) -> Coroutine[Any, Any, list[Job]]:
        """Insert jobs: in the user's transaction on `connection`, in the task's open block, or on their own."""
        if connection is not None:
            return self._insert_joining(self._borrowed(connection, name, is_async=True), calls)
        block = current.get()
        if block is not None and block.open:
            return self._insert_in(block, calls)
        return self.client.run(lambda store: self._insert(calls, store), name=name)

    def enqueue_sync(self, calls: list[Call], connection: object, *, name: str) -> list[Job]:
        """`enqueue` for synchronous code.

        With `connection` also on a running loop: it blocks that anyway.
        """
        if connection is not None:
            return run_here(self._insert_joining(self._borrowed(connection, name, is_async=False), calls))
        block = current.get()
        if block is not None and block.open:
            refuse_running_loop(name)
            return block.wait_for(self._insert_in(block, calls))
        return self.client.run_sync(lambda store: self._insert(calls, store), name=name)

    async def signal(self, store: Store) -> None:
        """Wake the workers of this process and of others."""
        for wake in list(self.wakes):
            wake()
        await store.signal()

    def new_ids(self, count: int) -> list[UUID]:
        """UUIDs in ascending order and in order of time (version 7).

        So new rows are adjacent, and of two jobs with one key the first wins. The first UUID has 73
        random bits, one less than fit; each further one adds a random step of 32 bits. No step is
        0, so no two are equal.
        """
        milliseconds, first = time.time_ns() // 1_000_000, self._rng.getrandbits(12) << 64 | self._rng.getrandbits(61)
        steps = memoryview(self._rng.randbytes(4 * (count - 1))).cast("I")
        numbers = accumulate(steps, initial=milliseconds << 80 | _VERSION_7 | first)
        return [UUID(int=number + nth) for nth, number in enumerate(numbers)]

    # In a statement of their own

    async def _insert(self, calls: list[Call], store: Store) -> list[Job]:
        """Insert jobs in as few statements as possible, and signal once."""
        if len(calls) == 1:
            inserted = await self._insert_batch(calls, store)
            if inserted[0].created:
                await self.signal(store)
            return inserted
        batches = _batches(calls, store.bulk)
        try:
            done, errors = await _overlapping(lambda batch: self._insert_batch(batch, store), batches, at_once=AT_ONCE)
        finally:
            await self.signal(store)  # also for batches that were inserted before one failed
        inserted = [job for batch in done for job in batch]
        if errors:
            _raise_first(errors, inserted=sum(job.created for job in inserted), wanted=len(calls))
        return inserted

    async def _insert_batch(self, calls: list[Call], store: Store) -> list[Job]:
        jobs = await self._rows(calls, store)
        created = await insert_surely(jobs, store)
        if len(created) == len(jobs):
            return [Job(self.client, job.id, job.task) for job in jobs]
        try:
            return await self._handles(jobs, created, store)
        except ReltaskError:
            if not created:  # else the error would say that nothing was inserted
                raise
            return [Job(self.client, job.id, job.task, job.id in created) for job in jobs]

    # In an open transaction

    def _borrowed(self, connection: object, name: str, *, is_async: bool) -> Borrowed:
        block = current.get()
        if block is not None and block.open:
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
        """Insert jobs in the user's open transaction. No signal: the jobs do not exist before the user's commit."""
        return await self._insert_in(await borrowed.join(), calls)

    async def _insert_in(self, transaction: TaskTransaction | Transaction, calls: list[Call]) -> list[Job]:
        """Insert jobs inside an open transaction; a task's own block sends its signal after the commit."""
        inserted: list[Job] = []
        for batch in _batches(calls, BATCH):
            jobs = await self._rows(batch, transaction)
            inserted += await self._handles(jobs, await transaction.enqueue_jobs(jobs), transaction)
        return inserted

    # Both

    async def _rows(self, calls: list[Call], place: Place) -> list[NewJob]:
        """The rows to insert. A schedule begins at its first slot, by the database's clock."""
        jobs = [call.job(job_id) for call, job_id in zip(calls, self.new_ids(len(calls)), strict=True)]
        if any(job.key and call.task.aliases for call, job in zip(calls, jobs, strict=True)):
            jobs = await _under_former_names(calls, jobs, place)
        if all(job.schedule is None for job in jobs):
            return jobs
        now = await place.read_now()
        return [
            replace(job, run_at=first_slot(decode(job.schedule), now))
            if job.schedule is not None and job.run_at is None and job.delay is None
            else job
            for job in jobs
        ]

    async def _handles(self, jobs: list[NewJob], created: set[UUID], place: Place) -> list[Job]:
        """A handle for each job; if its key was taken, the handle of the job that has the key."""
        names = {job.id: (job.task, job.key) for job in jobs if job.key is not None and job.id not in created}
        owners = await _owners_of(list(names.values()), place)
        return [
            Job(self.client, owners.get(names.get(job.id, ("", "")), job.id), job.task, job.id in created)
            for job in jobs
        ]


async def insert_surely(jobs: list[NewJob], store: Store) -> set[UUID]:
    """Insert. After a lost answer send the same ids again, which inserts no job twice.

    After an AmbiguousError no other error is raised instead: it would say that nothing was applied,
    and the caller would enqueue again, with other ids.
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


async def _under_former_names(calls: list[Call], jobs: list[NewJob], place: Place) -> list[NewJob]:
    """Give a job whose key is taken under a former name of its task that name, to avoid a second one."""
    renamed = {job.id: call.task for call, job in zip(calls, jobs, strict=True) if job.key and call.task.aliases}
    names = [(name, job.key) for job in jobs if job.key and job.id in renamed for name in renamed[job.id].names]
    taken = await _owners_of(names, place)

    def name_of(job: NewJob) -> str:
        names = renamed[job.id].names if job.id in renamed else ()
        return next((name for name in names if (name, job.key) in taken), job.task)

    return [replace(job, task=name_of(job)) for job in jobs]


async def _owners_of(names: list[tuple[str, str]], place: Place) -> dict[tuple[str, str], UUID]:
    """The jobs that have these (task, key) names."""
    found: dict[tuple[str, str], UUID] = {}
    for start in range(0, len(names), BATCH):
        found |= await place.read_keys(names[start : start + BATCH])
    return found


def _batches(calls: list[Call], size: int) -> Iterator[list[Call]]:
    return (calls[start : start + size] for start in range(0, len(calls), size))


async def _overlapping(
    work: Callable[[B], Coroutine[Any, Any, T]], given: Iterable[B], *, at_once: int
) -> tuple[list[T], list[BaseException]]:
    """Work on all of these, `at_once` at a time; return the results and the errors.

    After a failure no further one is begun. All that were begun have ended.
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
    """Raise the error of a failed bulk insert: AmbiguousError if some jobs are inserted, or may be.

    The error of one batch alone would say that all jobs may be enqueued again.
    """
    lost = [error for error in errors if isinstance(error, AmbiguousError)]
    first = (lost or errors)[0]
    if not isinstance(first, ReltaskError) or not (inserted or lost):
        raise first
    raise AmbiguousError(
        f"{inserted} of {wanted} jobs are certainly inserted. {first}",
        remedy="Check which exist before you enqueue them again. With connection= it is all or nothing.",
    ) from first
