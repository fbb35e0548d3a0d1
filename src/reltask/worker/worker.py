"""A worker: composes the services and, above all, ends them in the right order.

    start   open store ─► declare schedules ─► register ─► beater ─► settler ─► poller ─► maintenance
    stop    maintenance (resigns) ─► poller ─► wait for bodies (beating on) ─► stop bodies ─► release ─► settler
            ─► beater ─► say goodbye
    cut off stop bodies and beater at once ─► the rest of a stop, from the poller on, for as long as there is a loop;
            what a claim on its way still brings is released unbegun

Maintenance ends first, so that somebody else has it at once, however long bodies go on. While bodies finish within the
grace, the beater goes on: a shutdown that stops beating would hand a running slot to somebody else. Claims are released
only after their bodies have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from reltask import events
from reltask.errors import DatabaseError, LockLost, ReltaskError, SettingsError
from reltask.model.clock import Clock
from reltask.model.job import NewJob, Settled, WorkerRecord
from reltask.model.pace import Pace
from reltask.model.settings import LimitSettings, MaintenanceSettings, WorkerSettings
from reltask.model.task import Registry, TaskKind
from reltask.producer.transaction import wait_for
from reltask.service import Host, LoopHost, Service, ThreadHost, worker_id
from reltask.stores.store import Store
from reltask.version import __version__
from reltask.worker.beater import Beater
from reltask.worker.bodies import AsyncBody, ThreadBody
from reltask.worker.context import Context, ContextServices, SyncContext
from reltask.worker.declare import Declaration, Redeclaring, declare
from reltask.worker.execute import End, Executor
from reltask.worker.heartbeat import Abandon
from reltask.worker.maintenance import Maintenance
from reltask.worker.places import Places
from reltask.worker.poller import Poller
from reltask.worker.process import ProcessBody
from reltask.worker.run import Body, Run, StopReason
from reltask.worker.settle import Settler, Waiting
from reltask.worker.threads import ThreadPool
from reltask.worker.transaction import Transactions

Unused = Callable[[], Awaitable[None]]
"""Waits until those that were lent a worker's store have done with it, but not for ever."""
MAINTENANCE_PATIENCE = 1.0
"""A step of the maintenance that takes longer to end than this is cut off: it is tried again by somebody else."""
PROGRESS_INTERVAL = 1.0
"""A run's progress is written at most once in this many seconds."""


