"""The thread that renews claims. It decides nothing: `Heartbeats` does.

It has its own connection with its own short timeout, and no pool, retry or circuit breaker in front
of it. So a busy worker, a blocked event loop or an open circuit cannot delay a beat.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from reltask import events
from reltask.errors import TransientError
from reltask.model.clock import Clock
from reltask.model.job import Hold, Outcome, Release
from reltask.model.pace import Pace
from reltask.service import Service
from reltask.stores.store import Store
from reltask.worker.heartbeat import Abandon, BeatAction, Heartbeats, ReleaseStrays, ReportFailures, SendBeat, Verify
from reltask.worker.run import Run

LATE = 1.0
"""A decision made this many seconds late is worth a warning: the process was starved or paused."""


class Beater(Service):
    """Renews one worker's claims, and reports those that can no longer be trusted."""

    def __init__(
        self,
        store: Store,
        *,
        worker: str,
        pace: Pace,
        alive_for: timedelta,
        clock: Clock,
        emit: events.Subscriber,
        abandon: Callable[[Sequence[Abandon]], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._pace = pace
        self._alive_for = alive_for
        self._clock = clock
        self._emit = emit
        self._abandon = abandon
        self._heartbeats = Heartbeats(sweep_interval=pace.heartbeat)
        self._lock = threading.Lock()
        self._planned: float | None = None
        self._last_error = ""

    # Called from the worker's thread

    def watch(self, runs: Sequence[Run], *, sent_at: float) -> None:
        """Renew these claims from now on; `sent_at` is when the claim was sent."""
        if not runs:
            return
        with self._lock:
            for run in runs:
                timeout = run.task.options.timeout
                until = None if timeout is None else sent_at + timeout.total_seconds() + run.pace.stop_grace
                self._heartbeats.watch(run.hold, run.pace, sent_at=sent_at, renew_until=until)
            due = sent_at + min(run.pace.heartbeat for run in runs)
            sooner = self._planned is None or due < self._planned
        if sooner:
            self.wake()

    def settling(self, holds: Iterable[Hold], *, is_settling: bool = True) -> None:
        """These outcomes are being written, or no longer are.

        Meanwhile a missing row is no lost claim.
        """
        with self._lock:
            for hold in holds:
                self._heartbeats.settling(hold, is_settling=is_settling)

    def forget(self, holds: Iterable[Hold]) -> None:
        """These runs are over."""
        with self._lock:
            for hold in holds:
                self._heartbeats.forget(hold)

    def too_late(self, runs: Sequence[Run]) -> set[Hold]:
        """The claims among these that may not begin any more."""
        with self._lock:
            return self._heartbeats.too_late((run.hold for run in runs), self._clock.monotonic())

    def claim_sent(self, token: UUID) -> None:
        """A claim is about to be sent: renew its rows by their token until it is answered.

        This wakes nothing, because most answers come within a millisecond: the next tick sees it.
        """
        with self._lock:
            self._heartbeats.claim_sent(token, self._clock.monotonic())

    def claim_answered(self, token: UUID) -> None:
        """What the claim brought is watched, or nothing was applied."""
        with self._lock:
            self._heartbeats.claim_answered(token)

    def claim_unanswered(self, token: UUID, *, may_land_for: float) -> None:
        """A claim's answer was lost; it may be applied up to `may_land_for` seconds from now: look for its rows."""
        with self._lock:
            self._heartbeats.claim_unanswered(token, now=self._clock.monotonic(), may_land_for=may_land_for)
        self.wake()

    # On the beater's own thread

    async def tick(self) -> float | None:
        now = self._clock.monotonic()
        late = self._planned is not None and now - self._planned > LATE
        with self._lock:
            actions = self._heartbeats.tick(now, late=late)
        if self._planned is not None and late:
            self._emit(events.HeartbeatLate(worker=self._worker, seconds=now - self._planned))
        await self._perform(actions)
        with self._lock:
            now = self._clock.monotonic()
            self._planned = self._heartbeats.next_at(now)
            idle = self._pace.heartbeat  # with nothing to decide: look for claims that wait for their answer
            return idle if self._planned is None else max(0.0, self._planned - now)

    async def closed(self) -> None:
        await self._store.close()

    async def _perform(self, actions: list[BeatAction]) -> None:
        """Do what was decided. Abandon runs first, before any call that may hang."""
        self._abandon([action for action in actions if isinstance(action, Abandon)])
        for action in actions:
            if isinstance(action, ReportFailures):
                self._emit(
                    events.HeartbeatFailed(
                        worker=self._worker, failures=action.failures, limit=action.limit, error=self._last_error
                    )
                )
        for action in actions:
            patience = min(self._pace.beat_timeout, self._until_stop())
            if patience <= 0:
                return  # a body has to be stopped first; the next tick decides the rest again
            try:
                async with asyncio.timeout(patience):
                    followed_by = await self._ask(action)
            except Exception as error:  # noqa: BLE001 - nothing may end the thread that keeps the locks
                self._last_error = str(error) or type(error).__name__
                if isinstance(action, SendBeat):
                    with self._lock:
                        self._heartbeats.failed(action)
            else:
                await self._perform(followed_by)

    def _until_stop(self) -> float:
        """Seconds until a body has to be stopped: no call may outlast them."""
        with self._lock:
            return self._heartbeats.next_stop() - self._clock.monotonic()

    async def _ask(self, action: BeatAction) -> list[BeatAction]:
        match action:
            case SendBeat():
                return await self._beat(action)
            case Verify(holds):
                sent_at = self._clock.monotonic()
                ours = await self._store.read_holds(self._worker, holds)
                with self._lock:
                    return self._heartbeats.verified(action, ours, sent_at=sent_at)
            case ReleaseStrays(holds):
                await self._give_back(holds)
        return []

    async def _beat(self, beat: SendBeat) -> list[BeatAction]:
        sent_at = self._clock.monotonic()
        try:
            answer = await self._store.heartbeat_jobs(
                self._worker, beat.holds, alive_for=self._alive_for, tokens=beat.tokens, pending=beat.pending
            )
        except TransientError as error:
            self._last_error = str(error)
            with self._lock:
                return self._heartbeats.refused(beat)
        with self._lock:
            return self._heartbeats.answered(beat, answer, sent_at=sent_at)

    async def _give_back(self, holds: tuple[Hold, ...]) -> None:
        why = "the answer to the claim was lost"
        releases = [Release(hold=hold, outcome=Outcome.RELEASED, error=why) for hold in holds]
        for settled in await self._store.release_jobs(self._worker, releases):
            job_id, fence = settled.hold.job_id, settled.hold.fence
            self._emit(events.StrayReleased(worker=self._worker, job_id=job_id, fence=fence))
