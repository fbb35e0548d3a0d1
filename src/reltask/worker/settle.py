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

A statement skips rows that another session has locked, so a held row delays its own outcome only:

    missing in the answer ─► the committed row: not ours ─► (the ledger, if in doubt) ─► refused
                                     └─ still ours: held ─► tried again, all at once, after 50 ms … 1 s
                                                    └─ still held ─► waits for its row, on its own connection

At most WAITS outcomes wait for their rows. A waiting statement gets its row as soon as the other
session lets go, before a reclaim does. The other held outcomes are only tried again. On PostgreSQL
the statement for one-offs does wait, for 100 ms: to skip locked rows, it would have to lock every
row before the DELETE, which took 12.0 instead of 10.7 µs per job. After such a wait the batch is
sent by the statement that skips, and so are all batches of the next 5 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Generic, TypeVar

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
from reltask.model.durable import Recording
from reltask.model.job import Completion, Failure, Hold, Outcome, Release, Settled, Settlement, Suspension
from reltask.service import Service
from reltask.stores.store import BATCH, Store

Writable = Settlement | Recording
"""What a run writes under its claim: its end, or steps of a durable function."""
S = TypeVar("S", bound=Writable)
T = TypeVar("T")
SettleVerb = Callable[..., Awaitable[list[Settled]]]
UNWRITABLE_PAUSE = timedelta(minutes=1)
RETRY_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)
HELD_PAUSES = (0.05, 0.1, 0.2, 0.5, 1.0)
WAITS = 4
"""The most outcomes that wait for their rows at once, each on its own connection."""
WAIT = timedelta(seconds=10)
"""After this time the wait is begun again, or another outcome's turn comes."""
CLOSING = 1.0
"""Seconds that a stop gives such waits to end."""
AWAY = (TransientError, AmbiguousError, AccessRefused, SchemaError, SettingsError)
"""Errors about the database, not about the outcome: after these the outcome is sent again."""


class Waiting(Struct, Generic[T], frozen=True, gc=False):
    """An outcome that is to be written."""

    settlement: Writable
    due_at: datetime | None
    """When the job is due again, by the database's clock; None: not at all."""
    end: T
    """The executor's own record, returned with the answer."""


class Held(Struct, Generic[T], eq=False, gc=False):
    """An outcome whose row another session has locked."""

    waiting: Waiting[T]
    next_try: float
    tries: int = 0


Answers = dict[Hold, Settled | None]
"""The database's answers; None: refused. Missing: the row is held, or the worker shuts down."""
OnAnswered = Callable[[Sequence[tuple[Waiting[T], Settled | None]]], None]
"""Called with outcomes and their answers; None: another worker had the claim."""


