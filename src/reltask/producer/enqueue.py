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

import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from itertools import accumulate
from typing import Any, Generic, Protocol, TypeVar, cast
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reltask.errors import AmbiguousError, ReltaskError, TransientError, UsageError
from reltask.model.job import NewJob, Unique
from reltask.model.keys import KeyHash
from reltask.model.schedule import decode, encode, first_slot, has_ended
from reltask.model.screens import Payload
from reltask.model.settings import LimitSettings
from reltask.model.shards import Placement, is_free, numbered
from reltask.model.task import ONE_OFF_ATTEMPTS, TaskDefinition
from reltask.producer.bulk import batches, overlapping, raise_first
from reltask.producer.client import Place
from reltask.producer.job import Access, Job
from reltask.producer.keys import owners_of, owners_of_unique, under_former_names
from reltask.producer.options import JobOptions
from reltask.producer.replacing import replace_schedule
from reltask.producer.result import in_task
from reltask.producer.transaction import TaskTransaction
from reltask.stores.store import BATCH, Store, Transaction

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
_VERSION_7 = 7 << 76 | 0b10 << 62
PLAIN = KeyHash()
AT_ONCE = 2
"""Batches of a bulk insert in progress at once: the server inserts one while the next is prepared."""
RESENDS = 3
"""How often an insert whose answer was lost is sent again."""


class Placing(Protocol):
    """A place with several shards behind it, or on one of several."""

    async def placed(self, jobs: Sequence[NewJob]) -> list[int]:
        """The shard of each of these new jobs; UsageError if it cannot be reached from here."""
        ...


class Tracing(Protocol):
    """Follows jobs from their enqueue to their run: see `telemetry/opentelemetry.py`."""

    def begin(self, task: TaskDefinition, options: JobOptions) -> tuple[object, dict[str, Any]]:
        """A call is made: what ends with its insert, and the headers that carry the trace."""
        ...

    def sending(self, calls: Sequence[Call[Any]]) -> AbstractContextManager[Callable[[Sequence[Job[Any]]], None]]:
        """While these are inserted; yields what is called with their handles."""
        ...


class Call(Struct, Generic[R_co], frozen=True):
    """A task together with its arguments, checked, ready to be enqueued with others or to be scheduled."""

    task: TaskDefinition
    args: str
    options: JobOptions
    headers: str | None = None
    unique: Unique | None = None
    span: object = None
    """What traces its way into the database; None: it is not traced."""

    def __repr__(self) -> str:
        """Without the arguments: it appears in tracebacks and logs."""
        return f"<call of {self.task.name}>"

    def job(self, job_id: UUID, hashing: KeyHash = PLAIN) -> NewJob:
        """The row to insert; `hashing` makes keys from arguments."""
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
            limits=() if task.limits is None else task.limits.keys(task.arguments, self.args, hashing),
            headers=self.headers,
            unique=None if options.schedule is not None else self.unique,
        )


