"""Reclaims, claims, dispatches, and sleeps until the next reason to look.

A worker sleeps until the earliest of: its poll, the next due time that its last claim reported, the
earliest end of a lock, a signal, a freed place. So a due job starts within milliseconds although
polls are a minute apart, and a dead worker's slot is taken over when its lock ends, not a poll later.
`waking.py` decides which of many idle workers looks, and has the arithmetic of the idle cost.

Ends of jobs with limits make room for others at the same keys. If the last look has found no other
jobs, the worker then sends the claim of jobs with limits alone; if that finds none, it looks at all.

An idle worker sends one statement per look: the claim, which also carries its sign of life, counts
the idle workers, and returns when the next lock ends, so that a reclaim is sent only when there is
something to reclaim. Its cost does not grow with the number of jobs.

A job that has lost two runs in a row may have killed its workers. It is isolated: a worker runs one
such job at a time, in one of its ordinary places, and goes on serving the rest. Decision 2 has the
arithmetic: a poison job hits any other job at most twice.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from reltask import events
from reltask.errors import AmbiguousError, ReltaskError
from reltask.model.clock import Clock, DatabaseTime
from reltask.model.job import ClaimAnswer, ClaimRequest, Hold
from reltask.model.pace import Pace
from reltask.model.task import Registry
from reltask.service import Service
from reltask.stores.store import BATCH, Store
from reltask.stores.waking import News
from reltask.worker.beater import Beater
from reltask.worker.places import ClaimPlan, Places
from reltask.worker.reclaim import reclaim
from reltask.worker.run import Run, StopReason
from reltask.worker.waking import ANSWERS, Waking

FOLD_PAUSE, FOLD_LONGEST = 0.05, 1.0
"""Seconds until marks are folded again, at first and at most, after other sessions had locked all of their jobs."""
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
        waking: Waking,
        lock_timeout: timedelta,
        pace_of: Callable[[timedelta], Pace],
        dispatch: Callable[[Sequence[Run]], None],
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        wanted: events.Interest,
        keeps_arguments: bool,
    ) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._registry = registry
        self._places = places
        self._heartbeats = beater.heartbeats
        self._waking = waking
        self._lock_timeout = lock_timeout
        self._pace_of = pace_of
        self._dispatch = dispatch
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self._wanted = wanted
        self._keeps_arguments = keeps_arguments
        self._time: DatabaseTime | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._failed_since: float | None = None
        self._failures = 0
        self._wakes = 0
        self._is_marked = False
        self._fold_at = float("-inf")
        self._fold_pause = FOLD_PAUSE
        self._folded = 0
        self._looked_at = float("-inf")
        self._limits_freed = False
        """Ends of jobs with limits are recorded; other jobs have not become due, as far as this worker knows."""
        self._plain = 0
        """How many jobs without limits the last look has claimed."""
        self._limited_first: set[str] = set()
        """The first queue of each plan whose jobs with limits found no place left the last time."""
        self._signalling: set[asyncio.Task[None]] = set()
        self._filled = False
        self._looking = False
        self.idle = False
        """Whether the last look found nothing due that this worker could have taken."""

    def wake(self) -> None:
        """Look now. From any thread."""
        self._wakes += 1
        self.idle = False
        self._waking.call()
        super().wake()

    def make_sure(self) -> None:
        """Look, unless the last look has found nothing, or one is under way."""
        if not self.idle and not self._looking:
            self._waking.call()
            super().wake()

    def vacated(self) -> None:
        """Bodies have ended: look again, if the last look may have left due jobs for lack of room."""
        self.idle = False
        if self._waking.more:
            self.wake()

    def freed(self, runs: Sequence[Run], again: bool) -> None:
        """The ends of runs are recorded: their jobs may be due `again`, and jobs that waited for a limit may begin.

        If this worker has no place for such a job, another one has to look.
        """
        full = self._stopping or self._places.free <= 0
        if again or full or self._plain:
            self.wake()
        else:
            self._limits_freed, self.idle = True, False
            super().wake()
        if full and any(run.is_limited for run in runs):
            signalling = asyncio.get_running_loop().create_task(self._store.signal())
            self._signalling.add(signalling)
            signalling.add_done_callback(self._signalling.discard)

    def offered(self) -> None:
        """Another shard has left room: decide again, and sleep no longer than with a free place."""
        self.idle = False
        super().wake()

    async def closed(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()

    async def tick(self) -> float | None:
        verb = "reclaim"
        due = self._waking.decide(self._clock.monotonic(), free=self._places.free > 0)
        try:
            if due.reclaim:
                await self._reclaim()
            verb = "claim"
            if due.look:
                await self._claim()
            elif self._limits_freed:
                await self._claim_freed()
        except ReltaskError as error:
            return self._outage(verb, error)
        if due.reclaim or due.look:
            self._database_answers()
        return self._pause(looked=due.look)

    # Reclaiming

    async def _reclaim(self) -> None:
        """Take expired claims from their owners: at the start, and when a lock has ended or may have ended unseen."""
        reclaimed = await reclaim(self._store, worker=self._worker, emit=self._emit)
        self._waking.reclaimed(self._clock.monotonic(), all_of_them=reclaimed < BATCH)

    # Claiming

    async def _claim(self) -> None:
        """Fill the free places.

        A worker is idle if it found nothing, and was not woken meanwhile. One that was full for long
        folds first: what has come meanwhile may be more urgent than what is due.
        """
        self.idle, looked, claimed = False, self._wakes, 0
        self._limits_freed, self._plain = False, 0
        self._waking.begin()
        self._is_marked = False
        self._looking = True
        try:
            if self._filled and self._clock.monotonic() - self._looked_at >= FOLD_LONGEST:
                self._folded += await self._store.fold_marks()
            for plan in self._places.plans():
                claimed += await self._claim_plan(plan)
            self._waking.more |= self._places.free <= 0  # other shards may have taken the room of a plan
            self._waking.ended(claimed, self._clock.monotonic())
            await self._offer(claimed)
            if self._is_marked:
                await self._fold()
            else:
                self._fold_pause = FOLD_PAUSE
        finally:
            self._looking = False
            self._looked_at = self._clock.monotonic()
        self.idle = claimed == 0 and looked == self._wakes
        await self._spread(claimed)

    async def _claim_freed(self) -> None:
        """Fill the places of limits that have become free. All else stays planned as it is."""
        self._limits_freed, self._looking, claimed = False, True, 0
        try:
            for plan in self._places.plans():
                claimed += (await self._claim_once(plan, limited=True))[0]
        finally:
            self._looking = False
        if claimed:
            await self._spread(claimed)
        else:
            self.wake()

    async def _spread(self, claimed: int) -> None:
        """Let a burst spread: a worker that has just filled its places asks others to look."""
        filled, self._filled = self._filled, self._places.free <= 0
        if self._filled and not filled and claimed and self._waking.fleet.idle > 1:
            await self._store.signal(wanted=min(claimed, ANSWERS))

    async def _fold(self) -> None:
        """Signals came, or children ended: wake the durable functions that wait for them, and look again.

        Where another worker has been faster, or a job is locked, look again soon: it may be due by then.
        """
        now = self._clock.monotonic()
        if now < self._fold_at:
            self._waking.again(self._fold_at)
        elif folded := await self._store.fold_marks():
            self._folded, self._fold_pause = folded, FOLD_PAUSE
            self.wake()
            if self._places.free <= 0:
                await self._offer(0)
        else:
            self._fold_at = now + FOLD_PAUSE
            self._waking.again(now + self._fold_pause)
            self._fold_pause = min(2 * self._fold_pause, FOLD_LONGEST)

    async def _offer(self, claimed: int) -> None:
        """Ask other workers to look, if this one has not taken all that it may have woken.

        It may have other tasks, or no room. At most as many jobs became due as there were marks.
        """
        folded, self._folded = self._folded, 0
        if claimed < folded and self._waking.fleet.idle > 1:
            await self._store.signal()

    async def _claim_plan(self, plan: ClaimPlan) -> int:
        """Claim jobs without limits, and jobs with limits if some may have room.

        If the first kind has taken all places, the second comes first the next time.
        """
        first = plan.queues[0] in self._limited_first
        self._limited_first.discard(plan.queues[0])
        claimed = (await self._claim_once(plan, limited=True))[0] if first else 0
        if claimed >= plan.limit:
            return claimed
        plain, has_limited = await self._claim_once(plan._replace(limit=plan.limit - claimed))
        claimed += plain
        self._plain += plain
        if not has_limited or first:
            return claimed
        if claimed >= plan.limit:
            self._limited_first.add(plan.queues[0])
            return claimed
        return claimed + (await self._claim_once(plan._replace(limit=plan.limit - claimed), limited=True))[0]

    async def _claim_once(self, plan: ClaimPlan, *, limited: bool = False) -> tuple[int, bool]:
        """Make one claim and dispatch its runs; return their number, and whether jobs with limits may have room.

        Until the answer is there the beater renews its rows by the token; if the answer is lost, the
        beater looks for them.
        """
        token = UUID(int=self._rng.getrandbits(128), version=4)
        if limited:
            plan = plan._replace(oldest=plan.oldest_limited)
        sent_at, request = self._clock.monotonic(), self._request(plan, token)
        self._heartbeats.claim_sent(token, sent_at)
        try:
            ask = self._store.claim_limited if limited else self._store.claim_jobs
            with self._places.claiming(request):
                answer = await ask(request)
        except BaseException as error:
            if isinstance(error, ReltaskError) and not isinstance(error, AmbiguousError):
                self._heartbeats.claim_answered(token)  # certainly not applied
            else:
                self._claim_unanswered(token, may_land_for=self._lock_timeout.total_seconds())
            raise
        try:
            runs = self._watch(answer, request, sent_at, limited=limited)
        except Exception:
            self._claim_unanswered(token, may_land_for=0.0)  # no run has these claims: they are released
            raise
        self._heartbeats.claim_answered(token)
        try:
            self._is_marked = self._is_marked or (answer.marked and not limited)
            self._plan(answer, filled=len(runs) in (plan.limit, BATCH), sent_at=sent_at, limited=limited)
            if limited and answer.marked:
                await self._store.signal()  # what is left, only other workers know
            if runs and self._wanted(events.JobsClaimed, ""):
                self._emit(events.JobsClaimed(worker=self._worker, count=len(runs), limit=plan.limit))
        finally:  # whatever has failed, a claimed job must not wait
            self._begin(runs)
        return len(runs), answer.limited_at is not None and answer.limited_at <= answer.now

    def _plan(self, answer: ClaimAnswer, *, filled: bool, sent_at: float, limited: bool) -> None:
        """Plan the next look. Marks of limits that are due now are looked at with `claim_limited`, at once."""
        now = self._clock.monotonic()
        if limited:
            self._waking.limited(answer, filled=filled, now=now)
            return
        if answer.limited_at is not None and answer.limited_at > answer.now:
            soonest = min(answer.limited_at, answer.next_due or answer.limited_at)
            answer = msgspec.structs.replace(answer, next_due=soonest)
        self._waking.answered(answer, filled=filled, sent_at=sent_at, now=now)

    def _begin(self, runs: Sequence[Run]) -> None:
        """Begin the claimed runs.

        If there is more to claim, begin them two turns of the loop later: by then the next claim
        has been sent, and the server works on it while bodies run.
        """
        if self._waking.more and self._places.free > 0:
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
            isolated=self._places.takes_isolated(),
            alive_for=self._waking.promise(),
            oldest=plan.oldest,
            counts=self._waking.counts(self._clock.monotonic()),
        )

    def _watch(self, answer: ClaimAnswer, request: ClaimRequest, sent_at: float, *, limited: bool = False) -> list[Run]:
        """Make runs of the claims, and have them renewed; trust counts from before the claim was sent."""
        time = self._time = DatabaseTime(answer.now, self._clock.monotonic())
        tasks, pace, keeps = self._registry.tasks, self._pace_of, self._keeps_arguments
        runs = [
            Run(
                claim,
                Hold(claim.job_id, claim.fence),
                tasks[claim.task],
                pace(claim.lock_timeout),
                time,
                keeps,
                limited,
            )
            for claim in answer.claims
        ]
        for run in self._places.claimed(runs, request):
            run.stop(StopReason.SHUTDOWN, "no place is left for it")
        if runs:
            watched = [
                (
                    run.hold,
                    run.pace,
                    None  # renewed until its end
                    if (timeout := run.task.options.timeout) is None
                    else sent_at + timeout.total_seconds() + run.pace.stop_grace,
                )
                for run in runs
            ]
            self._heartbeats.watch(watched, sent_at=sent_at)
        return runs

    def _claim_unanswered(self, token: UUID, *, may_land_for: float) -> None:
        self._heartbeats.claim_unanswered(token, now=self._clock.monotonic(), may_land_for=may_land_for)

    # Sleeping

    def signalled(self, news: News) -> None:
        """A signal: a job is due now, or will be at a later time."""
        now, seconds, wanted = self._clock.monotonic(), 0.0, None
        if isinstance(news, int):
            wanted = news
        elif news is not None and self._time is not None:
            seconds = (news - self._time.now(now)).total_seconds()
        if self._waking.signalled(now, seconds=seconds, wanted=wanted):
            self.wake()
        else:
            self._set_alarm(now)

    def _set_alarm(self, now: float) -> None:
        """Decide again when `waking` wants to, if that is earlier than the end of the current pause."""
        loop = asyncio.get_running_loop()
        at = loop.time() + self._waking.next_at(free=True) - now
        if self._alarm is None or self._alarm.when() > at or self._alarm.when() <= loop.time():
            if self._alarm is not None:
                self._alarm.cancel()
            self._alarm = loop.call_at(at, super().wake)

    def _pause(self, *, looked: bool) -> float:
        """Seconds until the next decision."""
        free = self._places.free > 0
        pause = 0.0 if free and self._waking.more else self._waking.next_at(free=free) - self._clock.monotonic()
        if looked and pause > 0 and self._wanted(events.Idle, ""):
            self._emit(events.Idle(worker=self._worker, seconds=pause))
        return max(0.0, pause)

    # Outages

    def _outage(self, verb: str, error: ReltaskError) -> float:
        """The database does not answer: wait and try again, for as long as it takes."""
        if self._failed_since is None:
            self._failed_since = self._clock.monotonic()
        pause = OUTAGE_PAUSES[min(self._failures, len(OUTAGE_PAUSES) - 1)] * self._rng.uniform(0.5, 1.0)
        self._failures += 1
        self.idle = False
        self._waking.call()
        self._emit(events.DatabaseUnavailable(worker=self._worker, verb=verb, error=str(error), retry_in=pause))
        return pause

    def _database_answers(self) -> None:
        if self._failed_since is not None:
            seconds = self._clock.monotonic() - self._failed_since
            self._failed_since, self._failures = None, 0
            self._emit(events.DatabaseBack(worker=self._worker, seconds=seconds))
