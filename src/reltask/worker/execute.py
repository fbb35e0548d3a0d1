"""A run as a pipeline of small steps: decode, run, judge, settle. The outcome is a value.

    claim ─► skip? ─► decode ─► body ─────────────────────────► Ended ─► settlement ─► committed ─► event
                                  │ timeout, shutdown, doubt      ▲
                                  └─► stop ─► grace ─► kill ──────┘
                                                 └─► will not end: stuck. Its place stays taken, its lock expires.

Each arrow is a plain call, made by the claim's answer, by the last step of a body, or by the answer
to a settlement. So a run needs only one task of the loop, for its body. Runs are handled in groups:
runs that were claimed together begin together, and runs that end in the same turn of the loop are
settled together.

A claim is released only after its body has ended. A body that cannot be stopped keeps its place in
this worker. Its claim is no longer renewed, so another worker gets the slot when the lock ends.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from contextvars import Context, copy_context
from datetime import timedelta
from functools import partial
from typing import Any

from msgspec import Struct

from reltask import events
from reltask.errors import ReltaskError
from reltask.model import schedule
from reltask.model.backoff import one_off
from reltask.model.clock import Clock
from reltask.model.durable import Recording, StepState
from reltask.model.job import Claim, Completion, Failure, Outcome, Settled, Settlement, Suspension
from reltask.model.settings import LimitSettings
from reltask.producer.cancel import cancel_children
from reltask.producer.transaction import open_transaction
from reltask.stores.store import Store
from reltask.worker.awaited import Awaited
from reltask.worker.beater import Beater
from reltask.worker.bodies import Bodies
from reltask.worker.outcome import (
    PLAIN_SUCCESS,
    Ended,
    describe,
    fault_of,
    raised,
    read_schedule,
    returned,
    settlement,
    suspended,
)
from reltask.worker.places import Places
from reltask.worker.run import BY_REQUEST, Run, StopReason
from reltask.worker.settle import Settler, Waiting, Writable
from reltask.worker.step import running_step


class End(Struct, frozen=True, gc=False):
    """How a run ended, kept until that is recorded."""

    run: Run
    ended: Ended
    seconds: float


class Executor:
    """Takes runs from claim to ledger."""

    def __init__(
        self,
        store: Store,
        *,
        worker: str,
        places: Places,
        beater: Beater,
        bodies: Bodies,
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        wanted: events.Interest,
        limits: LimitSettings,
    ) -> None:
        self.settler = Settler[End](
            store, worker=worker, clock=clock, emit=emit, answered=self._settled, held=places.hold_back
        )
        self._store = store
        self._worker = worker
        self._places = places
        self._beater = beater
        self._heartbeats = beater.heartbeats
        self._bodies = bodies
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self._wanted = wanted
        self._limits = limits
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._ends: list[tuple[Run, Ended]] = []
        self._stopping = False
        self.awaited: Awaited | None = None
        """Who waits for results: set by the worker."""
        self._loop: asyncio.AbstractEventLoop
        self._context: Context
        """The worker's own context variables: settlement runs in these, not in those of a body."""

    def open(self) -> None:
        """Use the running loop for all runs."""
        self._loop = asyncio.get_running_loop()
        self._context = copy_context()

    def start(self, runs: Sequence[Run]) -> None:
        """Begin claimed slots; their ends are settled without further calls."""
        if not runs:
            return
        if self._stopping:
            self.stop_bodies(runs)
        late = self._heartbeats.too_late([run.hold for run in runs], self._clock.monotonic())
        wanted = self._wanted_tasks(events.RunStarted, runs)
        for run in runs:
            if run.hold in late:
                run.stop(StopReason.ABANDONED, "the claim's answer came after its deadline")
            try:
                self._start(run, report=run.claim.task in wanted)
            except Exception as error:  # noqa: BLE001 - logged there
                self._give_up(run, error)
        self._loop.call_soon(self._begun, runs)

    def stop_bodies(self, runs: Iterable[Run]) -> None:
        """Ask the bodies of these runs to end, because the worker shuts down."""
        for run in runs:
            run.stop(StopReason.SHUTDOWN, "the worker is shutting down")

    def begin_no_more(self) -> None:
        """Claims are no longer renewed: stop all bodies, and release later claims without starting them."""
        self._stopping = True
        self.stop_bodies(self._places)

    def report_changed_step(self, run: Run, step: str) -> None:
        """A recorded step was asked for with another function or other arguments."""
        self._report(run, events.StepChanged, step=step)

    def report_steps(self, run: Run, recording: Recording) -> None:
        """Steps of a durable function were recorded."""
        if self._wanted(events.StepsRecorded, run.claim.task):
            kinds = [str(step.kind) for step in recording.steps if step.state is not StepState.WAITING]
            self._report(run, events.StepsRecorded, kinds=kinds)

    def report_enqueue(self, run: Run, what: str) -> None:
        """A durable function enqueues or signals: in a step and in a transaction that is fine, elsewhere it repeats."""
        if running_step.get() is None and open_transaction() is None:
            run.on_enqueue = None
            self._report(run, events.EnqueuedOutsideStep, what=what)

    def close(self) -> None:
        """Cancel the executor's own tasks that are still running, and let no thread wait for them."""
        for task in self._tasks:
            task.cancel()
        for run in self._places:
            if run.durable is not None:
                run.durable.journal.give_up()

    def _give_up(self, run: Run, error: Exception) -> None:
        """After a bug in the worker: free the place, and let the claim expire without a settlement."""
        logging.getLogger("reltask").error("A run of %s is given up", run.claim.task, exc_info=error)
        self._places.vacate([run])
        self._over([run])

    # Running

    def _start(self, run: Run, *, report: bool) -> None:
        run.started_at = self._clock.monotonic()
        if report:
            late = max(0.0, (run.claim.locked_at - run.claim.due_at).total_seconds())
            self._report(run, events.RunStarted, attempt=run.claim.attempt, late=late)
        if run.stop_reason is not None:
            self._end_unbegun(run, Ended(outcome=Outcome.RELEASED, error=f"not begun: {run.stop_detail}"))
            return
        if run.claim.cancelled:
            self._end_unbegun(run, Ended(outcome=Outcome.CANCELLED, error=BY_REQUEST))
            return
        fault = fault_of(run.claim, arguments_limit=self._limits.arguments)
        if fault is not None:
            self._end_unbegun(run, Ended(outcome=Outcome.FAILED, error=fault, delay=timedelta(0), final=True))
            return
        try:
            if run.claim.schedule is not None and _is_missed(run.claim, run.claim.schedule):
                self._end_unbegun(run, Ended(outcome=Outcome.SKIPPED, error="due too long ago when it was claimed"))
                return
            if run.claim.steps:
                run.on_enqueue = partial(self.report_enqueue, run)
            body = self._bodies.make(run)
            run.ending = body.start(partial(self._body_ended, run))
            run.asked_to_stop, run.body = self._asked_to_stop, body
            if run.stop_reason is not None:  # read after `body` is set: a stop either sees the body, or is seen here
                run.pass_on()
        except Exception as error:  # noqa: BLE001 - a row that cannot be read fails its slot, not the worker
            self._body_ended(run, None, error)
            return
        if run.task.options.timeout is not None and not run.has_ended:
            seconds = run.task.options.timeout.total_seconds()
            why = f"the run took longer than its timeout of {seconds:g} s"
            run.timer = self._loop.call_later(seconds, run.stop, StopReason.TIMEOUT, why)

    def _begun(self, runs: Sequence[Run]) -> None:
        """All bodies have taken their first step.

        One that was cancelled before that has not reported its end.
        """
        for run in runs:
            if run.ending is not None and run.ending.cancelled():
                self._body_ended(run, None, asyncio.CancelledError())

    def _asked_to_stop(self, run: Run) -> None:
        """From any thread."""
        self._loop.call_soon_threadsafe(self._enforce_soon, run)

    def _enforce_soon(self, run: Run) -> None:
        """Watch the body, unless it has ended and only its outcome is still to be written."""
        if run.durable is not None:
            run.durable.parking.stop()
        if run.enforcing is None and run.ending is not None and not run.ending.done():
            run.enforcing = self._spawn(self._enforce(run))

    async def _enforce(self, run: Run) -> None:
        """The body was asked to stop: kill it after the grace, and report it if it still runs then."""
        await self._clock.sleep(run.pace.stop_grace)
        run.kill()
        await self._clock.sleep(min(1.0, run.pace.stop_grace))
        self._report(run, events.BodyStuck, seconds=run.pace.stop_grace)

    def _body_ended(self, run: Run, result: Any, error: BaseException | None) -> None:
        if run.has_ended:
            return
        run.has_ended, run.body = True, None  # the body may hold a reference to the run
        if run.timer is not None:
            run.timer.cancel()
        if run.enforcing is not None and not run.enforcing.cancel():
            self._report(run, events.BodyEndedLate)
        try:
            ended = self._judge(run, result, error)
            if run.durable is None:
                self._end(run, ended)
            else:
                self._end_durable(run, ended)
        except Exception as mistake:  # noqa: BLE001 - logged there
            self._give_up(run, mistake)

    def _judge(self, run: Run, result: Any, error: BaseException | None) -> Ended:
        if run.fatal is not None:
            return Ended(outcome=Outcome.FAILED, error=run.fatal, delay=timedelta(0), final=True)
        if run.suspension is not None and not (run.stop_reason and run.stop_reason.overrules_waiting):
            return suspended(error, run, limit=self._limits.traceback)
        if error is None:
            return returned(result, limit=self._limits.result)
        return raised(error, run, limit=self._limits.traceback)

    def _end_durable(self, run: Run, ended: Ended) -> None:
        """Settle when all steps that have ended are recorded: else their functions would run again."""
        unasked = run.durable.journal.never_asked() if ended.outcome is Outcome.SUCCEEDED else []
        if unasked:
            self._report(run, events.StepsNotAsked, steps=unasked)
        if run.durable.close(partial(self._end, run, ended)):
            if ended.again is not None and run.durable.journal.has_waited():
                self._spawn(self._end_again(run, ended))
            else:
                self._end(run, ended)
        else:
            self._heartbeats.settling([run.hold])
            self._places.vacate([run])

    async def _end_again(self, run: Run, ended: Ended) -> None:
        """Report signals that wait, and settle: the next slot has its own."""
        with suppress(Exception):  # it is a hint only
            waits = await self._store.read_waits(run.claim.job_id, run.claim.slot_no)
            if waits is not None and waits.signals:
                names = list(dict.fromkeys(signal.name for signal in waits.signals))
                self._report(run, events.SignalsNotReceived, signals=names)
        self._end(run, ended)

    # Settling

    def _end(self, run: Run, ended: Ended) -> None:
        """Settle in the next turn of the loop, together with all that ends in this one."""
        if not self._ends:
            self._loop.call_soon(self._settle, context=self._context)
        self._ends.append((run, ended))

    def _end_unbegun(self, run: Run, ended: Ended) -> None:
        run.has_ended = True
        self._end(run, ended)

    def _settle(self) -> None:
        ends, self._ends = self._ends, []
        self._heartbeats.settling([run.hold for run, _ in ends])
        self._places.vacate([run for run, _ in ends])
        now = self._clock.monotonic()
        outcomes = []
        for run, ended in ends:
            end = End(run, ended, now - run.started_at)
            try:
                if run.completion is None:
                    outcomes.append(self._outcome(end, now))
                else:
                    self._completed_already(end, run.completion)
            except Exception as error:  # noqa: BLE001 - logged there
                self._give_up(run, error)
        self.settler.settle(outcomes)

    def _outcome(self, end: End, now: float) -> Waiting[End]:
        """What to write.

        A schedule that this version cannot read, or without a next time, is a failure.
        """
        run = end.run
        written: Settlement
        try:
            written = settlement(run, end.ended, now=now, rng=self._rng)
        except Exception as error:  # noqa: BLE001 - a run without a settlement would hold its job for ever
            text = describe(error, limit=self._limits.traceback)
            delay = one_off().delay(run.attempt, rng=self._rng)
            written = Failure(hold=run.hold, error=text, delay=delay, patient=True)
        if run.claim.has_parent:  # this end may have left a mark: a worker should fold it now
            return Waiting(written, run.now(now), end)
        if isinstance(written, Completion):
            return Waiting(written, written.next_run_time, end)
        if isinstance(written, Suspension):
            return Waiting(written, written.wake_at, end)
        return Waiting(written, run.now(now) + (written.delay or timedelta(0)), end)

    def _settled(self, answers: Sequence[tuple[Waiting[End], Settled | None]]) -> None:
        """The database has accepted these outcomes, or refused them (None)."""
        wanted = self._wanted_tasks(events.RunSucceeded, [waiting.end.run for waiting, _ in answers])
        over, again = [], False
        for waiting, settled in answers:
            end = waiting.end
            try:
                if settled is None:
                    self._spawn(self._refused(end))
                    continue
                is_plain = end.ended is PLAIN_SUCCESS and isinstance(waiting.settlement, Completion)
                if end.run.claim.task in wanted or not is_plain:
                    self._report_end(end, waiting.settlement, settled)
            except Exception:
                logging.getLogger("reltask").exception("The end of a run of %s was not reported", end.run.claim.task)
            over.append(end.run)
            written = waiting.settlement
            if not isinstance(written, Completion) or written.next_run_time is not None or written.has_parent:
                again = True
            if end.ended.outcome is Outcome.CANCELLED and (end.run.claim.steps or end.run.durable is not None):
                self._spawn(self._cancel_children(end.run))
        if over:
            awaited = self.awaited
            if awaited is not None and (awaited.until or (awaited.results is not None and awaited.results.waiters)):
                awaited.ended(run.claim.job_id for run in over if run.claim.schedule is None)
            self._over(over, again=again)

    async def _cancel_children(self, run: Run) -> None:
        """A durable function was cancelled: its children are too, and need not wait for the maintenance."""
        with suppress(ReltaskError):  # then the maintenance does it
            await cancel_children(self._store, [run.claim.job_id])
            self._beater.may_be_cancelled([])

    def _over(self, runs: Sequence[Run], *, again: bool = True) -> None:
        """Free the places. `again`: their ends may have made something due.

        A run that a shutdown cut off never gets here, and counts as unsettled.
        """
        self._heartbeats.forget([run.hold for run in runs])
        self._places.give_back(runs, again=again)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def _report_end(self, end: End, written: Writable, settled: Settled) -> None:
        run, ended = end.run, end.ended
        if ended.not_stored is not None:
            self._report(run, events.ResultNotStored, reason=ended.not_stored)
        if isinstance(written, Completion) and ended.outcome is Outcome.SUCCEEDED:
            self._report(run, events.RunSucceeded, seconds=end.seconds, next_run_time=written.next_run_time)
        elif isinstance(written, Failure):
            self._report(
                run,
                events.RunFailed,
                attempt=run.attempt,
                error=written.error,
                retry_in=written.delay.total_seconds(),
                dead=settled.dead,
                recurring=run.claim.schedule is not None,
                seconds=end.seconds,
            )
        else:
            self._report(
                run,
                events.RunEnded,
                outcome=ended.outcome,
                reason=ended.error or "",
                dead=settled.dead,
                seconds=end.seconds,
            )

    async def _refused(self, end: End) -> None:
        """Another worker had the claim, or this run had ended the slot by a commit whose answer was lost."""
        run = end.run
        try:
            recorded = await self.settler.recorded(run.hold)
        finally:
            self._heartbeats.forget([run.hold])
        if recorded is Outcome.SUCCEEDED:
            self._report(run, events.RunSucceeded, seconds=end.seconds, next_run_time=None)
        else:
            self._report(run, events.LateWriteRefused, outcome=end.ended.outcome)
        self._over([run])

    def _completed_already(self, end: End, completion: Completion) -> None:
        """The body's own transaction has completed the slot; a later error changes nothing."""
        if end.run.not_stored is not None:
            self._report(end.run, events.ResultNotStored, reason=end.run.not_stored)
        self._report(end.run, events.RunSucceeded, seconds=end.seconds, next_run_time=completion.next_run_time)
        if self.awaited is not None:
            self.awaited.ended([end.run.claim.job_id])
        if end.ended.outcome is not Outcome.SUCCEEDED:
            self._report(end.run, events.ErrorAfterCompletion, error=end.ended.error or "")
        self._over([end.run])

    def _wanted_tasks(self, event: type[events.RunEvent], runs: Sequence[Run]) -> set[str]:
        """The tasks among these whose events of this kind have a subscriber."""
        return {task for task in {run.claim.task for run in runs} if self._wanted(event, task)}

    def _report(self, run: Run, event: type[events.RunEvent], **fields: Any) -> None:
        claim = run.claim
        self._emit(
            event(
                worker=self._worker,
                task=claim.task,
                job_id=claim.job_id,
                slot_no=claim.slot_no,
                fence=claim.fence,
                queue=claim.queue,
                **fields,
            )
        )


def _is_missed(claim: Claim, stored: str) -> bool:
    return schedule.is_missed(
        read_schedule(stored), nominal=claim.nominal, claimed_at=claim.slot_started_at, attempt=claim.attempt
    )
