"""Several shards behind the store interface: for producers, operators and the command line.

    enqueue, signal, read by id ──► the shard that the id or the key names
    lists, counts, audits ────────► all shards, merged
    leases, actions ──────────────► the first shard: they exist once
    claims, beats, settlements ───► not here: a worker serves each shard through its own store (worker/shards.py)

`shard_routes.py` says which way each verb goes. A verb of the store interface that has no route is an error of
a test, not of a user. A pause of a queue holds on every shard.

Shards fail one by one. A write goes to one shard and fails with it. An insert on several shards that
fails on some of them is ambiguous, like one whose answer was lost: sent again, it inserts what is
missing. `read_status` and `read_overview` count the shards that answer and name the others; other reads fail, because
half a list looks like a whole one.

No call about one shard waits for another one longer than PATIENCE. Which shards there are and which are being drained
is asked beside the calls: a shard that is silent answers that question when it can, and gets no jobs without a key
meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime
from functools import partial
from typing import Any, cast
from uuid import UUID

from reltask.errors import AmbiguousError, DatabaseError, ReltaskError, TransientError, UsageError
from reltask.model.doctor import Facts
from reltask.model.job import NewJob
from reltask.model.merged import merge_status
from reltask.model.schema_name import split_schema
from reltask.model.shards import Placement, ShardMark, no_shard_answers, shard_of
from reltask.model.views import ShardView
from reltask.stores.shard_connection import Shard, ShardedConnection
from reltask.stores.shard_keys import ShardedKeys, send
from reltask.stores.shard_routes import GLANCE, PATIENCE, ROUTES, any_transient
from reltask.stores.store import BATCH, Store, open_as_shard
from reltask.stores.waking import Wake

FRESH = 10.0
"""Seconds after which a producer reads again which shards are being drained."""


class ShardedStore(ShardedKeys):
    """All shards of a system. Belongs to one event loop, as every store."""

    bulk = BATCH

    def __init__(self, shards: Sequence[Shard], placement: Placement) -> None:
        self._shards = {shard.number: shard for shard in shards}
        self._open: set[int] = set()
        self._opening: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)
        self.placement = placement
        self._read_at = float("-inf")
        self._marking: dict[int, asyncio.Task[ReltaskError | None]] = {}
        """Shards that are being asked which one they are."""
        self._late: dict[asyncio.Future[Any], int] = {}
        """Questions and signals that no caller waits for any more, and their shards."""
        self._written: set[int] = set()

    def __getattr__(self, verb: str) -> Callable[..., Any]:
        route = ROUTES.get(verb)
        if route is None:
            raise AttributeError(f"{verb} is not sent to several shards at once")
        return lambda *args, **named: route(self, verb, args, named)

    # Opening

    async def open(self) -> None:
        """Open the shards. An error if none answers, or if one refuses; one that is late is opened when it answers."""
        self._read_at = time.monotonic()
        try:
            await self._first_marks(set(self._read_marks().values()))
        except BaseException:
            await self._forget()
            raise

    async def _first_marks(self, waiting: set[asyncio.Task[ReltaskError | None]]) -> None:
        """Wait for all of these answers, but once there is one only for a while."""
        answered, error = False, TransientError("")
        while waiting:
            patience = PATIENCE if answered else None
            done, waiting = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                return
            for found in [task.result() for task in done]:
                if isinstance(found, TransientError):
                    error = found
                elif found is not None:
                    raise found
                answered = answered or found is None
        if not answered:
            raise no_shard_answers(error)

    async def close(self) -> None:
        await self._forget()
        await asyncio.gather(*(shard.store.close() for shard in self._shards.values()))
        self._open.clear()

    async def _forget(self) -> None:
        """End what runs beside the calls."""
        beside = [*self._marking.values(), *self._late]
        for task in beside:
            task.cancel()
        await asyncio.gather(*beside, return_exceptions=True)

    def dedicated(self, **options: Any) -> Store:
        """Of the first shard: only leases use it."""
        return self._shards[self.placement.home].store.dedicated(**options)

    async def _opened(self, number: int) -> Store:
        store = self._shards[number].store
        if number not in self._open:
            async with self._opening[number]:
                if number not in self._open:
                    await open_as_shard(store, number)
                    self._open.add(number)
        return store

    # Asking

    def wrote(self, number: int) -> None:
        """The next signal is for this shard, too."""
        self._written.add(number)

    def has(self, number: int | None) -> bool:
        return number in self._shards

    @property
    def numbers(self) -> list[int]:
        return list(self._shards)

    @property
    def home(self) -> int:
        return self.placement.home

    async def ask(self, number: int, question: Callable[[Store], Awaitable[Any]]) -> Any:
        """Ask one shard. Its number is in the error, if it does not answer."""
        try:
            answer = await question(await self._opened(number))
        except DatabaseError as error:
            if isinstance(error, TransientError | AmbiguousError):
                self.placement.did_not_answer(number, time.monotonic())
            raise type(error)(f"Shard {number}: {error.message}", remedy=error.remedy) from error
        self.placement.answered(number)
        return answer

    async def ask_all(
        self, question: Callable[[Store], Awaitable[Any]], numbers: Collection[int], *, patience: float | None = None
    ) -> dict[int, Any | ReltaskError]:
        """Ask several shards at once: the answers and the errors.

        With `patience` a shard that is silent for that many seconds does not answer; while an earlier question to it
        is open, it is not asked again.
        """
        open_still = {} if patience is None else self._late
        silent = {number for number in open_still.values() if self.placement.is_away(number, time.monotonic())}
        asked = {n: asyncio.ensure_future(self.ask(n, question)) for n in numbers if n not in silent}
        try:
            if asked:
                await asyncio.wait(asked.values(), timeout=patience)
        except BaseException:
            for task in asked.values():
                task.cancel()
            raise
        return {number: self._answer(number, asked.get(number), patience) for number in numbers}

    def _answer(self, number: int, question: asyncio.Future[Any] | None, patience: float | None) -> Any | ReltaskError:
        if question is None or not question.done():
            self._leave(number, question)
            return TransientError(f"Shard {number}: no answer within {patience} s.")
        error = question.exception()
        return error if isinstance(error, ReltaskError) else question.result()

    def _leave(self, number: int, question: asyncio.Future[Any] | None) -> None:
        """No caller waits for this answer any more; what it says about the shard is learnt nevertheless."""
        self.placement.did_not_answer(number, time.monotonic())
        if question is not None:
            self._late[question] = number
            question.add_done_callback(self._ended)

    def _ended(self, question: asyncio.Future[Any]) -> None:
        del self._late[question]
        if not question.cancelled():
            question.exception()  # it was the answer of a question that is over

    async def every(
        self, question: Callable[[Store], Awaitable[Any]], numbers: Collection[int] | None = None
    ) -> list[Any]:
        """The answers of all of these shards, or the first error."""
        found = await self.ask_all(question, self._shards if numbers is None else numbers)
        for answer in found.values():
            if isinstance(answer, ReltaskError):
                raise answer
        return list(found.values())

    # Producing

    async def placed(self, jobs: Sequence[NewJob]) -> list[int]:
        """The shard of each of these new jobs."""
        await self._refresh()
        return self.placement.place(jobs, time.monotonic())

    async def _refresh(self) -> None:
        """Read which shards are being drained, now and then. One that is away keeps its mark, and is not awaited."""
        now = time.monotonic()
        if now - self._read_at < FRESH:
            return
        self._read_at = now
        here = [task for number, task in self._read_marks().items() if not self.placement.is_away(number, now)]
        if here:
            await asyncio.wait(here, timeout=PATIENCE)

    def _read_marks(self) -> dict[int, asyncio.Task[ReltaskError | None]]:
        """Ask all shards at once which one they are, and whether they are being drained."""
        for number in self._shards.keys() - self._marking.keys():
            self._marking[number] = task = asyncio.ensure_future(self._read_mark(number))
            task.add_done_callback(lambda _, number=number: self._marking.pop(number))  # type: ignore[misc] # inferred
        return dict(self._marking)

    async def _read_mark(self, number: int) -> ReltaskError | None:
        with self._expected(number):
            try:
                mark: ShardMark = await self.ask(number, lambda store: store.read_shard())
            except ReltaskError as error:
                return error
        rest = self.placement.draining - {number}
        self.placement.draining = rest | {number} if mark.draining else rest
        return None

    @contextmanager
    def _expected(self, number: int) -> Iterator[None]:
        """A shard that is silent for PATIENCE gets no jobs that may live elsewhere, until it answers."""
        silent = asyncio.get_running_loop().call_later(
            PATIENCE, lambda: self.placement.did_not_answer(number, time.monotonic())
        )
        try:
            yield
        finally:
            silent.cancel()

    async def insert(self, verb: str, jobs: Sequence[NewJob], *, again: bool) -> set[UUID]:
        groups = self.by_shard(jobs, lambda job: job.id)
        self._written |= groups.keys()
        answers = await asyncio.gather(
            *(
                self._insert_on(number, partial(send, verb, (some,), {"again": again}))
                for number, some in groups.items()
            ),
            return_exceptions=True,
        )
        return _inserted(answers, len(jobs))

    async def _insert_on(self, number: int, question: Callable[[Store], Awaitable[Any]]) -> Any:
        with self._expected(number):
            return await self.ask(number, question)

    def by_shard(self, rows: Iterable[Any], id_of: Callable[[Any], UUID]) -> dict[int, list[Any]]:
        """These rows by the shard of their ids."""
        found: dict[int, list[Any]] = {}
        for row in rows:
            number = shard_of(id_of(row))
            found.setdefault(self.home if number is None or number not in self._shards else number, []).append(row)
        return found

    def borrow(self, connection: object) -> ShardedConnection:
        """The shards in the database of the user's own connection."""
        return ShardedConnection(self._shards, self.placement, connection)

    # Reading

    async def read_status(self) -> Any:
        found = await self.ask_all(lambda store: store.read_status(), self._shards, patience=GLANCE)
        away = [number for number, status in found.items() if isinstance(status, ReltaskError)]
        answers = [status for status in found.values() if not isinstance(status, ReltaskError)]
        if not answers:
            raise no_shard_answers(any_transient(found.values()))
        return merge_status(answers, away)

    async def list_shards(self) -> list[ShardView]:
        """What each shard says about itself."""
        marks = await self.ask_all(lambda store: store.read_shard(), self._shards, patience=GLANCE)
        states = await self.ask_all(lambda store: store.read_status(), self._shards, patience=GLANCE)
        return [_view(number, marks[number], states[number]) for number in self._shards]

    async def examine(self, number: int | None = None) -> Facts:
        """Of the first shard, or this one, in any state: it is not opened."""
        return await self._shards[self.home if number is None else number].store.examine()

    async def drain(self, number: int, *, draining: bool) -> ShardView:
        """Let a shard get no new jobs, or some again, and say how many it still has."""
        if number not in self._shards:
            raise UsageError(f"There is no shard {number}.", remedy=f"Shards: {', '.join(map(str, self._shards))}.")
        if draining and number == self.home:
            raise UsageError(
                f"Shard {number} is the first one: schedules and leases live there.", remedy="Drain another one."
            )
        await self.ask(number, lambda store: store.drain_shard(draining=draining))
        self._read_at = float("-inf")
        mark = await self.ask(number, lambda store: store.read_shard())
        return _view(number, mark, await self.ask(number, lambda store: store.read_status()))

    async def audit_slice(self, *, after: UUID, rows: int) -> UUID | None:
        """The first of the ends of the shards' slices: none has more than `rows` rows up to there."""
        ends = await self.every(lambda store: store.audit_slice(after=after, rows=rows))
        return min((end for end in ends if end is not None), default=None)

    async def signal(self, due_at: datetime | None = None) -> None:
        """On the shards that were written to since the last signal; if there are none, on all."""
        written, self._written = self._written or set(self._open), set()
        signals = {asyncio.ensure_future(self._shards[number].store.signal(due_at)): number for number in written}
        if signals:
            _, late = await asyncio.wait(signals, timeout=PATIENCE)
            for signal in late:
                self._leave(signals[signal], signal)

    @asynccontextmanager
    async def listen(self, wake: Wake, **more: Any) -> AsyncIterator[bool]:
        """On the shards that answer. Without signals, if not all do."""
        now = time.monotonic()
        listening = [
            _Listening(self._shards[number].store, wake, more)
            for number in self._open
            if not self.placement.is_away(number, now)
        ]
        try:
            if listening:
                await asyncio.wait([one.begun for one in listening], timeout=PATIENCE)
            heard = [one.begun.done() and one.begun.result() for one in listening]
            yield len(heard) == len(self._shards) and all(heard)
        finally:
            for one in listening:
                one.task.cancel()
            await asyncio.gather(*(one.task for one in listening), return_exceptions=True)


