"""One run as a pipeline of small steps: decode, run, judge, settle. The outcome is a value all the way.

    claim ─► skip? ─► decode ─► body ─────────────────────────► Ended ─► settlement ─► committed ─► event
                                  │ timeout, shutdown, doubt      ▲
                                  └─► stop ─► grace ─► kill ──────┘
                                                 └─► will not end: stuck. Its place stays taken, its lock expires.

Each arrow is a plain call, made by whatever brought the run there: the claim's answer, the end of the body's future,
the answer to the settlement. So a run costs the loop one task, its body's own.

A claim is released only after its body has ended. A body that cannot be stopped keeps its place in this worker, and
is no longer renewed, so that the database gives its slot to somebody else.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine
from datetime import datetime
from functools import partial
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
        vacated: Callable[[Run], None],
        over: Callable[[Run], None],
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        limits: LimitSettings,
    ) -> None:
        """`vacated` is told that a body has ended, `over` that the run's end is on record."""
        self._worker = worker
        self._settler = settler
        self._beater = beater
        self._make_body = make_body
        self._vacated = vacated
        self._tell_over = over
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self._limits = limits
        self._tasks: dict[asyncio.Task[None], None] = {}

    def start(self, run: Run) -> None:
        """Begin one claimed slot. The rest follows by itself."""
        self._step(run, self._start, run)

    def close(self) -> None:
        """Nobody waits any more for what is still under way."""
        for task in self._tasks:
            task.cancel()

    def _step(self, run: Run, step: Callable[..., None], *args: Any) -> None:
        """One arrow. Whatever goes wrong: a claim that nobody will settle must be able to expire."""
        try:
            step(*args)
        except Exception:
            logging.getLogger("reltask").exception("A run of %s is given up", run.claim.task)
            self._beater.forget(run.hold)

    # Running

    def _start(self, run: Run) -> None:
        run.started_at = self._clock.monotonic()
        self._tell(run, events.RunStarted, attempt=run.claim.attempt, late=_late(run))
        if run.stop_reason is not None:
            self._ended(run, stopped(run))
            return
        try:
            body = None if _is_missed(run) else self._make_body(run)
        except Exception as error:  # noqa: BLE001 - a row that cannot be read is this slot's failure, not the worker's
            self._ended(run, raised(error, run, limit=self._limits.traceback))
            return
        if body is None:
            self._ended(run, Ended(outcome=Outcome.SKIPPED, error="due too long ago when it was claimed"))
        else:
            self._supervise(run, body)

    def _supervise(self, run: Run, body: Body) -> None:
        """Let the body end by itself, or because its time is up or somebody asked for it."""
        loop = asyncio.get_running_loop()
        ending = body.start()
        timer = self._start_timer(run, loop)
        enforcing: list[asyncio.Task[None]] = []

        def stopping() -> None:
            if not enforcing and not ending.done():  # a body that has ended only waits for its outcome to be written
                enforcing.append(self._spawn(self._enforce(run, body)))

        def ended(_: asyncio.Future[Any]) -> None:
            if timer is not None:
                timer.cancel()
            self._end_enforcing(run, enforcing)
            self._step(run, self._body_ended, run, ending)

        run.attach(body, lambda: loop.call_soon_threadsafe(stopping))
        ending.add_done_callback(ended)

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

    def _body_ended(self, run: Run, ending: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if ending.cancelled() else ending.exception()
        if error is not None:
            self._ended(run, raised(error, run, limit=self._limits.traceback))
        else:
            self._ended(run, returned(ending.result(), limit=self._limits.result))

    # Settling

    def _ended(self, run: Run, ended: Ended) -> None:
        self._beater.settling(run.hold)
        self._vacated(run)
        now = self._clock.monotonic()
        if run.completion is not None:
            self._completed_already(run, run.completion, ended, seconds=now - run.started_at)
            self._over(run)
            return
        finished = run.now(now)
        written = self._settlement(run, ended, finished=finished)
        answered = partial(self._step, run, self._answered, run, ended, written, now - run.started_at)
        self._settler.settle(written, finished, answered)

    def _answered(self, run: Run, ended: Ended, written: Settlement, seconds: float, settled: Settled | None) -> None:
        """The database has accepted the outcome, or refused it."""
        if settled is None:
            self._spawn(self._refused(run, ended, seconds=seconds))
            return
        if ended.not_stored is not None:
            self._tell(run, events.ResultNotStored, reason=ended.not_stored)
        self._report(run, ended, written, settled, seconds=seconds)
        self._over(run)

    def _over(self, run: Run) -> None:
        self._beater.forget(run.hold)
        self._tell_over(run)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _settlement(self, run: Run, ended: Ended, *, finished: datetime) -> Settlement:
        """What to write. A stored schedule that this version cannot read, or that has no next time, is a failure."""
        try:
            return settlement(run, ended, finished=finished, rng=self._rng)
        except Exception as error:  # noqa: BLE001 - a run without a settlement would hold its job for ever
            text = describe(error, limit=self._limits.traceback)
            return Failure(hold=run.hold, error=text, delay=one_off().delay(run.claim.attempt, rng=self._rng))

    def _report(self, run: Run, ended: Ended, written: object, settled: Settled, *, seconds: float) -> None:
        if isinstance(written, Completion) and ended.outcome is Outcome.SUCCEEDED:
            self._tell(run, events.RunSucceeded, seconds=seconds, next_run_time=written.next_run_time)
        elif isinstance(written, Failure):
            self._tell(
                run,
                events.RunFailed,
                attempt=run.claim.attempt,
                error=written.error,
                retry_in=written.delay.total_seconds(),
                dead=settled.dead,
            )
        else:
            self._tell(run, events.RunEnded, outcome=ended.outcome, reason=ended.error or "")

    async def _refused(self, run: Run, ended: Ended, *, seconds: float) -> None:
        """The claim had passed on, or this very run had ended the slot by a commit whose answer was lost."""
        try:
            recorded = await self._settler.recorded(run.hold)
        finally:
            self._beater.forget(run.hold)
        if recorded is Outcome.SUCCEEDED:
            self._tell(run, events.RunSucceeded, seconds=seconds, next_run_time=None)
        else:
            self._tell(run, events.LateWriteRefused, outcome=ended.outcome)
        self._over(run)

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
