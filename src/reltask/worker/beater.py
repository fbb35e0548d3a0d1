"""The thread that renews claims. It decides nothing: `Heartbeats` does.

It has its own connection with its own short timeout, and no pool, retry or circuit breaker in front
of it. So a busy worker, a blocked event loop or an open circuit cannot delay a beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta
from uuid import UUID

from reltask import events
from reltask.errors import TransientError
from reltask.model.clock import Clock
from reltask.model.job import Hold, Outcome, Release
from reltask.model.pace import Pace
from reltask.service import Service
from reltask.stores.store import Store
from reltask.worker.heartbeat import (
    Abandon,
    BeatAction,
    Heartbeats,
    LookForCancels,
    ReleaseStrays,
    ReportFailures,
    SendBeat,
    StopCancelled,
    Verify,
)

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
        alive_for: Callable[[], timedelta],
        clock: Clock,
        emit: events.Subscriber,
        abandon: Callable[[Sequence[Abandon]], None],
        cancel: Callable[[Sequence[StopCancelled]], None],
    ) -> None:
        super().__init__()
        self._store = store
        self._worker = worker
        self._pace = pace
        self._alive_for = alive_for
        self._clock = clock
        self._emit = emit
        self._abandon = abandon
        self._cancel = cancel
        self.heartbeats = Heartbeats(sweep_interval=pace.heartbeat)
        self.heartbeats.wake = self.wake
        self._last_error = ""

    # Called from the worker's thread

    def may_be_cancelled(self, job_ids: Collection[UUID]) -> None:
        """A signal: these jobs are cancelled, or any may be if none is named. Look, if they run here."""
        self.heartbeats.may_be_cancelled(job_ids, self._clock.monotonic())

    # On the beater's own thread

    async def tick(self) -> float | None:
        now = self._clock.monotonic()
        late = self.heartbeats.planned is not None and now - self.heartbeats.planned > LATE
        with self.heartbeats.lock:
            actions = self.heartbeats.tick(now, late=late)
        if self.heartbeats.planned is not None and late:
            self._emit(events.HeartbeatLate(worker=self._worker, seconds=now - self.heartbeats.planned))
        await self._perform(actions)
        with self.heartbeats.lock:
            now = self._clock.monotonic()
            self.heartbeats.planned = self.heartbeats.next_at(now)
            idle = self._pace.heartbeat  # with nothing to decide: look for claims that wait for their answer
            return idle if self.heartbeats.planned is None else max(0.0, self.heartbeats.planned - now)

    async def closed(self) -> None:
        await self._store.close()

    async def _perform(self, actions: list[BeatAction]) -> None:
        """Do what was decided. Abandon runs first, before any call that may hang."""
        self._abandon([action for action in actions if isinstance(action, Abandon)])
        self._cancel([action for action in actions if isinstance(action, StopCancelled)])
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
                    with self.heartbeats.lock:
                        self.heartbeats.failed(action)
            else:
                await self._perform(followed_by)

    def _until_stop(self) -> float:
        """Seconds until a body has to be stopped: no call may outlast them."""
        with self.heartbeats.lock:
            return self.heartbeats.next_stop() - self._clock.monotonic()

    async def _ask(self, action: BeatAction) -> list[BeatAction]:
        match action:
            case SendBeat():
                return await self._beat(action)
            case Verify(holds):
                sent_at = self._clock.monotonic()
                ours = await self._store.read_holds(self._worker, holds)
                with self.heartbeats.lock:
                    return self.heartbeats.verified(action, ours, sent_at=sent_at)
            case LookForCancels(holds):
                cancelled = await self._store.read_cancelled(self._worker, holds)
                with self.heartbeats.lock:
                    return self.heartbeats.found_cancelled(cancelled)
            case ReleaseStrays(holds):
                await self._give_back(holds)
        return []

    async def _beat(self, beat: SendBeat) -> list[BeatAction]:
        sent_at = self._clock.monotonic()
        try:
            answer = await self._store.heartbeat_jobs(
                self._worker, beat.holds, alive_for=self._alive_for(), tokens=beat.tokens, pending=beat.pending
            )
        except TransientError as error:
            self._last_error = str(error)
            with self.heartbeats.lock:
                return self.heartbeats.refused(beat)
        with self.heartbeats.lock:
            return self.heartbeats.answered(beat, answer, sent_at=sent_at)

    async def _give_back(self, holds: tuple[Hold, ...]) -> None:
        why = "the answer to the claim was lost"
        releases = [Release(hold=hold, outcome=Outcome.RELEASED, error=why) for hold in holds]
        released = await self._store.release_jobs(self._worker, releases)
        for settled in released:
            job_id, fence = settled.hold.job_id, settled.hold.fence
            self._emit(events.StrayReleased(worker=self._worker, job_id=job_id, fence=fence))
        if released:  # they are due, and this worker may have no place for them
            await self._store.signal()
