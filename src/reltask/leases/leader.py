"""Holds a lease, or waits for it. `Candidacy` decides; this service sends the statements.

    acquire_lease ──► heartbeats, each with a timeout before the trust ends ──► resign_lease, signal_lease ──► …

It needs a store of its own, made by `Store.dedicated`: no pool, no retry and no circuit breaker in front of a
heartbeat. Every call has a timeout before the trust ends, so that a connection that never answers cannot delay the
announcement of the loss. Callbacks run on the leader's own loop; `term`, `worked` and `hint` may be used from any
thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Callable
from datetime import timedelta

from reltask import events
from reltask.errors import AmbiguousError, DatabaseError
from reltask.leases.candidacy import (
    RESIGNED,
    BeatLease,
    Candidacy,
    LeaseAction,
    LoseLease,
    ResignLease,
    TryLease,
    WinLease,
)
from reltask.leases.metadata import Metadata
from reltask.model.clock import Clock, DatabaseTime
from reltask.model.lease import Grant, LeaseAnswer, Term
from reltask.service import Service
from reltask.stores.store import LeaseStore

TRY_SHARE = 3
"""A try may take this fraction of the TTL: a later grant could hardly be used."""
RESIGN_PATIENCE = 2.0
"""Seconds that resigning may take in all. After that the lease is left to expire."""
RESIGN_PAUSE = 0.05


class Leader(Service):
    """One candidate for one lease."""

    def __init__(
        self,
        store: LeaseStore,
        *,
        name: str,
        holder: str,
        ttl: timedelta,
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        rotate_after: timedelta | None = None,
        max_stall: timedelta | None = None,
        acquired: Callable[[Term], None] | None = None,
        lost: Callable[[str], None] | None = None,
        tried: Callable[[LeaseAnswer | Exception], None] | None = None,
        once: bool = False,
        waits: bool = True,
        patience: timedelta | None = None,
    ) -> None:
        """After a loss it waits again, unless `once`. `tried` is called after each try that did not win.

        `patience` is the timeout of one try; None: a fraction of the TTL.
        """
        super().__init__()
        self.metadata = Metadata()
        self._store = store
        self._name = name
        self._holder = holder
        self._clock = clock
        self._emit = emit
        self._acquired = acquired
        self._lost = lost
        self._tried = tried
        self._try_patience = (ttl / TRY_SHARE if patience is None else patience).total_seconds()
        self._calling = asyncio.Lock()
        self._time: DatabaseTime | None = None
        self._totals = {"items": 0, "errors": 0}
        self._counting = threading.Lock()
        self._candidacy = Candidacy(
            name=name,
            holder=holder,
            ttl=ttl,
            rng=rng,
            rotate_after=rotate_after,
            max_stall=max_stall,
            once=once,
            waits=waits,
        )

    # From any thread

    @property
    def term(self) -> Term | None:
        """The term that is held and trusted now, or None."""
        tenure = self._candidacy.tenure
        return tenure.grant.term if tenure is not None and tenure.is_held(self._clock.monotonic()) else None

    def worked(self, *, items: int = 0, errors: int = 0, **more: object) -> None:
        """Report finished work: `max_stall` counts from now, and the next heartbeat publishes it."""
        now = self._clock.monotonic()
        with self._counting:
            self._totals = {"items": self._totals["items"] + items, "errors": self._totals["errors"] + errors}
        last_run = {} if self._time is None else {"last_run": self._time.now(now).isoformat()}
        self.metadata.change({**last_run, **self._totals, **more})
        self._candidacy.worked(now)

    def hint(self, name: str | None) -> None:
        """A signal about this lease, or (None) about any: called by `Store.listen`."""
        if name in (None, self._name) and self._candidacy.hint(self._clock.monotonic()):
            self.wake()

    # On the leader's own loop

    async def resign(self) -> None:
        """Resign what is held, and try no more. Takes a bounded time, even if the database does not answer."""
        actions = self._candidacy.retire(self._clock.monotonic())
        await self._perform([action for action in actions if isinstance(action, LoseLease)])
        async with self._calling:  # a current try may still win; then it is resigned
            await self._perform([action for action in actions if isinstance(action, ResignLease)])
            await self._perform(self._candidacy.settle_doubt())
        self.wake()

    async def tick(self) -> float | None:
        async with self._calling:
            await self._perform(self._candidacy.tick(self._clock.monotonic()))
        due = self._candidacy.next_at()
        return None if due is None else max(0.0, due - self._clock.monotonic())

    async def closed(self) -> None:
        await self.resign()

    async def _perform(self, actions: list[LeaseAction]) -> None:
        for action in actions:
            match action:
                case TryLease():
                    await self._perform(await self._try(action))
                case BeatLease():
                    await self._perform(await self._beat(action))
                case ResignLease(grant):
                    await self._resign(grant)
                case WinLease(term, answer):
                    self._won(term, answer)
                case LoseLease(term, reason):
                    self._lose(term, reason)

    async def _try(self, action: TryLease) -> list[LeaseAction]:
        sent_at = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._try_patience):
                answer = await self._store.acquire_lease(action.request)
        except Exception as error:  # noqa: BLE001 - the next try may succeed
            self._try_failed(error)
            return []
        followed_by = self._candidacy.answered(action, answer, sent_at=sent_at, now=self._clock.monotonic())
        if answer.term is None and self._tried is not None:
            self._tried(answer)
        return followed_by

    def _try_failed(self, error: Exception) -> None:
        pause = self._candidacy.unanswered(self._clock.monotonic(), in_doubt=_is_in_doubt(error))
        self._report_failure("acquire_lease", error, pause)
        if self._tried is not None:
            self._tried(error)

    async def _beat(self, beat: BeatLease) -> list[LeaseAction]:
        sent_at = self._clock.monotonic()
        unsent = self.metadata.unsent()
        try:
            async with asyncio.timeout(self._patience(sent_at)):
                renewed = await self._store.heartbeat_lease(beat.grant, metadata=None if unsent is None else unsent[1])
        except Exception as error:  # noqa: BLE001 - the next heartbeat may succeed; otherwise the trust ends in time
            due = self._candidacy.next_at() or sent_at
            self._report_failure("heartbeat_lease", error, max(0.0, due - self._clock.monotonic()))
            return []
        if renewed and unsent is not None:
            self.metadata.sent(unsent[0])
        return self._candidacy.beaten(beat, renewed=renewed, sent_at=sent_at, now=self._clock.monotonic())

    def _patience(self, now: float) -> float:
        """The timeout of a heartbeat: it must end before the trust does, whose end has to be announced in time."""
        tenure = self._candidacy.tenure
        return min(self._candidacy.pace.beat_timeout, 0.0 if tenure is None else tenure.stop_at - now)

    def _won(self, term: Term, answer: LeaseAnswer) -> None:
        self._time = DatabaseTime(answer.now, self._clock.monotonic())
        self._totals = {"items": 0, "errors": 0}
        self.metadata.restart()
        self._emit(events.LeaseAcquired(worker=self._holder, lease=term.lease, term=term.number))
        if self._acquired is not None:
            self._acquired(term)

    def _lose(self, term: Term, reason: str) -> None:
        if reason != RESIGNED:
            self._emit(events.LeaseLost(worker=self._holder, lease=term.lease, term=term.number, reason=reason))
        if self._lost is not None:
            self._lost(reason)

    def _report_failure(self, verb: str, error: Exception, pause: float) -> None:
        self._emit(events.DatabaseUnavailable(worker=self._holder, verb=verb, error=_text(error), retry_in=pause))

    # Resigning

    async def _resign(self, grant: Grant) -> None:
        """Resign and notify waiting candidates, within RESIGN_PATIENCE."""
        failures: list[Exception] = []
        number = grant.term.number
        try:
            async with asyncio.timeout(RESIGN_PATIENCE):
                resigned = await self._resigned(grant, failures)
        except Exception as error:  # noqa: BLE001 - the lease then expires by itself
            why = _text(failures[-1] if failures else error)
            self._emit(events.LeaseLeftToExpire(worker=self._holder, lease=self._name, term=number, error=why))
            return
        if resigned:
            self._emit(events.LeaseResigned(worker=self._holder, lease=self._name, term=number))
            with contextlib.suppress(TimeoutError):  # without the signal, another candidate only acquires it later
                async with asyncio.timeout(self._candidacy.pace.beat_timeout):
                    await self._store.signal_lease(self._name)

    async def _resigned(self, grant: Grant, failures: list[Exception]) -> bool:
        """Whether the lease was resigned. After a lost answer, a refusal may mean that the first call succeeded."""
        while True:
            try:
                async with asyncio.timeout(self._candidacy.pace.beat_timeout):
                    return await self._store.resign_lease(grant) or any(map(_is_in_doubt, failures))
            except (DatabaseError, TimeoutError) as error:
                failures.append(error)
            await self._clock.sleep(RESIGN_PAUSE)


def _is_in_doubt(error: Exception) -> bool:
    return isinstance(error, AmbiguousError | TimeoutError)


def _text(error: Exception) -> str:
    return str(error) or "no answer in time"
