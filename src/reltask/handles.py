"""What a decorated function becomes: still a function, and a way to enqueue it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any, Generic, ParamSpec, TypeVar
from uuid import UUID

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reltask.client import Client, refuse_running_loop
from reltask.duration import Duration, parse_duration
from reltask.engine.transaction import TaskTransaction, open_transaction, run_here
from reltask.errors import AmbiguousError, ArgumentsError, DatabaseError, DeclarationError, UsageError
from reltask.job import JobView, NewJob, RunView
from reltask.schedule import Schedule, decode, encode, first_slot, make_schedule
from reltask.store import BATCH, Borrowed, Store, Transaction
from reltask.tasks import ONE_OFF_ATTEMPTS, PRIORITIES, TaskDefinition

P = ParamSpec("P")
"""The parameters of `enqueue`: the function's, without its context."""
Q = ParamSpec("Q")
"""The parameters of a direct call: the function's own."""
R = TypeVar("R")
B = TypeVar("B")
T = TypeVar("T")

_LONGEST_NAME = 400
_VERSION_7 = 7 << 76 | 0b10 << 62
_FREE = ~(0xF << 76 | 0b11 << 62)
"""The bits of an id that say nothing about its version."""
AT_ONCE = 2
"""Batches that a bulk insert has under way: the server works on one while the next is made ready."""
RESENDS = 3
"""How often an insert whose answer was lost is sent again."""


class Job:
    """A job that has been enqueued."""

    def __init__(self, client: Client, job_id: UUID, task: str, *, created: bool = True) -> None:
        self._client = client
        self.id = job_id
        self.task = task
        self.created = created
        """False: a job of this task with the same `key` exists already, and this is it."""

    def __repr__(self) -> str:
        return f"<job {self.id} of {self.task}>"

    def view(self) -> Coroutine[Any, Any, JobView | None]:
        """The job's row, or None once a one-off is done."""
        return self._client.run(lambda store: store.read_job(self.id), name="view")

    def view_sync(self) -> JobView | None:
        """`view` for synchronous code."""
        return self._client.run_sync(lambda store: store.read_job(self.id), name="view")

    def runs(self) -> Coroutine[Any, Any, list[RunView]]:
        """The job's runs that have ended, newest first."""
        return self._client.run(lambda store: store.list_runs(job_id=self.id), name="runs")

    def runs_sync(self) -> list[RunView]:
        """`runs` for synchronous code."""
        return self._client.run_sync(lambda store: store.list_runs(job_id=self.id), name="runs")


class Options(Struct, frozen=True, kw_only=True):
    """What one call of `enqueue` changes about its job."""

    queue: str | None = None
    priority: int | None = None
    key: str | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    schedule: Schedule | None = None
    max_attempts: int | msgspec.UnsetType | None = msgspec.UNSET
    lock_timeout: timedelta | None = None

    def with_given(self, given: Options) -> Options:
        """These options, where `given` says nothing else."""
        said = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not None}
        if given.max_attempts is msgspec.UNSET:
            del said["max_attempts"]
        else:
            said["max_attempts"] = given.max_attempts
        return msgspec.structs.replace(self, **said)


class Call(Struct, frozen=True):
    """A task together with its arguments, checked, ready to be enqueued with others or to be scheduled."""

    task: TaskDefinition
    args: str
    options: Options

    def job(self, job_id: UUID) -> NewJob:
        """The row to insert."""
        task, options = self.task, self.options
        return NewJob(
            id=job_id,
            task=task.name,
            args=self.args,
            queue=options.queue or task.options.queue,
            priority=task.options.priority if options.priority is None else options.priority,
            key=options.key,
            schedule=None if options.schedule is None else encode(options.schedule),
            run_at=options.at,
            delay=options.delay,
            max_attempts=self._max_attempts(),
            lock_timeout=options.lock_timeout or task.options.lock_timeout,
        )

    def _max_attempts(self) -> int | None:
        """This call's own limit, or the task's; a recurring job without one has none, a one-off has a few."""
        for chosen in (self.options.max_attempts, self.task.options.max_attempts):
            if chosen is not msgspec.UNSET:
                return chosen
        return ONE_OFF_ATTEMPTS if self.options.schedule is None else None