class _Listening:
    """Listening on one shard, however long its connection takes."""

    def __init__(self, store: Store, wake: Wake, more: dict[str, Any]) -> None:
        self.begun: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        """Whether the shard has signals; False if listening failed."""
        self.task = asyncio.ensure_future(self._listen(store, wake, more))

    async def _listen(self, store: Store, wake: Wake, more: dict[str, Any]) -> None:
        try:
            async with store.listen(wake, **more) as heard:
                self.begun.set_result(heard)
                await asyncio.Event().wait()
        finally:
            if not self.begun.done():
                self.begun.set_result(False)


def sharded_store(stores: Mapping[int, Store], urls: Mapping[int, str], placement: Placement) -> Store:
    """All shards as one store, for producers and operators."""
    shards = [Shard(number, store, *split_schema(urls[number])) for number, store in stores.items()]
    return cast("Store", ShardedStore(shards, placement))


def _view(number: int, mark: Any, status: Any) -> ShardView:
    if isinstance(mark, ReltaskError) or isinstance(status, ReltaskError):
        return ShardView(number=number, answers=False)
    jobs = status.ready + status.suspended + status.due + status.running + status.expired + status.paused + status.dead
    return ShardView(number=number, answers=True, draining=mark.draining, jobs=jobs)


def _inserted(answers: Sequence[Any], wanted: int) -> set[UUID]:
    """What was inserted on all shards, or AmbiguousError if only on some."""
    errors = [answer for answer in answers if isinstance(answer, BaseException)]
    inserted: set[UUID] = set()
    for answer in answers:
        inserted |= set() if isinstance(answer, BaseException) else answer
    if not errors:
        return inserted
    first = errors[0]
    if len(errors) == len(answers) or not isinstance(first, ReltaskError):
        raise first
    raise AmbiguousError(f"{len(inserted)} of {wanted} jobs are certainly inserted. {first}") from first
