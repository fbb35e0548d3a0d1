"""Reclaims, claims, dispatches, and sleeps until the next reason to look.

A worker sleeps until the earliest of: its poll, the next due time that its last claim reported, the
earliest end of a lock, a signal, a freed place. So a due job starts within milliseconds although
polls are a minute apart, and a dead worker's slot is taken over when its lock ends, not a poll later.

The idle cost can be computed. An idle worker sends one statement per poll: the claim, which also
carries its sign of life and returns when the next lock ends, so that a reclaim is sent only when
there is something to reclaim. With the default poll of 60 s, 200 idle workers send 200 / 60 = 3.3
statements a second, and their cost does not grow with the number of jobs. Where a database has no
signals the default is 5 s, and they send 40. For the rest see `maintenance.py`.

A job that has lost two runs in a row may have killed its workers. It is isolated: a worker runs one
such job at a time, in one of its ordinary places, and goes on serving the rest. Decision 2 has the
arithmetic: a poison job hits any other job at most twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from reltask import events
from reltask.errors import AmbiguousError, ReltaskError
from reltask.model.clock import Clock, DatabaseTime
from reltask.model.job import ClaimAnswer, ClaimRequest, Hold
from reltask.model.pace import Pace
from reltask.model.task import Registry
from reltask.service import Service
from reltask.stores.store import BATCH, Store
from reltask.worker.beater import Beater
from reltask.worker.places import ClaimPlan, Places
from reltask.worker.reclaim import reclaim
from reltask.worker.run import Run

RIVAL_PAUSE = (0.05, 0.15)
"""Seconds, at least and at most, until the next look at a due job that another worker had locked."""
EXPIRY_PAUSE = (0.26, 0.4)
"""The same for a lock that has ended but was not reclaimed: a little longer than a store needs that looks twice."""
DUE_SPREAD = (0.004, 0.064)
EXPIRY_SPREAD = 0.25
HINT_SPREAD = (0.02, 0.5)
"""Workers that wait for the same moment spread over this many seconds, to avoid a stampede. For a
due time, the worker that won last uses the first value, and a worker that lost uses the second: so
the last winner looks nearly alone."""
FOLD_PAUSE = 1.0
"""Seconds until marks are folded again whose jobs other sessions had locked."""
OUTAGE_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0)


class Poller(Service):
    """Finds work for one worker."""

    def __init__(
        self,
        store: Store,
        *,
        worker: str,
        registry: Registry,
        places: Places,
        beater: Beater,
        poll: timedelta,
        lock_timeout: timedelta,
        alive_for: timedelta,
        pace_of: Callable[[timedelta], Pace],
        dispatch: Callable[[Sequence[Run]], None],
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        wanted: events.Interest,
    ) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._registry = registry
        self._places = places
        self._beater = beater
        self._poll = poll.total_seconds()
        self._lock_timeout = lock_timeout
        self._alive_for = alive_for
        self._pace_of = pace_of
        self._dispatch = dispatch
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self._wanted = wanted
        self._reclaim_at = float("-inf")
        self._due_at = float("inf")
        self._awaited: datetime | None = None
        self._expected: datetime | None = None
        self._due_spread = DUE_SPREAD[0]
        self._time: DatabaseTime | None = None
        self._hint: asyncio.TimerHandle | None = None
        self._failed_since: float | None = None
        self._failures = 0
        self._wakes = 0
        self._is_marked = False
        self._fold_at = float("-inf")
        self.idle = False
        """Whether the last look found nothing due that this worker could have taken."""

    def wake(self) -> None:
        self._wakes += 1
        self.idle = False
        super().wake()

    def vacated(self) -> None:
        """Bodies have ended: look again, if the last look may have left due jobs for lack of room."""
        if self._due_at <= self._clock.monotonic():
            self.wake()

    async def closed(self) -> None:
        if self._hint is not None:
            self._hint.cancel()

    async def tick(self) -> float | None:
        verb = "reclaim"
        try:
            await self._reclaim_if_due()
            verb = "claim"
            await self._claim()
        except ReltaskError as error:
            return self._outage(verb, error)
        self._database_answers()
        return self._pause()

    # Reclaiming

    async def _reclaim_if_due(self) -> None:
        """Take expired claims from their owners: at the start, and when a lock has ended or may have ended unseen."""
        now = self._clock.monotonic()
        if now < self._reclaim_at:
            return
        reclaimed = await reclaim(self._store, worker=self._worker, emit=self._emit)
        self._reclaim_at = now + (self._poll if reclaimed < BATCH else 0.0)

    # Claiming

    async def _claim(self) -> None:
        """Fill the free places.

        A worker is idle if it found nothing, and was not woken meanwhile.
        """
        self.idle, looked, claimed = False, self._wakes, 0
        if self._places.free == 0:
            return
        self._due_at = float("inf")
        self._expected, self._awaited = self._awaited, None
        self._is_marked = False
        for plan in self._places.plans():
            claimed += await self._claim_once(plan)
        if self._is_marked:
            await self._fold()
        self.idle = claimed == 0 and looked == self._wakes

    async def _fold(self) -> None:
        """Signals came, or children ended: wake the durable functions that wait for them, and look again."""
        now = self._clock.monotonic()
        if now >= self._fold_at and await self._store.fold_marks():
            self.wake()
            return
        self._fold_at = max(self._fold_at, now + FOLD_PAUSE) if now >= self._fold_at else self._fold_at
        self._due_at = min(self._due_at, self._fold_at)

    async def _claim_once(self, plan: ClaimPlan) -> int:
        """Make one claim and dispatch its runs.

        Until the answer is there the beater renews its rows by the token; if the answer is lost, the
        beater looks for them.
        """
        token = UUID(int=self._rng.getrandbits(128), version=4)
        sent_at = self._clock.monotonic()
        self._beater.claim_sent(token)
        try:
            answer = await self._store.claim_jobs(self._request(plan, token))
        except BaseException as error:
            if isinstance(error, ReltaskError) and not isinstance(error, AmbiguousError):
                self._beater.claim_answered(token)  # certainly not applied
            else:
                self._beater.claim_unanswered(token, may_land_for=self._lock_timeout.total_seconds())
            raise
        try:
            runs = self._watch(answer, sent_at)
        except Exception:
            self._beater.claim_unanswered(token, may_land_for=0.0)  # no run has these claims: they are released
            raise
        self._beater.claim_answered(token)
        try:
            self._rate(answer)
            self._is_marked = self._is_marked or answer.marked
            self._plan_next_look(answer, plan, len(runs))
            if runs and self._wanted(events.JobsClaimed, ""):
                self._emit(events.JobsClaimed(worker=self._worker, count=len(runs), limit=plan.limit))
        finally:  # whatever has failed, a claimed job must not wait
            self._begin(runs)
        return len(runs)

    def _begin(self, runs: Sequence[Run]) -> None:
        """Begin the claimed runs.

        If there is more to claim, begin them two turns of the loop later: by then the next claim
        has been sent, and the server works on it while bodies run.
        """
        if self._due_at <= self._clock.monotonic() and self._places.free > 0:
            loop = asyncio.get_running_loop()
            loop.call_soon(loop.call_soon, self._dispatch, runs)
        else:
            self._dispatch(runs)

    def _request(self, plan: ClaimPlan, token: UUID) -> ClaimRequest:
        return ClaimRequest(
            worker=self._worker,
            token=token,
            queues=plan.queues,
            tasks=self._registry.known,
            limit=min(plan.limit, BATCH),
            lock_timeout=self._lock_timeout,
            isolated=not self._places.runs_isolated,
            alive_for=self._alive_for,
        )

    def _watch(self, answer: ClaimAnswer, sent_at: float) -> list[Run]:
        """Make runs of the claims, and have them renewed; trust counts from before the claim was sent."""
        time = self._time = DatabaseTime(answer.now, self._clock.monotonic())
        tasks, pace = self._registry.tasks, self._pace_of
        runs = [
            Run(claim, Hold(claim.job_id, claim.fence), tasks[claim.task], pace(claim.lock_timeout), time)
            for claim in answer.claims
        ]
        self._places.take(runs)
        self._beater.watch(runs, sent_at=sent_at)
        return runs

    # Sleeping

    def signalled(self, due_at: datetime | None) -> None:
        """A signal: a job is due now, or will be at `due_at`. Look now, or a little after that time.

        The worker that sent the signal looks at that time itself; the others, in case it has died.
        """
        seconds = 0.0
        if due_at is not None and self._time is not None:
            seconds = (due_at - self._time.now(self._clock.monotonic())).total_seconds()
        if seconds <= 0:
            self.wake()
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds + self._rng.uniform(*HINT_SPREAD)
        if self._hint is None or self._hint.when() > at or self._hint.when() <= loop.time():
            if self._hint is not None:
                self._hint.cancel()
            self._hint = loop.call_at(at, self.wake)

    def _rate(self, answer: ClaimAnswer) -> None:
        """Spread wider after the expected due time has come and another worker was faster."""
        if answer.claims:
            self._due_spread, self._expected = DUE_SPREAD[0], None
        elif self._expected is not None and self._expected <= answer.now:
            self._due_spread = DUE_SPREAD[1]

    def _plan_next_look(self, answer: ClaimAnswer, plan: ClaimPlan, claimed: int) -> None:
        """Remember when it is worth looking again, on the monotonic clock."""
        now = self._clock.monotonic()
        if claimed in (plan.limit, BATCH):
            self._due_at = min(self._due_at, now)
        elif answer.next_due is not None:
            due = now + self._seconds_until(answer.next_due, answer.now, RIVAL_PAUSE, self._due_spread)
            self._due_at = min(self._due_at, due)
            self._awaited = min(answer.next_due, self._awaited or answer.next_due)
        self._reclaim_at = self._next_reclaim(answer, now)

    def _next_reclaim(self, answer: ClaimAnswer, now: float) -> float:
        """When the next lock ends. A lock that has ended is not postponed by further claims."""
        if answer.next_expiry is None:
            return now + self._poll * 1.5
        due = now + self._seconds_until(answer.next_expiry, answer.now, EXPIRY_PAUSE, EXPIRY_SPREAD)
        has_ended = answer.next_expiry <= answer.now
        return min(due, self._reclaim_at if has_ended else now + self._poll * 1.5)

    def _seconds_until(self, moment: datetime, now: datetime, again: tuple[float, float], spread: float) -> float:
        """Seconds until a moment of the database's clock; a pause from `again` if it has passed."""
        seconds = (moment - now).total_seconds()
        return self._rng.uniform(0, spread) + seconds if seconds > 0 else self._rng.uniform(*again)

    def _pause(self) -> float:
        """Seconds until the next look.

        Without a free place only the end of a lock or the poll counts.
        """
        now = self._clock.monotonic()
        due_in = self._due_at - now if self._places.free > 0 else float("inf")
        pause = max(0.0, min(self._poll, due_in, self._reclaim_at - now))
        if pause > 0 and self._wanted(events.Idle, ""):
            self._emit(events.Idle(worker=self._worker, seconds=pause))
        return pause

    # Outages

    def _outage(self, verb: str, error: ReltaskError) -> float:
        """The database does not answer: wait and try again, for as long as it takes."""
        if self._failed_since is None:
            self._failed_since = self._clock.monotonic()
        pause = OUTAGE_PAUSES[min(self._failures, len(OUTAGE_PAUSES) - 1)] * self._rng.uniform(0.5, 1.0)
        self._failures += 1
        self.idle = False
        self._emit(events.DatabaseUnavailable(worker=self._worker, verb=verb, error=str(error), retry_in=pause))
        return pause

    def _database_answers(self) -> None:
        if self._failed_since is not None:
            seconds = self._clock.monotonic() - self._failed_since
            self._failed_since, self._failures = None, 0
            self._emit(events.DatabaseBack(worker=self._worker, seconds=seconds))
