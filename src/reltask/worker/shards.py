"""One worker that serves several shards.

                      ┌─ Worker of shard 0: store, poller, beater, settler, maintenance ─┐
    ShardedWorker ────┼─ Worker of shard 1: store, poller, beater, settler, maintenance ─┼──► one set of places
                      └─ Worker of shard 2: store, poller, beater, settler, maintenance ─┘    (worker/places.py)

Each shard has a whole engine of its own, with its own connections and its own heartbeat thread. So
each promise holds for each shard by the same code as for a single database: its clock, its fences,
its deadlines. All that the engines share is the number of bodies that may run at once.

Fair turns: a claim asks for an equal share of the free places among the shards that have more work,
and the shard that claimed last is the last to look when a place is vacated.

A shard that is away stalls itself alone. Its claim keeps its share of the places for a second; after
that the others may have them, and what it claims nevertheless is released. Its engine tries again by
itself. A shard that is away when the worker starts is joined as soon as it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from datetime import timedelta
from uuid import UUID

from reltask import events
from reltask.errors import ReltaskError, TransientError
from reltask.model.clock import Clock
from reltask.model.shards import shard_of
from reltask.producer.result import Results
from reltask.stores.store import Store
from reltask.worker.places import Room
from reltask.worker.worker import Worker

START_PATIENCE = 5.0
"""Seconds that a start waits for further shards once one is served."""
TRY_AGAIN = 5.0
"""Seconds between two attempts to join a shard that was away at the start."""
Make = Callable[[int, Room], Worker]
"""Makes the worker of a shard, which shares the places in this room."""


class ShardedWorker:
    """Runs due jobs of all shards until it is stopped."""

    def __init__(
        self, make: Make, numbers: Sequence[int], store: Store, *, clock: Clock, emit: events.Subscriber
    ) -> None:
        """`store` is the one for producers: it sees all shards."""
        self.store = store
        self._make = make
        self._clock = clock
        self._emit = emit
        self._room = Room()
        self._workers = {number: make(number, self._room) for number in numbers}
        self._joining: dict[int, asyncio.Task[None]] = {}
        self._results: Results | None = None

    @property
    def id(self) -> str:
        return next(iter(self._workers.values())).id

    @property
    def started(self) -> bool:
        """Whether at least one shard is served."""
        return any(worker.started for worker in self._workers.values())

    @property
    def running(self) -> int:
        """How many runs this worker holds now, of all shards."""
        return sum(worker.running for worker in self._workers.values())

    @property
    def serves(self) -> list[int]:
        """The shards that it has joined."""
        return [number for number, worker in self._workers.items() if worker.started]

    async def start(self) -> None:
        """Begin to serve the shards that answer. An error only if none does, or if one refuses this worker."""
        starts = {number: asyncio.ensure_future(worker.start()) for number, worker in self._workers.items()}
        try:
            await self._first_started(list(starts.values()))
            self._refuse([error for error in map(_error, starts.values()) if error])
            await self.store.open()
        except BaseException:
            for start in starts.values():
                start.cancel()
            await asyncio.gather(*starts.values(), return_exceptions=True)
            await self._stop_all(timedelta(0), None)
            raise
        for number, start in starts.items():
            if not self._workers[number].started:
                self._joining[number] = asyncio.ensure_future(self._join(number, start))

    def _refuse(self, errors: Sequence[BaseException]) -> None:
        """Raise what no later attempt would change, or that no shard answers."""
        for error in errors:
            if not _is_away(error) or not self.started:
                raise error

    async def _first_started(self, starts: Sequence[asyncio.Future[None]]) -> None:
        """Wait for all, but once one is served only for a while."""
        waiting = set(starts)
        while waiting:
            patience = START_PATIENCE if self.started else None
            done, waiting = await asyncio.wait(waiting, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
            if not done or any((error := _error(start)) and not _is_away(error) for start in done):
                return

    async def _join(self, number: int, start: asyncio.Future[None]) -> None:
        """Serve a shard as soon as it answers."""
        while True:
            try:
                await start
            except ReltaskError as error:  # it is away, or not what it should be: an operator may correct that
                self._emit(
                    events.DatabaseUnavailable(
                        worker=self.id, verb=f"join shard {number}", error=str(error), retry_in=TRY_AGAIN
                    )
                )
                self._workers[number].retire()
                await self._clock.sleep(TRY_AGAIN)
                worker = self._workers[number] = self._make(number, self._room)
                if self._results is not None:
                    worker.serve(self._results)
                start = asyncio.ensure_future(worker.start())
            else:
                return

    async def stop(
        self, *, grace: timedelta | None = None, unused: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """Stop serving all shards at the same time."""
        for joining in self._joining.values():
            joining.cancel()
        await asyncio.gather(*self._joining.values(), return_exceptions=True)
        await self._stop_all(grace, unused)

    async def _stop_all(self, grace: timedelta | None, unused: Callable[[], Awaitable[None]] | None) -> None:
        stops = [worker.stop(grace=grace) for worker in self._workers.values() if worker.started]
        try:
            answers = await asyncio.gather(*stops, return_exceptions=True)
            if unused is not None:
                await unused()
        finally:
            await self.store.close()
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def drained(self) -> None:
        """Wait until nothing is due and nothing runs, on any shard: for `worker --once`."""
        workers = [worker for worker in self._workers.values() if worker.started]
        while not all(worker.is_drained for worker in workers):
            await asyncio.gather(*(worker.drained() for worker in workers))

    def hurry(self) -> None:
        """End the grace of a stop: stop the bodies at once."""
        for worker in self._workers.values():
            worker.hurry()

    def wake(self, job_ids: Collection[UUID] = ()) -> None:
        """Look for work on the shards of these jobs now, or on all if none is named. From any thread."""
        numbers = {shard_of(job_id) for job_id in job_ids}
        everywhere = not numbers or None in numbers
        for number, worker in self._workers.items():
            if worker.started and (everywhere or number in numbers):
                worker.wake()

    def serve(self, results: Results) -> None:
        """Report jobs of any shard that have ended here to callers in this process."""
        self._results = results
        for worker in self._workers.values():
            worker.serve(results)

    def may_be_cancelled(self, job_ids: Collection[UUID]) -> None:
        """These jobs are cancelled: stop them, if they run here. From any thread."""
        for worker in self._workers.values():
            if worker.started:
                worker.may_be_cancelled(job_ids)


def _error(start: asyncio.Future[None]) -> BaseException | None:
    if not start.done():
        return None
    with suppress(asyncio.CancelledError):
        return start.exception()
    return None


def _is_away(error: BaseException) -> bool:
    return isinstance(error, TransientError)