class Producer(Generic[P]):
    """Something that can be enqueued: a task, or a task with options."""

    def __init__(
        self, definition: TaskDefinition, host: ProducerHost, options: Options, connection: object = None
    ) -> None:
        self.definition = definition
        self._host = host
        self._options = options
        self._connection = connection

    @property
    def name(self) -> str:
        """The task's name, as stored in its jobs."""
        return self.definition.name

    def call(self, *args: P.args, **kwargs: P.kwargs) -> Call:
        """These arguments, checked: for `app.enqueue_many` and `app.schedule`."""
        if self._connection is not None:
            raise UsageError(
                "A call that is enqueued with others has no connection of its own.",
                remedy="Write app.enqueue_many(calls, connection=…).",
            )
        return self._checked(args, kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, Job]:
        """Have a worker call the function with these arguments."""
        call = self._checked(args, kwargs)
        joining = self._host.join([call], self._connection, name="enqueue")
        if joining is not None:
            return _first(joining)
        return self._host.client.run(self._inserting(call), name="enqueue")

    def enqueue_sync(self, *args: P.args, **kwargs: P.kwargs) -> Job:
        """`enqueue` for synchronous code."""
        call = self._checked(args, kwargs)
        joined = self._host.join_sync([call], self._connection, name="enqueue")
        if joined is not None:
            return joined[0]
        return self._host.client.run_sync(self._inserting(call), name="enqueue")

    def using(
        self,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        queue: str | None = None,
        priority: int | None = None,
        key: str | None = None,
        max_attempts: int | msgspec.UnsetType | None = msgspec.UNSET,
        lock_timeout: Duration | None = None,
        every: Duration | None = None,
        cron: str | None = None,
        timezone: str | None = None,
        align: bool = False,
        connection: Any = None,
    ) -> Producer[P]:
        """The same task with other options for the jobs enqueued through the result.

        With `connection`, your own connection or session with its open transaction, the jobs exist when you commit,
        and never if you roll back. Workers hear of them at their next wake-up, or by `app.notify()`.
        """
        given = Options(
            queue=queue,
            priority=priority,
            key=key,
            at=at,
            delay=_length("delay", delay),
            schedule=make_schedule(every=every, cron=cron, timezone=timezone, align=align),
            max_attempts=max_attempts,
            lock_timeout=_length("lock_timeout", lock_timeout),
        )
        options = self._options.with_given(given)
        check_options(options)
        return Producer(self.definition, self._host, options, connection or self._connection)

    def _checked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        text = self.definition.arguments.encode(args, kwargs, limit=self._host.arguments_limit)
        return Call(self.definition, text, self._options)

    def _inserting(self, call: Call) -> Callable[[Store], Coroutine[Any, Any, Job]]:
        return functools.partial(self._host.insert, call)


