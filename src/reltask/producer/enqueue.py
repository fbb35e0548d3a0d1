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
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, Generic, NoReturn, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reltask.errors import AmbiguousError, ReltaskError
from reltask.model.job import NewJob
from reltask.model.schedule import decode, encode, first_slot
from reltask.model.task import ONE_OFF_ATTEMPTS, TaskDefinition
from reltask.producer.job import Access, Job
from reltask.producer.options import JobOptions
from reltask.producer.result import in_task
from reltask.producer.sending import Place, owners_of
from reltask.producer.transaction import TaskTransaction
from reltask.stores.store import BATCH, Store, Transaction

B = TypeVar("B")
T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_VERSION_7 = 7 << 76 | 0b10 << 62
AT_ONCE = 2
"""Batches of a bulk insert in progress at once: the server inserts one while the next is prepared."""
RESENDS = 3
"""How often an insert whose answer was lost is sent again."""


class Call(Struct, Generic[R_co], frozen=True):
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

    def __init__(self, access: Access, *, rng: random.Random) -> None:
        self.access = access
        self._rng = rng
        self.arguments_limit: int | None = None
        """Bytes; None: to be read from the settings by the next call."""

    def check(
        self, task: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any], options: JobOptions
    ) -> Call[Any]:
        """The call with these arguments, or ArgumentsError."""
        if self.arguments_limit is None:
            self.arguments_limit = self.access.arguments_limit()
        return Call(task, task.arguments.encode(args, kwargs, limit=self.arguments_limit), options)

    def enqueue(self, calls: Sequence[Call[R]], connection: object, *, name: str) -> Coroutine[Any, Any, list[Job[R]]]:
        """Insert jobs: in the user's transaction on `connection`, in the task's open block, or on their own."""
        _notice()
        return self.access.sender.send(
            lambda place: self._insert_in(place, calls),
            lambda store: self._insert(calls, store),
            connection,
            name=name,
        )

    def enqueue_sync(self, calls: Sequence[Call[R]], connection: object, *, name: str) -> list[Job[R]]:
        """`enqueue` for synchronous code.

        With `connection` also on a running loop: it blocks that anyway.
        """
        _notice()
        return self.access.sender.send_sync(
            lambda place: self._insert_in(place, calls),
            lambda store: self._insert(calls, store),
            connection,
            name=name,
        )

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

    async def _insert(self, calls: Sequence[Call[R]], store: Store) -> list[Job[R]]:
        """Insert jobs in as few statements as possible, and signal once."""
        if len(calls) == 1:
            inserted = await self._insert_batch(calls, store)
            if inserted[0].created:
                await self.access.sender.signal(store)
            return inserted
        batches = _batches(calls, store.bulk)
        try:
            done, errors = await _overlapping(lambda batch: self._insert_batch(batch, store), batches, at_once=AT_ONCE)
        finally:
            await self.access.sender.signal(store)  # also for batches that were inserted before one failed
        inserted = [job for batch in done for job in batch]
        if errors:
            _raise_first(errors, inserted=sum(job.created for job in inserted), wanted=len(calls))
        return inserted

    async def _insert_batch(self, calls: Sequence[Call[R]], store: Store) -> list[Job[R]]:
        jobs = await self._rows(calls, store)
        pairs = list(zip(calls, jobs, strict=True))
        created = await insert_surely(jobs, store)
        if len(created) == len(jobs):
            return [Job(self.access, job.id, job.task, job.key, call.task) for call, job in pairs]
        try:
            return await self._handles(pairs, created, store)
        except ReltaskError:
            if not created:  # else the error would say that nothing was inserted
                raise
            return [Job(self.access, job.id, job.task, job.key, call.task, job.id in created) for call, job in pairs]

    # In an open transaction

    async def _insert_in(self, transaction: TaskTransaction | Transaction, calls: Sequence[Call[R]]) -> list[Job[R]]:
        """Insert jobs inside an open transaction; a task's own block sends its signal after the commit."""
        inserted: list[Job[R]] = []
        for batch in _batches(calls, BATCH):
            jobs = await self._rows(batch, transaction)
            created, pairs = await transaction.enqueue_jobs(jobs), list(zip(batch, jobs, strict=True))
            inserted += await self._handles(pairs, created, transaction, joined=True)
        return inserted

    # Both

    async def _rows(self, calls: Sequence[Call[Any]], place: Place) -> list[NewJob]:
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

    async def _handles(
        self, pairs: list[tuple[Call[R], NewJob]], created: set[UUID], place: Place, *, joined: bool = False
    ) -> list[Job[R]]:
        """A handle for each job; if its key was taken, the handle of the job that has the key."""
        names = {job.id: (job.task, job.key) for _, job in pairs if job.key is not None and job.id not in created}
        owners = await owners_of(list(names.values()), place)
        return [
            Job(
                self.access,
                owners.get(names.get(job.id, ("", "")), job.id),
                job.task,
                job.key,
                call.task,
                created=job.id in created,
                _joined=joined and job.id in created,
            )
            for call, job in pairs
        ]


def _notice() -> None:
    """Let a durable function know that its body enqueues: at each resume it would do so again."""
    body = in_task.get()
    if body is not None and body.on_enqueue is not None:
        body.on_enqueue()


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


async def _under_former_names(calls: Sequence[Call[Any]], jobs: list[NewJob], place: Place) -> list[NewJob]:
    """Give a job whose key is taken under a former name of its task that name, to avoid a second one."""
    renamed = {job.id: call.task for call, job in zip(calls, jobs, strict=True) if job.key and call.task.aliases}
    names = [(name, job.key) for job in jobs if job.key and job.id in renamed for name in renamed[job.id].names]
    taken = await owners_of(names, place)

    def name_of(job: NewJob) -> str:
        names = renamed[job.id].names if job.id in renamed else ()
        return next((name for name in names if (name, job.key) in taken), job.task)

    return [replace(job, task=name_of(job)) for job in jobs]


def _batches(calls: Sequence[Call[R]], size: int) -> Iterator[Sequence[Call[R]]]:
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
