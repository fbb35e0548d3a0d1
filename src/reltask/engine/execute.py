"""One run as a pipeline of small steps: decode, run, judge, settle. The outcome is a value all the way.

    claim ─► skip? ─► decode ─► body ─────────────────────────► Ended ─► settlement ─► committed ─► event
                                  │ timeout, shutdown, doubt      ▲
                                  └─► stop ─► grace ─► kill ──────┘
                                                 └─► will not end: stuck. Its place stays taken, its lock expires.

A claim is released only after its body has ended. A body that cannot be stopped keeps its place in this worker, and
is no longer renewed, so that the database gives its slot to somebody else.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from datetime import datetime
from typing import Any

from reltask import events, schedule
from reltask.backoff import one_off
from reltask.clock import Clock
from reltask.config import LimitSettings
from reltask.engine.beater import Beater
from reltask.engine.outcome import (
    Ended,
    describe,
    raised,
    read_schedule,
    returned,
    settlement,
    stopped,
)
from reltask.engine.run import Body, Run, StopReason
from reltask.engine.settle import Settler
from reltask.job import Completion, Failure, Outcome, Settled, Settlement

BodyFactory = Callable[[Run], Body]


class Executor:
    """Takes runs from claim to ledger."""

    def __init__(
        self,
        *,
        worker: str,
        settler: Settler,
        beater: Beater,
        make_body: BodyFactory,
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        limits: LimitSettings,
    ) -> None:
        self._worker = worker
        self._settler = settler
        self._beater = beater
        self._make_body = make_body
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self._limits = limits

    async def execute(self, run: Run) -> None:
        """Run one claimed slot to its recorded end."""
        started = self._clock.monotonic()
        self._tell(run, events.RunStarted, attempt=run.claim.attempt, late=_late(run))
        try:
            ended = await self._end(run)
            self._beater.settling(run.hold)
            if run.completion is None:
                await self._settle(run, ended, started)
            else:
                self._completed_already(run, run.completion, ended, seconds=self._clock.monotonic() - started)
        finally:
            self._beater.forget(run.hold)  # whatever went wrong: a claim that nobody will settle must be able to expire

    # Running

    async def _end(self, run: Run) -> Ended:
        """How this run ended: skipped, not even decoded, or as its body did."""
        if run.stop_reason is not None:
            return stopped(run)
        try:
            if _is_missed(run):
                return Ended(outcome=Outcome.SKIPPED, error="due too long ago when it was claimed")
            body = self._make_body(run)
        except Exception as error:  # noqa: BLE001 - a row that cannot be read is this slot's failure, not the worker's
            return raised(error, run, limit=self._limits.traceback)
        return await self._supervise(run, body)

    async def _supervise(self, run: Run, body: Body) -> Ended:
        """Wait for the body to end by itself, or because its time is up or somebody asked for it."""
        loop = asyncio.get_running_loop()
        ending = body.start()
        enforcing: list[asyncio.Task[None]] = []

        def stopping() -> None:
            if not enforcing and not ending.done():  # a body that has ended only waits for its outcome to be written
                enforcing.append(loop.create_task(self._enforce(run, body)))

        run.attach(body, lambda: loop.call_soon_threadsafe(stopping))
        timer = self._start_timer(run, loop)
        await asyncio.wait([ending])
        if timer is not None:
            timer.cancel()
        self._end_enforcing(run, enforcing)
        error = asyncio.CancelledError() if ending.cancelled() else ending.exception()
        if error is not None:
            return raised(error, run, limit=self._limits.traceback)
        return returned(ending.result(), limit=self._limits.result)

    def _start_timer(self, run: Run, loop: asyncio.AbstractEventLoop) -> asyncio.TimerHandle | None:
        timeout = run.task.options.timeout
        if timeout is None:
            return None
        seconds = timeout.total_seconds()
        why = f"the run took longer than its timeout of {seconds:g} s"
        return loop.call_later(seconds, run.stop, StopReason.TIMEOUT, why)

    async def _enforce(self, run: Run, body: Body) -> None:
        """The body was asked to stop: kill it after the grace, and report it if it lives on even then."""
        await self._clock.sleep(run.pace.stop_grace)
        body.kill()
        await self._clock.sleep(min(1.0, run.pace.stop_grace))
        self._tell(run, events.BodyStuck, seconds=run.pace.stop_grace)

    def _end_enforcing(self, run: Run, enforcing: list[asyncio.Task[None]]) -> None:
        for task in enforcing:
            if not task.cancel():
                self._tell(run, events.BodyEndedLate)

    # Settling

    async def _settle(self, run: Run, ended: Ended, started: float) -> None:
        now = self._clock.monotonic()
        written = self._settlement(run, ended, finished=run.now(now))
        settled = await self._settler.settle(written, run.now(now))
        if settled is None:
            await self._refused(run, ended, seconds=now - started)
            return
        if ended.not_stored is not None:
            self._tell(run, events.ResultNotStored, reason=ended.not_stored)
        self._report(run, ended, written, settled, seconds=now - started)

    def _settlement(self, run: Run, ended: Ended, *, finished: datetime) -> Settlement:
        """What to write. A stored schedule that this version cannot read, or that has no next time, is a failure."""
        try:
            return settlement(run, ended, finished=finished, rng=self._rng)
        except Exception as error:  # noqa: BLE001 - a run without a settlement would hold its job for ever
            text = describe(error, limit=self._limits.traceback)
            return Failure(hold=run.hold, error=text, delay=one_off().delay(run.claim.attempt, rng=self._rng))

    def _report(self, run: Run, ended: Ended, written: object, settled: Settled, *, seconds: float) -> None:
        if isinstance(written, Failure):
            self._tell(
                run,
                events.RunFailed,
                attempt=run.claim.attempt,
                error=written.error,
                retry_in=written.delay.total_seconds(),
                dead=settled.dead,
            )
        elif isinstance(written, Completion) and ended.outcome is Outcome.SUCCEEDED:
            self._tell(run, events.RunSucceeded, seconds=seconds, next_run_time=written.next_run_time)
        else:
            self._tell(run, events.RunEnded, outcome=ended.outcome, reason=ended.error or "")

    async def _refused(self, run: Run, ended: Ended, *, seconds: float) -> None:
        """The claim had passed on, or this very run had ended the slot by a commit whose answer was lost."""
        if await self._settler.recorded(run.hold) is Outcome.SUCCEEDED:
            self._tell(run, events.RunSucceeded, seconds=seconds, next_run_time=None)
        else:
            self._tell(run, events.LateWriteRefused, outcome=ended.outcome)

    def _completed_already(self, run: Run, completion: Completion, ended: Ended, *, seconds: float) -> None:
        """The body's own transaction has completed the slot; what it raised afterwards changes nothing."""
        self._tell(run, events.RunSucceeded, seconds=seconds, next_run_time=completion.next_run_time)
        if ended.outcome is not Outcome.SUCCEEDED:
            self._tell(run, events.ErrorAfterCompletion, error=ended.error or "")

    def _tell(self, run: Run, event: type[events.RunEvent], **fields: Any) -> None:
        claim = run.claim
        self._emit(
            event(
                worker=self._worker,
                task=claim.task,
                job_id=claim.job_id,
                slot_no=claim.slot_no,
                fence=claim.fence,
                **fields,
            )
        )


def _late(run: Run) -> float:
    return max(0.0, (run.claim.locked_at - run.claim.due_at).total_seconds())


def _is_missed(run: Run) -> bool:
    claim = run.claim
    if claim.schedule is None:
        return False
    rule = read_schedule(claim.schedule)
    return schedule.is_missed(rule, nominal=claim.nominal, claimed_at=claim.slot_started_at, attempt=claim.attempt)