class Worker:
    """Runs due jobs until it is stopped."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        settings: WorkerSettings,
        limits: LimitSettings,
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        wanted: events.Interest = events.always,
        schedules: Sequence[NewJob] = (),
        app_version: str | None = None,
        state: Any = None,
        beater_host: Callable[[Service], Host] = ThreadHost,
        identity: str | None = None,
        maintenance: MaintenanceSettings | None = None,
    ) -> None:
        """`maintenance` None: this worker takes no part in it."""
        self.id = identity or worker_id(settings.name, rng)
        self.store = store
        self.started = False
        self._registry = registry
        self._settings = settings
        self._limits = limits
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self._wanted = wanted
        self._schedules = schedules
        self._app_version = app_version
        self._pool = ThreadPool()
        self._listening = contextlib.AsyncExitStack()
        self._leaving: asyncio.Task[None] | None = None
        self._freed = asyncio.Event()
        self._hurried = asyncio.Event()
        self._queues = settings.queues or registry.queues()
        self._places = Places(
            concurrency=settings.concurrency, queues=self._queues, per_queue=dict(settings.queue_concurrency)
        )
        self._pace_of = lru_cache(maxsize=64)(self._find_pace)
        pace = settings.pace()
        self._alive_for = 2 * max(settings.poll, timedelta(seconds=pace.heartbeat)) + timedelta(seconds=5)
        self._beater = self._make_beater(pace)
        self._settler = Settler[End](store, worker=self.id, clock=clock, emit=emit, answered=self._settled)
        self._services = self._make_services(state)
        self._executor = self._make_executor()
        self._poller = self._make_poller()
        self._maintenance = self._make_maintenance(maintenance)
        self._polling = LoopHost(self._poller)
        self._hosts: list[Host] = [beater_host(self._beater), LoopHost(self._settler), self._polling]
        if self._maintenance is not None:
            self._hosts.append(LoopHost(self._maintenance))

    def _make_beater(self, pace: Pace) -> Beater:
        return Beater(
            self.store.dedicated(timeout=timedelta(seconds=pace.beat_timeout)),
            worker=self.id,
            pace=pace,
            alive_for=self._alive_for,
            clock=self._clock,
            emit=self._emit,
            abandon=self._abandon,
        )

    def _make_services(self, state: Any) -> ContextServices:
        transactions = Transactions(
            self.store, worker=self.id, beater=self._beater, clock=self._clock, result_limit=self._limits.result
        )
        return ContextServices(
            worker=self.id, state=state, transactions=transactions, save_progress=self._save_progress
        )

    def _make_executor(self) -> Executor:
        return Executor(
            worker=self.id,
            settler=self._settler,
            beater=self._beater,
            make_body=self._make_body,
            vacated=self._vacated,
            over=self._over,
            clock=self._clock,
            rng=self._rng,
            emit=self._emit,
            wanted=self._wanted,
            limits=self._limits,
        )

    def _make_poller(self) -> Poller:
        return Poller(
            self.store,
            worker=self.id,
            registry=self._registry,
            places=self._places,
            beater=self._beater,
            poll=self._settings.poll,
            lock_timeout=self._settings.lock_timeout,
            alive_for=self._alive_for,
            pace_of=self._pace_of,
            dispatch=self._begin,
            clock=self._clock,
            rng=self._rng,
            emit=self._emit,
        )

    def _make_maintenance(self, settings: MaintenanceSettings | None) -> Maintenance | None:
        if settings is None or settings.coordination == "off":
            return None
        return Maintenance(
            self.store,
            settings,
            worker=self.id,
            clock=self._clock,
            rng=self._rng,
            emit=self._emit,
            reclaimed=self._poller.wake,
        )

    @property
    def running(self) -> int:
        """How many runs this worker holds now."""
        return len(self._places)

    # Life

    async def start(self) -> None:
        """Open the store, declare the schedules, introduce the worker, and begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._executor.open()
        for task in self._registry:
            if task.options.lock_timeout is not None:
                self._settings.pace(task.options.lock_timeout)
        try:
            await self._introduce()
        except BaseException:
            await self.store.close()
            raise
        for host in self._hosts:
            await host.start()
        self.started = True
        names = self._registry.names()
        self._emit(
            events.WorkerStarted(
                worker=self.id, queues=list(self._queues), tasks=names, concurrency=self._settings.concurrency
            )
        )

    async def _introduce(self) -> None:
        await self.store.open()
        declared = await self._declare()
        if declared.waits or declared.blocking:
            self._hosts.append(LoopHost(Redeclaring(self._declare)))
        for row, beside in declared.left_over:
            left = events.ScheduleLeftOver(worker=self.id, task=row.task, key=row.key, job_id=row.id, beside=beside)
            self._emit(left)
        for row in declared.blocking:
            self._emit(events.ScheduleBlocked(worker=self.id, task=row.task, key=row.key, job_id=row.id))
        for row in declared.outdated:
            self._emit(
                events.DeclarationIgnored(
                    worker=self.id,
                    task=row.task,
                    key=row.key,
                    job_id=row.id,
                    version=self._app_version,
                    newer=row.app_version,
                )
            )
        await self.store.register_worker(self._record())
        await self._listening.enter_async_context(self._listen())

    async def _declare(self) -> Declaration:
        return await declare(
            self.store,
            self._schedules,
            self._registry,
            worker=self.id,
            run_of=self._run_of,
            app_version=self._app_version,
        )

    def _run_of(self, job_id: UUID) -> Run | None:
        """The run of a job here whose end is still to be computed.

        Not one that was brought forward: its nominal time is still to come, and the new rule would begin only there.
        """
        now = self._clock.monotonic()
        for run in self._places:
            if run.hold.job_id == job_id and not run.has_ended and not run.is_completing:
                return run if run.claim.nominal <= run.now(now) else None
        return None

    def _listen(self) -> AbstractAsyncContextManager[bool]:
        if self._maintenance is None:
            return self.store.listen(self._poller.signalled)
        return self.store.listen(self._poller.signalled, lease=self._maintenance.hint)

    async def stop(self, *, grace: timedelta | None = None, unused: Unused | None = None) -> None:
        """Claim no more, let bodies finish within the grace, stop the rest, release, and say goodbye.

        `unused` is waited for before the store is closed.
        """
        grace = self._settings.shutdown_grace if grace is None else grace
        try:
            await self._withdraw(grace)
            await self._leave(grace, unused)
        except BaseException:
            self._cut_off(unused)
            raise

    async def _withdraw(self, grace: timedelta) -> None:
        """Claim no more, and let somebody else do the maintenance."""
        _, _, _, *maintenance = self._hosts
        self._poller.finish()  # first of all: whatever else takes its time, nothing more is claimed
        self._emit(events.WorkerStopping(worker=self.id, running=self.running, grace=grace.total_seconds()))
        for host in maintenance:
            await _stop_soon(host)

    async def _leave(self, grace: timedelta, unused: Unused | None) -> None:
        """See the claim on its way and the bodies to their ends, and say goodbye. Once cut off, it can begin anew."""
        beater, settler, *_ = self._hosts
        await self._listening.aclose()
        await self._polling.ended()  # whoever cuts this off leaves a claim on its way, to be given back
        await self._finish_bodies(grace)
        await asyncio.shield(settler.stop())  # whoever cuts this off leaves the last outcomes on their way
        self._executor.close()  # whoever was refused by the last answer
        await beater.stop()
        self._pool.close()
        with contextlib.suppress(ReltaskError):
            await self.store.stop_worker(self.id)
            await self.store.signal()  # the others look, and learn the due times that only this one knew
        if unused is not None:
            await unused()
        await self.store.close()
        self._emit(events.WorkerStopped(worker=self.id, unsettled=self.running))

    def _cut_off(self, unused: Unused | None) -> None:
        """Nobody waits for this stop any more: ask all bodies to end, and renew no claim, so that the locks expire.

        The beater lives on a thread of its own, and would renew them for as long as the process lives. The goodbye goes
        on by itself, without a grace: a loop that lives on sees it to its end, one that ends takes it along.
        """
        for host in self._hosts:
            if host.service is not self._settler:
                host.service.finish()
        _stop_bodies(self._places)
        self._leaving = self._loop.create_task(self._leave(timedelta(0), unused))

    async def drained(self) -> None:
        """Wait until nothing is due and nothing runs: for `worker --once`."""
        while not (self._poller.idle and self.running == 0):
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._freed.wait()

    def hurry(self) -> None:
        """The grace of a stop under way is over: stop the bodies now. Before a stop it makes that one short."""
        self._hurried.set()

    def wake(self) -> None:
        """Look for work now. From any thread."""
        self._poller.wake()

    async def _finish_bodies(self, grace: timedelta) -> None:
        """Wait for the bodies; those that outlast the grace are stopped, and get their own grace to end."""
        await self._wait_for_bodies(grace)
        _stop_bodies(self._places)
        longest = max((run.pace.stop_grace for run in self._places), default=0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest + 2.0):
                await self._emptied()
        self._executor.close()

    async def _wait_for_bodies(self, grace: timedelta) -> None:
        waits = [self._loop.create_task(self._hurried.wait()), self._loop.create_task(self._emptied())]
        try:
            await asyncio.wait(waits, timeout=grace.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _emptied(self) -> None:
        """Wait until every run's end is on record."""
        while self.running:
            self._freed.clear()
            await self._freed.wait()

    # Runs

    def _begin(self, runs: Sequence[Run]) -> None:
        """Begin what was claimed. Once a stop is cut off, nobody renews it: it is given back without a body."""
        if self._leaving is not None:
            _stop_bodies(runs)
        self._executor.start(runs)

    def _vacated(self, runs: Sequence[Run]) -> None:
        self._places.vacate(runs)
        self._poller.vacated()

    def _settled(self, answers: Sequence[tuple[Waiting[End], Settled | None]]) -> None:
        self._executor.settled(answers)

    def _over(self, runs: Sequence[Run]) -> None:
        """Free their places. A run that a shutdown cut off keeps it, and counts as unsettled."""
        self._places.give_back(runs)
        self._freed.set()
        self._poller.wake()  # what ran may have enqueued more, and is due again: only the next look can tell

    def _abandon(self, abandon: Abandon) -> None:
        """Stop a body whose claim is no longer to be trusted. Called on the beater's thread."""
        run = self._places.get(abandon.hold)
        if run is None:
            return
        run.stop(StopReason.LOST if abandon.lost else StopReason.ABANDONED, abandon.reason)
        claim = run.claim
        self._emit(
            events.RunAbandoned(
                worker=self.id,
                task=claim.task,
                job_id=claim.job_id,
                slot_no=claim.slot_no,
                fence=claim.fence,
                reason=abandon.reason,
            )
        )

    def _make_body(self, run: Run) -> Body:
        task = run.task
        if task.kind is TaskKind.PROCESS:
            return ProcessBody(self._pool, run, worker=self.id, progress=self._progress_from_thread(run))
        make = Context if task.kind is TaskKind.ASYNC else SyncContext
        given = (make(run, self._services),) if task.context else ()
        named = task.arguments.decode(run.claim.args)
        if task.kind is TaskKind.ASYNC:
            return AsyncBody(self._loop, task.function, given, named)
        return ThreadBody(self._pool, partial(task.function, *given, **named))

    async def _save_progress(self, run: Run, text: str) -> None:
        """Write a run's progress, not more often than people look."""
        now = self._clock.monotonic()
        if now - run.progress_at < PROGRESS_INTERVAL:
            return
        run.progress_at = now
        if not await self.store.record_progress(self.id, run.hold, text):
            run.stop(StopReason.LOST, "the claim has passed to somebody else")
            raise LockLost("This run's claim has passed to somebody else.")

    def _progress_from_thread(self, run: Run) -> Callable[[str], None]:
        async def save_quietly(text: str) -> None:
            with contextlib.suppress(DatabaseError, LockLost):
                await self._save_progress(run, text)

        return lambda text: wait_for(save_quietly(text), self._loop)

    def _find_pace(self, lock_timeout: timedelta) -> Pace:
        """The pace for a row's own lock timeout; one that does not suit this worker's heartbeat brings its own."""
        try:
            return self._settings.pace(lock_timeout)
        except SettingsError:
            return Pace.of(lock_timeout)

    def _record(self) -> WorkerRecord:
        return WorkerRecord(
            id=self.id,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            app_version=self._app_version,
            queues=list(self._queues),
            tasks=self._registry.names(),
            concurrency=self._settings.concurrency,
            alive_for=self._alive_for,
        )


def _stop_bodies(runs: Iterable[Run]) -> None:
    for run in runs:
        run.stop(StopReason.SHUTDOWN, "the worker is shutting down")


async def _stop_soon(host: Host) -> None:
    """Stop a service, but cut off what takes too long."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(MAINTENANCE_PATIENCE):
            await host.stop()