class Enqueuer:
    """Enqueues calls for one app."""

    def __init__(self, access: Access, *, rng: random.Random) -> None:
        self.access = access
        self._rng = rng
        self.placement: Placement | None = None
        """Where the jobs of an app with shards go."""
        self.limits: LimitSettings | None = None
        """None: to be read from the settings by the next call."""
        self.tracing: Tracing | None = None
        self.run_at_once: Callable[[], None] | None = None
        """Called after an enqueue: `app.immediate()` runs what was enqueued."""

    def check(
        self, task: TaskDefinition, args: tuple[Any, ...], kwargs: dict[str, Any], options: JobOptions
    ) -> Call[Any]:
        """The call with these arguments, or ArgumentsError."""
        if self.limits is None:
            self.limits = self.access.limits()
        text, body, headers = task.arguments.encode(args, kwargs, limit=self.limits.arguments), in_task.get(), None
        span, carried = (None, None) if self.tracing is None else self.tracing.begin(task, options)
        if options.headers or carried or task.surroundings.variables or (body is not None and body.headers):
            inherited = None if body is None else body.headers
            given = {**(options.headers or {}), **carried} if carried else options.headers
            headers = task.surroundings.headers(given, inherited, limit=self.limits.headers)
        unique, rule = None, task.options.unique
        if rule is not None:  # the one place where the key of a unique task's call is made
            if options.key is not None and options.schedule is None:
                raise UsageError(
                    f"Task {task.name} is unique: the key of a job is made from its arguments.",
                    remedy="Leave out key=, or unique= of the task.",
                )
            key = self.access.keys.of_arguments(task.arguments, text, rule.parameters or None)
            unique = Unique(key=key, keep=rule.keep, until_start=rule.until_start)
        return Call(task, text, options, headers, unique, span)

    def enqueue_one(self, call: Call[R], connection: object) -> Coroutine[Any, Any, Job[R]]:
        """`enqueue` of one job, the usual case."""
        if self.tracing is not None or self.run_at_once is not None:
            return _first(self.enqueue([call], connection, name="enqueue"))
        if in_task.get() is not None:
            _notice()
        return self.access.sender.send(
            lambda place: _first(self._insert_in(place, [call])),
            lambda store: self._insert_one(call, store),
            connection,
            name="enqueue",
        )

    def enqueue(self, calls: Sequence[Call[R]], connection: object, *, name: str) -> Coroutine[Any, Any, list[Job[R]]]:
        """Insert jobs: in the user's transaction on `connection`, in the task's open block, or on their own."""
        _notice()
        sending = self.access.sender.send(
            lambda place: self._insert_in(place, calls),
            lambda store: self._insert(calls, store),
            connection,
            name=name,
        )
        if self.tracing is not None:
            sending = _traced(self.tracing, calls, sending)
        return sending if self.run_at_once is None else _followed(sending, self.run_at_once)

    def enqueue_sync(self, calls: Sequence[Call[R]], connection: object, *, name: str) -> list[Job[R]]:
        """`enqueue` for synchronous code.

        With `connection` also on a running loop: it blocks that anyway.
        """
        _notice()

        def send() -> list[Job[R]]:
            return self.access.sender.send_sync(
                lambda place: self._insert_in(place, calls),
                lambda store: self._insert(calls, store),
                connection,
                name=name,
            )

        jobs = send() if self.tracing is None else _traced_sync(self.tracing, calls, send)
        if self.run_at_once is not None:
            self.run_at_once()
        return jobs

    def new_ids(self, count: int, *, shard: int | None = None) -> list[UUID]:
        """UUIDs in ascending order and in order of time (version 7).

        So new rows are adjacent, and of two jobs with one key the first wins. The first UUID has 73
        random bits, one less than fit; each further one adds a random step of 32 bits. No step is
        0, so no two are equal.
        """
        milliseconds, first = time.time_ns() // 1_000_000, self._rng.getrandbits(12) << 64 | self._rng.getrandbits(61)
        steps = memoryview(self._rng.randbytes(4 * (count - 1))).cast("I")
        numbers = accumulate(steps, initial=milliseconds << 80 | _VERSION_7 | first)
        ids = [UUID(int=number + nth) for nth, number in enumerate(numbers)]
        return ids if shard is None else [numbered(job_id, shard) for job_id in ids]

    async def again(self, payload: Payload, store: Store) -> Job[Any]:
        """Insert another job with what one was given, due at once. Its task need not be known here."""
        task = self.access.shown.registry.find(payload.task)
        attempts = msgspec.UNSET if task is None else task.options.max_attempts
        (job_id,) = self.new_ids(1)
        job = NewJob(
            id=job_id,
            task=payload.task,
            args=payload.args or "{}",
            headers=payload.headers,
            queue=payload.queue,
            priority=5 if payload.priority is None else payload.priority,
            max_attempts=ONE_OFF_ATTEMPTS if attempts is msgspec.UNSET else attempts,
            lock_timeout=None if task is None else task.options.lock_timeout,
            limits=self._limits(task, payload.args or "{}"),
        )
        jobs = [job] if self.placement is None else await self._on_shards([job], store)
        (job,), _ = await self._insert_rows(jobs, store)
        await self.access.sender.signal(store, [job.id])
        return Job(self.access, job.id, payload.task, None, task)

    def _limits(self, task: TaskDefinition | None, args: str) -> tuple[str, ...]:
        """The keys of a job with these arguments; a task that is not known here has none."""
        limits = None if task is None else task.limits
        return () if task is None or limits is None else limits.keys(task.arguments, args, self.access.keys)

    # In a statement of their own

    async def _insert_one(self, call: Call[R], store: Store) -> Job[R]:
        """Insert one job, and signal."""
        options = call.options
        if (
            options.key is not None
            or options.schedule is not None
            or call.unique is not None
            or self.placement is not None
        ):
            return (await self._insert([call], store))[0]
        job = call.job(self.new_ids(1)[0], self.access.keys)
        try:
            created = await store.enqueue_jobs([job])
        except AmbiguousError as lost:
            created = await _insert_again(store.enqueue_jobs, [job], lost)
        if created:
            await self.access.sender.signal(store)
        return Job(self.access, job.id, job.task, None, call.task, bool(created))

    async def _insert(self, calls: Sequence[Call[R]], store: Store) -> list[Job[R]]:
        """Insert jobs in as few statements as possible, and signal once."""
        if len(calls) == 1:
            inserted = await self._insert_batch(calls, store)
            if inserted[0].created or calls[0].options.replace:
                await self.access.sender.signal(store, [inserted[0].id])
            return inserted
        try:
            done, errors = await overlapping(
                lambda batch: self._insert_batch(batch, store), batches(calls, store.bulk), at_once=AT_ONCE
            )
        finally:
            await self.access.sender.signal(store)  # also for batches that were inserted before one failed
        inserted = [job for batch in done for job in batch]
        if errors:
            raise_first(errors, inserted=sum(job.created for job in inserted), wanted=len(calls))
        return inserted

    async def _insert_batch(self, calls: Sequence[Call[R]], store: Store) -> list[Job[R]]:
        jobs, created = await self._insert_rows(await self._rows(calls, store), store)
        pairs = list(zip(calls, jobs, strict=True))
        for call, job in pairs:
            if call.options.replace and job.schedule is not None and job.id not in created:
                await replace_schedule(job, store)
        if len(created) == len(jobs):
            return [Job(self.access, job.id, job.task, job.key, call.task) for call, job in pairs]
        try:
            return await self._handles(pairs, created, store)
        except ReltaskError:
            if not created:  # else the error would say that nothing was inserted
                raise
            return [Job(self.access, job.id, job.task, job.key, call.task, job.id in created) for call, job in pairs]

    async def _insert_rows(self, jobs: list[NewJob], store: Store) -> tuple[list[NewJob], set[UUID]]:
        """Insert them; those that may live on any shard go to another one if theirs does not answer."""
        others = () if self.placement is None or not all(map(is_free, jobs)) else self.placement.numbers[1:]
        for _ in others:
            try:
                return jobs, await insert_surely(jobs, store)
            except TransientError:  # certainly not inserted
                jobs = await self._on_shards(jobs, store)
        return jobs, await insert_surely(jobs, store)

    async def _on_shards(self, jobs: list[NewJob], place: Place) -> list[NewJob]:
        numbers = await cast("Placing", place).placed(jobs)
        return [replace(job, id=numbered(job.id, number)) for job, number in zip(jobs, numbers, strict=True)]

    # In an open transaction

    async def _insert_in(self, transaction: TaskTransaction | Transaction, calls: Sequence[Call[R]]) -> list[Job[R]]:
        """Insert jobs inside an open transaction; a task's own block sends its signal after the commit."""
        inserted: list[Job[R]] = []
        if any(call.options.replace and call.options.schedule is not None for call in calls):
            raise UsageError(
                "replace=True inside a transaction would have to wait for the schedule's row.",
                remedy="Call it before the transaction or after its commit.",
            )
        for batch in batches(calls, BATCH):
            jobs = await self._rows(batch, transaction)
            plain, unique = _by_verb(jobs)
            created = await transaction.enqueue_jobs(plain) if plain else set()
            created |= await transaction.enqueue_unique(unique) if unique else set()
            pairs = list(zip(batch, jobs, strict=True))
            inserted += await self._handles(pairs, created, transaction, joined=True)
        return inserted

    # Both

    async def _rows(self, calls: Sequence[Call[Any]], place: Place) -> list[NewJob]:
        """The rows to insert. A schedule begins at its first slot, by the database's clock."""
        hashing = self.access.keys
        jobs = [call.job(job_id, hashing) for call, job_id in zip(calls, self.new_ids(len(calls)), strict=True)]
        if self.placement is not None:
            jobs = await self._on_shards(jobs, place)
        if any(job.key and call.task.aliases for call, job in zip(calls, jobs, strict=True)):
            jobs = await under_former_names([call.task for call in calls], jobs, place)
        if all(job.schedule is None for job in jobs):
            return jobs
        now = await place.read_now()
        return [job if job.schedule is None else _placed(job, job.schedule, now) for job in jobs]

    async def _handles(
        self, pairs: list[tuple[Call[R], NewJob]], created: set[UUID], place: Place, *, joined: bool = False
    ) -> list[Job[R]]:
        """A handle for each job; if its key was taken, the handle of the job that has the key."""
        names = {job.id: (job.task, job.key) for _, job in pairs if job.key is not None and job.id not in created}
        owners = await owners_of(list(names.values()), place)
        found = {job_id: owners[name] for job_id, name in names.items() if name in owners}
        refused = [(job, bool(call.options.replace)) for call, job in pairs if job.id not in created]
        found |= await owners_of_unique(refused, place)
        created = created | {job_id for job_id, owner in found.items() if owner == job_id}
        return [
            Job(
                self.access,
                found.get(job.id, job.id),
                job.task,
                job.key,
                call.task,
                created=job.id in created,
                _joined=joined and job.id in created,
            )
            for call, job in pairs
        ]