class Settler(Service, Generic[T]):
    """Writes outcomes until the database has answered for each."""

    def __init__(
        self,
        store: Store,
        *,
        worker: str,
        clock: Clock,
        emit: events.Subscriber,
        answered: OnAnswered[T],
        held: Callable[[Hold], None],
    ) -> None:
        """`held` is called with an outcome whose row another session has locked."""
        super().__init__()
        self._report_held = held
        self._store = store
        self._worker = worker
        self._clock = clock
        self._emit = emit
        self._answered = answered
        self._waiting: list[Waiting[T]] = []
        self._held: list[Held[T]] = []
        self._waits: set[asyncio.Task[None]] = set()
        self._spare: list[Store] = []
        """Stores with a connection of their own, in which no outcome waits now."""

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
        held = await self._send(batch)
        next_try = self._clock.monotonic() + HELD_PAUSES[0]
        self._held += [Held(waiting, next_try) for waiting in held]
        await self._try_held()
        self._wait_for_held()
        if self._waiting:
            return 0.0
        if not self._held:
            return None
        return max(0.0, min(held.next_try for held in self._held) - self._clock.monotonic())

    async def closed(self) -> None:
        """Give up on held rows: their locks expire."""
        for task in self._waits:
            task.cancel()
        if self._waits:
            await asyncio.wait(self._waits, timeout=CLOSING)
        await asyncio.gather(*(store.close() for store in self._spare), return_exceptions=True)

    async def _send(self, batch: Sequence[Waiting[T]], *, doubtful: bool = False) -> list[Waiting[T]]:
        """Write these outcomes, and return those whose rows are held."""
        groups: dict[type, list[Waiting[T]]] = {kind: [] for kind in _VERBS}
        for waiting in batch:
            groups[type(waiting.settlement)].append(waiting)
        held = []
        for group in filter(None, groups.values()):
            settlements = [waiting.settlement for waiting in group]
            answers = await self._write(settlements, _verb(self._store, settlements[0]), doubtful=doubtful)
            await self._report(group, answers)
            held += [waiting for waiting in group if waiting.settlement.hold not in answers]
        return held

    async def _report(self, group: Sequence[Waiting[T]], answers: Answers) -> None:
        """Report the answer to each outcome, and signal jobs that are due again."""
        answered = [(w, answers[w.settlement.hold]) for w in group if w.settlement.hold in answers]
        if answered:
            self._answered(answered)
        due = [waiting.due_at for waiting, settled in answered if settled and waiting.due_at is not None]
        if due:  # other workers saw these slots claimed, and this worker may die before they are due
            await self._store.signal(min(due))

    # Held rows

    async def _try_held(self) -> None:
        """Try again what is due. An outcome that is still held may wait for its row."""
        now = self._clock.monotonic()
        due = [held for held in self._held if held.next_try <= now][:BATCH]
        if not due:
            return
        left = {waiting.settlement.hold for waiting in await self._send([h.waiting for h in due], doubtful=True)}
        still_held = [held for held in due if held.waiting.settlement.hold in left]
        for held in still_held:
            held.tries += 1
            held.next_try = now + HELD_PAUSES[min(held.tries, len(HELD_PAUSES) - 1)]
            if held.tries == 1:
                hold = held.waiting.settlement.hold
                self._report_held(hold)
                self._emit(events.OutcomeHeld(worker=self._worker, job_id=hold.job_id, fence=hold.fence))
        settled = {*due}.difference(still_held)
        self._held = [held for held in self._held if held not in settled]

    def _wait_for_held(self) -> None:
        """Let the outcomes that were held first wait for their rows."""
        for held in [held for held in self._held if held.tries > 0][: WAITS - len(self._waits)]:
            self._held.remove(held)
            task = asyncio.get_running_loop().create_task(self._wait_for_row(held))
            self._waits.add(task)
            task.add_done_callback(self._waits.discard)

    async def _wait_for_row(self, held: Held[T]) -> None:
        """Wait for one row.

        Whatever goes wrong, the outcome is tried again. An answer is final: the row was waited for.
        """
        began = self._clock.monotonic()
        settlement = held.waiting.settlement
        store = self._spare.pop() if self._spare else self._store.dedicated(timeout=WAIT)
        try:
            accepted = {one.hold: one for one in await _verb(store, settlement)(self._worker, [settlement], wait=True)}
            accepted |= await self._recorded([settlement], accepted)
        except Exception:  # noqa: BLE001 - most likely the wait took too long
            await self._clock.sleep(max(0.0, began + HELD_PAUSES[-1] - self._clock.monotonic()))
            self._held.append(held)
        else:
            await self._report([held.waiting], {settlement.hold: accepted.get(settlement.hold)})
        finally:
            self._spare.append(store)
            self._woken.set()

    async def _write(self, settlements: Sequence[S], verb: SettleVerb, *, doubtful: bool = False) -> Answers:
        """Send until answered, or given up.

        After a lost answer, look up in the ledger what no longer matches. `doubtful`: an answer was
        lost before this call.
        """
        accepted: dict[Hold, Settled] = {}
        rest, tries = settlements, 0
        while True:
            try:
                accepted |= {settled.hold: settled for settled in await verb(self._worker, rest)}
                return await self._explain(settlements, accepted, doubtful=doubtful)
            except AWAY as error:
                if self._stopping:
                    return {**accepted}
                doubtful = doubtful or isinstance(error, AmbiguousError)
                await self._wait_for_database(error, tries)
                rest = [settlement for settlement in settlements if settlement.hold not in accepted]
                tries += 1
            except Exception as error:  # noqa: BLE001 - one outcome that cannot be written must not stop the others
                return {**accepted, **await self._one_by_one(rest, verb, error, doubtful=doubtful)}

    async def _explain(
        self, settlements: Sequence[Writable], accepted: dict[Hold, Settled], *, doubtful: bool
    ) -> Answers:
        """Say of outcomes that were not accepted whether they are refused, and leave out those that are held.

        The ledger is read after the rows: what has ended a claim by then is in it.
        """
        if len(accepted) == len(settlements):
            return {**accepted}
        missing = [settlement for settlement in settlements if settlement.hold not in accepted]
        ours = await self._store.read_holds(self._worker, [settlement.hold for settlement in missing])
        gone = [settlement for settlement in missing if settlement.hold not in ours]
        recorded = await self._recorded(gone, accepted) if doubtful else {}
        return {**dict.fromkeys(settlement.hold for settlement in gone), **recorded, **accepted}

    async def _recorded(self, settlements: Sequence[Writable], answer: dict[Hold, Settled]) -> dict[Hold, Settled]:
        missing = [s.hold for s in settlements if s.hold not in answer]
        recorded = await self._store.read_outcomes(missing) if missing else {}
        return {s.hold: Settled(s.hold) for s in settlements if s.hold in recorded and recorded[s.hold] == _outcome(s)}

    async def _one_by_one(
        self, settlements: Sequence[S], verb: SettleVerb, error: Exception, *, doubtful: bool
    ) -> Answers:
        """The database refuses the batch for good: write each outcome alone, so that only a bad one fails."""
        if len(settlements) == 1:
            return await self._refused(settlements[0], error, doubtful=doubtful)
        answers: Answers = {}
        for settlement in settlements:
            answers |= await self._write([settlement], verb, doubtful=doubtful)
        return answers

    async def _refused(self, settlement: Writable, error: Exception, *, doubtful: bool) -> Answers:
        """The database refuses this one for good, unless it was written before and the answer was lost."""
        hold = settlement.hold
        self._emit(events.DatabaseUnavailable(worker=self._worker, verb="settle", error=str(error), retry_in=0.0))
        outcome = _outcome(settlement)
        if doubtful and outcome is not None and await self.recorded(hold) == outcome:
            return {hold: Settled(hold)}
        await self._fail_instead(settlement, error)
        return {hold: None}

    async def _fail_instead(self, settlement: Writable, error: Exception) -> None:
        """Record a failure instead of an outcome that the database will never accept, so that it is visible.

        Of a step that cannot be recorded the job is dead: to run it again would repeat its effect.
        """
        if isinstance(settlement, Failure):
            return
        why = f"The outcome could not be written: {error}"
        final = isinstance(settlement, Recording)
        failure = Failure(hold=settlement.hold, error=why, delay=UNWRITABLE_PAUSE, final=final, patient=True)
        with contextlib.suppress(Exception):  # then the claim's lock expires
            await self._store.fail_jobs(self._worker, [failure])

    async def _wait_for_database(self, error: ReltaskError, tries: int) -> None:
        pause = RETRY_PAUSES[min(tries, len(RETRY_PAUSES) - 1)]
        self._emit(events.DatabaseUnavailable(worker=self._worker, verb="settle", error=str(error), retry_in=pause))
        await self._clock.sleep(pause)


_VERBS: dict[type, Callable[[Store], SettleVerb]] = {
    Recording: lambda store: store.record_steps,
    Completion: lambda store: store.complete_jobs,
    Failure: lambda store: store.fail_jobs,
    Release: lambda store: store.release_jobs,
    Suspension: lambda store: store.suspend_jobs,
}


def _verb(store: Store, settlement: Writable) -> SettleVerb:
    return _VERBS[type(settlement)](store)


def _outcome(settlement: Writable) -> str | None:
    """As the ledger names it; None: it writes no ledger row."""
    match settlement:
        case Failure():
            return Outcome.FAILED
        case Suspension():
            return Outcome.SUSPENDED
        case Recording():
            return None
    return settlement.outcome
