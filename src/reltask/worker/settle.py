"""Writes outcomes into the ledger, in groups.

    body ends ─► ┐
    body ends ─► ├─ waiting ──► one statement ──► committed ──► each run learns whether it was accepted
    body ends ─► ┘     ▲              │
                       └─ runs that end meanwhile go with the next one

There is no timer: while one group is being written, the next one collects. Nothing is reported
before it is committed. While the database is unavailable or refuses the login, the outcome is kept
and sent again. After a lost *answer* the same fenced statement is sent again, and outcomes that no
longer match are looked up in the ledger. Only a worker that shuts down gives up on an unavailable
database: the locks of the outcomes that it could not write expire.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from msgspec import Struct

from reltask import events
from reltask.errors import (
    AccessRefused,
    AmbiguousError,
    DatabaseError,
    ReltaskError,
    SchemaError,
    SettingsError,
    TransientError,
)
from reltask.model.clock import Clock
from reltask.model.job import Completion, Failure, Hold, Outcome, Release, Settled, Settlement
from reltask.service import Service
from reltask.stores.store import BATCH, Store

S = TypeVar("S", bound=Settlement)
T = TypeVar("T")
SettleVerb = Callable[[str, Sequence[S]], Awaitable[list[Settled]]]
UNWRITABLE_PAUSE = timedelta(minutes=1)
RETRY_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
AWAY = (TransientError, AmbiguousError, AccessRefused, SchemaError, SettingsError)
"""Errors about the database, not about the outcome: after these the outcome is sent again."""


class Waiting(Struct, Generic[T], frozen=True, gc=False):
    """An outcome that is to be written."""

    settlement: Settlement
    due_at: datetime | None
    """When the job is due again, by the database's clock; None: not at all."""
    end: T
    """The executor's own record, returned with the answer."""


Answers = dict[Hold, Settled | None]
"""The database's answers; None: refused. Outcomes that are missing were given up: their locks expire."""
OnAnswered = Callable[[Sequence[tuple[Waiting[T], Settled | None]]], None]
"""Called with outcomes and their answers; None: another worker had the claim."""


class Settler(Service, Generic[T]):
    """Writes outcomes until the database has answered for each."""

    def __init__(
        self, store: Store, *, worker: str, clock: Clock, emit: events.Subscriber, answered: OnAnswered[T]
    ) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._clock = clock
        self._emit = emit
        self._answered = answered
        self._waiting: list[Waiting[T]] = []

    def settle(self, outcomes: Iterable[Waiting[T]]) -> None:
        """Write these outcomes, and report the answers."""
        self._waiting += outcomes
        self._woken.set()

    async def recorded(self, hold: Hold) -> Outcome | None:
        """What the ledger says about a run. Waits until the database answers."""
        for tries in itertools.count():
            try:
                return (await self._store.read_outcomes([hold])).get(hold)
            except AWAY as error:
                if self._stopping:
                    break
                await self._wait_for_database(error, tries)
            except DatabaseError:
                break
        return None

    async def tick(self) -> float | None:
        batch, self._waiting = self._waiting[:BATCH], self._waiting[BATCH:]
        if not batch:
            return None
        groups: dict[type, list[Waiting[T]]] = {Completion: [], Failure: [], Release: []}
        for waiting in batch:
            groups[type(waiting.settlement)].append(waiting)
        await self._flush(groups[Completion], self._store.complete_jobs)
        await self._flush(groups[Failure], self._store.fail_jobs)
        await self._flush(groups[Release], self._store.release_jobs)
        return 0.0 if self._waiting else None

    async def _flush(self, group: list[Waiting[T]], verb: SettleVerb[Any]) -> None:
        """Write the outcomes of one kind, and report the answer to each."""
        answers = await self._write([waiting.settlement for waiting in group], verb) if group else {}
        if not answers:
            return
        self._answered([(w, answers[w.settlement.hold]) for w in group if w.settlement.hold in answers])
        due = [w.due_at for w in group if w.due_at is not None and answers.get(w.settlement.hold)]
        if due:  # other workers saw these slots claimed, and this worker may die before they are due
            await self._store.signal(min(due))

    async def _write(self, settlements: list[S], verb: SettleVerb[S], *, doubtful: bool = False) -> Answers:
        """Send until answered, or given up.

        After a lost answer, look up in the ledger what no longer matches. `doubtful`: an answer was
        lost before this call.
        """
        tries = 0
        while True:
            try:
                accepted = {settled.hold: settled for settled in await verb(self._worker, settlements)}
                if doubtful:
                    accepted |= await self._recorded(settlements, accepted)
                return {settlement.hold: accepted.get(settlement.hold) for settlement in settlements}
            except AWAY as error:
                if self._stopping:
                    return {}
                doubtful = doubtful or isinstance(error, AmbiguousError)
                await self._wait_for_database(error, tries)
                tries += 1
            except Exception as error:  # noqa: BLE001 - one outcome that cannot be written must not stop the others
                return await self._one_by_one(settlements, verb, error, doubtful=doubtful)

    async def _recorded(self, settlements: Sequence[Settlement], answer: dict[Hold, Settled]) -> dict[Hold, Settled]:
        missing = [s.hold for s in settlements if s.hold not in answer]
        recorded = await self._store.read_outcomes(missing) if missing else {}
        return {s.hold: Settled(s.hold) for s in settlements if recorded.get(s.hold) == _outcome(s)}

    async def _one_by_one(
        self, settlements: list[S], verb: SettleVerb[S], error: Exception, *, doubtful: bool
    ) -> Answers:
        """The database refuses the batch for good: write each outcome alone, so that only a bad one fails."""
        if len(settlements) == 1:
            return await self._refused(settlements[0], error, doubtful=doubtful)
        answers: Answers = {}
        for settlement in settlements:
            answers |= await self._write([settlement], verb, doubtful=doubtful)
        return answers

    async def _refused(self, settlement: Settlement, error: Exception, *, doubtful: bool) -> Answers:
        """The database refuses this one for good, unless it was written before and the answer was lost."""
        hold = settlement.hold
        self._emit(events.DatabaseUnavailable(worker=self._worker, verb="settle", error=str(error), retry_in=0.0))
        if doubtful and await self.recorded(hold) == _outcome(settlement):
            return {hold: Settled(hold)}
        await self._fail_instead(settlement, error)
        return {hold: None}

    async def _fail_instead(self, settlement: Settlement, error: Exception) -> None:
        """Record a failure instead of an outcome that the database will never accept, so that it is visible."""
        if isinstance(settlement, Failure):
            return
        why = f"The outcome could not be written: {error}"
        failure = Failure(hold=settlement.hold, error=why, delay=UNWRITABLE_PAUSE)
        with contextlib.suppress(Exception):  # then the claim's lock expires
            await self._store.fail_jobs(self._worker, [failure])

    async def _wait_for_database(self, error: ReltaskError, tries: int) -> None:
        pause = RETRY_PAUSES[min(tries, len(RETRY_PAUSES) - 1)]
        self._emit(events.DatabaseUnavailable(worker=self._worker, verb="settle", error=str(error), retry_in=pause))
        await self._clock.sleep(pause)


def _outcome(settlement: Settlement) -> str:
    return "failed" if isinstance(settlement, Failure) else settlement.outcome