async def _traced(
    tracing: Tracing, calls: Sequence[Call[R]], sending: Coroutine[Any, Any, list[Job[R]]]
) -> list[Job[R]]:
    with tracing.sending(calls) as sent:
        jobs = await sending
        sent(jobs)
        return jobs


def _traced_sync(tracing: Tracing, calls: Sequence[Call[R]], send: Callable[[], list[Job[R]]]) -> list[Job[R]]:
    with tracing.sending(calls) as sent:
        jobs = send()
        sent(jobs)
        return jobs


async def _followed(sending: Coroutine[Any, Any, T], then: Callable[[], None]) -> T:
    answer = await sending
    then()
    return answer


def _placed(job: NewJob, schedule: str, now: datetime) -> NewJob:
    """A schedule's job, due at its first slot."""
    if job.run_at is not None or job.delay is not None:
        return job
    rule = decode(schedule)
    moment = first_slot(rule, now, str(job.id))
    if has_ended(rule, moment):
        raise UsageError(f"The schedule of {job.task} has no slot before its end.", remedy="Write a later end=.")
    return replace(job, run_at=moment)


async def _first(inserting: Coroutine[Any, Any, list[Job[R]]]) -> Job[R]:
    return (await inserting)[0]


def _notice() -> None:
    """Let a durable function know that its body enqueues: at each resume it would do so again."""
    body = in_task.get()
    if body is not None and body.on_enqueue is not None:
        body.on_enqueue("enqueued a job")


def _by_verb(jobs: Sequence[NewJob]) -> tuple[list[NewJob], list[NewJob]]:
    """Plain jobs, and those of unique tasks."""
    return [job for job in jobs if job.unique is None], [job for job in jobs if job.unique is not None]


async def insert_surely(jobs: list[NewJob], store: Store) -> set[UUID]:
    """Insert plain jobs, and those of unique tasks whose keys are free."""
    created: set[UUID] = set()
    for insert, some in zip((store.enqueue_jobs, store.enqueue_unique), _by_verb(jobs), strict=True):
        if some:
            try:
                created |= await insert(some)
            except AmbiguousError as lost:
                created |= await _insert_again(insert, some, lost)
    return created


async def _insert_again(
    insert: Callable[..., Awaitable[set[UUID]]], jobs: list[NewJob], lost: AmbiguousError
) -> set[UUID]:
    """After a lost answer send the same ids again, which inserts no job twice.

    After an AmbiguousError no other error is raised instead: it would say that nothing was applied,
    and the caller would enqueue again, with other ids.
    """
    for _ in range(RESENDS):
        try:
            return await insert(jobs, again=True)
        except AmbiguousError as error:
            lost = error
        except ReltaskError as error:
            raise lost from error
    raise lost