class Task(Producer[P], Generic[P, Q, R]):
    """A registered function. Calling it calls the function; `enqueue` has a worker call it."""

    def __init__(self, definition: TaskDefinition, host: ProducerHost) -> None:
        super().__init__(definition, host, Options())
        functools.update_wrapper(self, definition.function)

    @property
    def function(self) -> Callable[Q, R]:
        """The function itself."""
        return self.definition.function

    def __call__(self, *args: Q.args, **kwargs: Q.kwargs) -> R:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return repr(self.definition)


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
        """Time-ordered UUIDs (version 7), so that new rows lie side by side in every index."""
        since, chance = time.time_ns() // 1_000_000 << 80, self._rng.randbytes(10 * count)
        numbers = [since | int.from_bytes(chance[at : at + 10]) for at in range(0, 10 * count, 10)]
        return [UUID(int=number & _FREE | _VERSION_7) for number in numbers]

    def _new_jobs(self, calls: list[Call]) -> list[NewJob]:
        return [call.job(job_id) for call, job_id in zip(calls, self.new_ids(len(calls)), strict=True)]

    async def signal(self, store: Store) -> None:
        """Tell workers, here and elsewhere, that there may be something to do. Losing it costs time, not a job."""
        self._wake()
        with contextlib.suppress(DatabaseError):
            await store.signal()

    async def insert(self, call: Call, store: Store) -> Job:
        """Insert one job; where its key is taken, name the job that has it."""
        (job,) = await self._placed(self._new_jobs([call]), store)
        if await self._insert_surely([job], store):
            await self.signal(store)
            return Job(self.client, job.id, job.task, created=True)
        known = await store.read_declared([(job.task, job.key)])
        return Job(self.client, known[0].id if known else job.id, job.task, created=False)

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
            jobs = await self._placed(self._new_jobs(batch), transaction)
            inserted += self._handles(jobs, await transaction.enqueue_jobs(jobs))
        return inserted

    async def insert_many(self, calls: list[Call], store: Store) -> list[Job]:
        """Insert jobs in as few statements as possible, and signal once."""
        batches = _batches(calls, store.bulk)
        inserted = await _overlapping(lambda batch: self._insert_batch(batch, store), batches, at_once=AT_ONCE)
        await self.signal(store)
        return [job for batch in inserted for job in batch]

    async def _insert_batch(self, calls: list[Call], store: Store) -> list[Job]:
        jobs = await self._placed(self._new_jobs(calls), store)
        return self._handles(jobs, await self._insert_surely(jobs, store))

    def _handles(self, jobs: list[NewJob], created: set[UUID]) -> list[Job]:
        if len(created) == len(jobs):  # as nearly always: nobody need be looked up
            return [Job(self.client, job.id, job.task) for job in jobs]
        return [Job(self.client, job.id, job.task, created=job.id in created) for job in jobs]

    async def _placed(self, jobs: list[NewJob], store: Store | Transaction | TaskTransaction) -> list[NewJob]:
        """Give new schedules their first slot, which for a grid is a time that only the database's clock can tell."""
        if all(job.schedule is None for job in jobs):
            return jobs
        now = await store.read_now()
        return [_at_first_slot(job, now) for job in jobs]

    async def _insert_surely(self, jobs: list[NewJob], store: Store) -> set[UUID]:
        """Insert; when the answer is lost, send the same ids again: what has landed is not inserted twice."""
        lost = False
        for _ in range(RESENDS):
            try:
                created = await store.enqueue_jobs(jobs)
            except AmbiguousError:
                lost = True
            else:
                return created | {job.id for job in jobs if lost and await _is_known(job.id, store)}
        return await store.enqueue_jobs(jobs)


def _batches(calls: list[Call], size: int) -> Iterator[list[Call]]:
    return (calls[start : start + size] for start in range(0, len(calls), size))


async def _overlapping(work: Callable[[B], Coroutine[Any, Any, T]], given: Iterable[B], *, at_once: int) -> list[T]:
    """Work on all of these, so many at a time. After a failure nothing more is begun, and nothing left under way."""
    waiting, done = deque(enumerate(given)), {}

    async def one_by_one() -> None:
        while waiting:
            nth, one = waiting.popleft()
            try:
                done[nth] = await work(one)
            except BaseException:
                waiting.clear()
                raise

    for ended in await asyncio.gather(*(one_by_one() for _ in range(at_once)), return_exceptions=True):
        if ended is not None:
            raise ended
    return [done[nth] for nth in sorted(done)]


async def _first(inserting: Coroutine[Any, Any, list[Job]]) -> Job:
    return (await inserting)[0]


def _at_first_slot(job: NewJob, now: datetime) -> NewJob:
    if job.schedule is None or job.run_at is not None or job.delay is not None:
        return job
    return replace(job, run_at=first_slot(decode(job.schedule), now))


async def _is_known(job_id: UUID, store: Store) -> bool:
    return await store.read_job(job_id) is not None or bool(await store.list_runs(job_id=job_id, limit=1))


def _length(name: str, value: Duration | None) -> timedelta | None:
    try:
        return None if value is None else parse_duration(value, name=name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def check_options(options: Options) -> None:
    """Refuse, in words, what could never run as meant."""
    if options.at is not None and options.at.tzinfo is None:
        raise UsageError(f"at={options.at} has no time zone.", remedy="Write datetime(..., tzinfo=timezone.utc).")
    if options.at is not None and options.delay is not None:
        raise UsageError("Both at= and delay= are given.", remedy="Give one of them.")
    if options.priority is not None and options.priority not in PRIORITIES:
        raise UsageError(f"priority={options.priority} is outside 0 (first) to 9 (last).")
    if options.schedule is not None and options.key is None:
        raise DeclarationError(
            "A schedule made at run time needs a key.", remedy='Write using(key="…", every=…), so that it exists once.'
        )
    if options.key is not None and not 0 < len(options.key) <= _LONGEST_NAME:
        raise ArgumentsError(f"key= must have 1 to {_LONGEST_NAME} characters.")
