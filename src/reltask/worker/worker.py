"""A worker: composes the services, and ends them in the right order.

    start   open store ─► declare schedules ─► register ─► beater ─► settler ─► poller ─► maintenance
    stop    maintenance (resigns) ─► poller ─► wait for bodies (beating on) ─► stop bodies ─► release ─► settler
            ─► beater ─► mark the worker as stopped
    cut off stop bodies and beater at once ─► the rest of a stop, from the poller on, for as long as there is a loop;
            jobs of a claim that is still unanswered are released without being started

Maintenance ends first, so that another worker takes it over at once, however long bodies run. While
bodies finish within the grace, the beater continues: without beats, another worker would get a
running slot. Claims are released only after their bodies have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
from collections.abc import Awaitable, Callable, Collection, Sequence
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any
from uuid import UUID

from reltask import events
from reltask.errors import ReltaskError, SettingsError
from reltask.model.clock import Clock
from reltask.model.durable import Recording
from reltask.model.job import NewJob, WorkerRecord
from reltask.model.keys import KeyHash
from reltask.model.pace import Pace
from reltask.model.settings import HistorySettings, LimitSettings, MaintenanceSettings, WorkerSettings
from reltask.model.shards import Here
from reltask.model.task import Registry, check_text
from reltask.producer.enqueue import Enqueuer
from reltask.producer.result import Results
from reltask.service import Host, LoopHost, Service, ThreadHost, worker_id
from reltask.stores.store import Store, open_as_shard
from reltask.version import __version__
from reltask.worker.awaited import Awaited
from reltask.worker.beater import Beater
from reltask.worker.bodies import Bodies
from reltask.worker.children import Children
from reltask.worker.context import ContextServices
from reltask.worker.declare import Declaration, Redeclaring, declare, declare_limits
from reltask.worker.durable import Durable
from reltask.worker.execute import Executor
from reltask.worker.heartbeat import Abandon, StopCancelled
from reltask.worker.journal import step_recorder
from reltask.worker.maintenance import Maintenance
from reltask.worker.places import Places, Room
from reltask.worker.poller import Poller
from reltask.worker.run import BY_REQUEST, Run, StopReason
from reltask.worker.settle import Waiting
from reltask.worker.threads import ThreadPool
from reltask.worker.transaction import Transactions
from reltask.worker.waking import Waking

Unused = Callable[[], Awaitable[None]]
"""Waits, for a limited time, until the calls that use a worker's store have ended."""
MAINTENANCE_PATIENCE = 1.0
"""Seconds that a stop waits for a step of the maintenance before it cancels it."""
GOODBYE = 5.0
"""Seconds that a stop waits until the database knows that this worker has stopped. Others learn it later anyway."""


class Worker:
    """Runs due jobs until it is stopped."""

    def __init__(
        self,
        store: Store,
        registry: Registry,
        *,
        settings: WorkerSettings,
        limits: LimitSettings,
        history: HistorySettings | None = None,
        clock: Clock,
        rng: random.Random,
        emit: events.Subscriber,
        emit_soon: events.Subscriber | None = None,
        wanted: events.Interest = events.always,
        schedules: Sequence[NewJob] = (),
        app_version: str | None = None,
        state: Any = None,
        beater_host: Callable[[Service], Host] = ThreadHost,
        identity: str | None = None,
        enqueuer: Enqueuer | None = None,
        maintenance: MaintenanceSettings | None = None,
        here: Here | None = None,
        room: Room | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        """`maintenance` None: this worker takes no part in it. `enqueuer` starts the children of durable functions.

        `here` is the shard that it serves, if there are several; `room` is shared by their workers.
        """
        check_text("worker.name", settings.name, SettingsError)
        self.id = identity or worker_id(settings.name, rng)
        self.store = store
        self.started = False
        self._registry = registry
        self._settings = settings
        self._limits = limits
        self._keeps_arguments = history is None or history.arguments == "on"
        self._clock = clock
        self._rng = rng
        self._emit = emit
        self._emit_soon = emit_soon or emit
        """For the beater's thread: a subscriber that blocks must not delay a heartbeat, or the stop of a body."""
        self._wanted = wanted
        self._schedules = schedules
        self._app_version = app_version
        self._here = here
        self._pool = pool or ThreadPool()
        self._listening = contextlib.AsyncExitStack()
        self._shutting_down: asyncio.Task[None] | None = None
        self._hurried = asyncio.Event()
        self._queues = settings.queues or registry.queues()
        self._places = Places(
            concurrency=settings.concurrency,
            queues=self._queues,
            per_queue=dict(settings.queue_concurrency),
            room=room,
        )
        pace = settings.pace()
        self._waking = Waking(
            poll=settings.poll.total_seconds(), lock_timeout=pace.lock_timeout, heartbeat=pace.heartbeat, rng=rng
        )
        self._beater = self._make_beater(pace)
        self._recorder = step_recorder(store, worker=self.id, clock=clock, emit=emit)
        self._executor = self._make_executor(state, enqueuer)
        self.awaited = self._executor.awaited = Awaited(store, clock)
        self._poller = self._make_poller()
        self._places.on_vacated, self._places.on_freed = self._poller.vacated, self._poller.freed
        self._places.on_offered, self._places.on_short = self._poller.offered, self._poller.wake
        self._maintenance = self._make_maintenance(maintenance)
        self._polling = LoopHost(self._poller)
        self._settling = LoopHost(self._executor.settler)
        self._recording = LoopHost(self._recorder)
        self._beating = beater_host(self._beater)
        self._others: list[Host] = [] if self._maintenance is None else [LoopHost(self._maintenance)]
        """Services that are stopped first: maintenance, and declarations that could not be written at the start."""

    def _make_beater(self, pace: Pace) -> Beater:
        return Beater(
            self.store.dedicated(timeout=timedelta(seconds=pace.beat_timeout)),
            worker=self.id,
            pace=pace,
            alive_for=self._waking.promise,
            clock=self._clock,
            emit=self._emit_soon,
            abandon=self._abandon,
            cancel=self._stop_cancelled,
        )

    def _make_executor(self, state: Any, enqueuer: Enqueuer | None) -> Executor:
        transactions = Transactions(
            self.store,
            worker=self.id,
            beater=self._beater,
            clock=self._clock,
            result_limit=self._limits.result,
            here=self._here,
        )
        services = ContextServices(
            self.store,
            transactions,
            Children(self.store, enqueuer, worker=self.id, here=self._here),
            self._make_durable,
            worker=self.id,
            state=state,
            clock=self._clock,
            keys=KeyHash() if enqueuer is None else enqueuer.access.keys,
        )
        return Executor(
            self.store,
            worker=self.id,
            places=self._places,
            beater=self._beater,
            bodies=Bodies(services, self._pool),
            clock=self._clock,
            rng=self._rng,
            emit=self._emit,
            wanted=self._wanted,
            limits=self._limits,
        )

    def _make_durable(self, run: Run) -> Durable:
        durable = Durable(
            run, self.store, self._record_steps, clock=self._clock, rng=self._rng, value_limit=self._limits.result
        )
        durable.changed = partial(self._executor.report_changed_step, run)
        durable.journal.recorded = partial(self._executor.report_steps, run)
        run.on_enqueue = partial(self._executor.report_enqueue, run)
        return durable

    def _record_steps(self, recording: Recording, answered: Callable[[bool], None]) -> None:
        self._recorder.settle([Waiting(recording, None, answered)])

    def _make_poller(self) -> Poller:
        return Poller(
            self.store,
            worker=self.id,
            registry=self._registry,
            places=self._places,
            beater=self._beater,
            waking=self._waking,
            lock_timeout=self._settings.lock_timeout,
            pace_of=lru_cache(maxsize=64)(self._find_pace),
            dispatch=self._executor.start,
            clock=self._clock,
            rng=self._rng,
            emit=self._emit,
            wanted=self._wanted,
            keeps_arguments=self._keeps_arguments,
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

    # Start and stop

    async def start(self) -> None:
        """Open the store, declare the schedules, register the worker, and begin to claim."""
        self._loop = asyncio.get_running_loop()
        self._executor.open()
        for task in self._registry:
            if task.options.lock_timeout is not None:
                self._settings.pace(task.options.lock_timeout)
        try:
            await self._register()
        except BaseException:
            await self.store.close()
            raise
        for host in (self._beating, self._settling, self._recording, self._polling, *self._others):
            await host.start()
        self.started = True
        names = self._registry.names()
        self._emit(
            events.WorkerStarted(
                worker=self.id, queues=list(self._queues), tasks=names, concurrency=self._settings.concurrency
            )
        )

    async def _register(self) -> None:
        await (self.store.open() if self._here is None else open_as_shard(self.store, self._here.number))
        declared = await self._declare()
        if declared.waits or declared.blocking:
            self._others.append(LoopHost(Redeclaring(self._declare)))
        for event in declared.problems(worker=self.id, app_version=self._app_version):
            self._emit(event)
        await self.store.register_worker(self._record())
        lease = None if self._maintenance is None else self._maintenance.hint
        self._waking.signals = await self._listening.enter_async_context(
            self.store.listen(
                self._poller.signalled,
                lease=lease,
                lost=self._listener_lost,
                cancelled=self._beater.may_be_cancelled,
                awaited=self.awaited.wanted,
            )
        )
        if self._maintenance is not None:
            self._maintenance.watches = self._waking.signals

    def _listener_lost(self, reason: str) -> None:
        self._emit(events.ListenerLost(worker=self.id, reason=reason))

    async def _declare(self) -> Declaration:
        written = await declare_limits(self.store, self._registry.limit_rules(self._app_version))
        declared = await declare(
            self.store,
            self._schedules,
            self._registry,
            worker=self.id,
            run_of=lambda job_id: self._places.run_of(job_id, self._clock.monotonic()),
            app_version=self._app_version,
        )
        return declared if written else declared._replace(waits=True)

    def serve(self, results: Results) -> None:
        """Report jobs that have ended here to callers in this process: they need no signal."""
        self.awaited.results = results

    async def stop(self, *, grace: timedelta | None = None, unused: Unused | None = None) -> None:
        """Claim no more, let bodies finish within the grace, stop the rest, release their claims, and close.

        `unused` is awaited before the store is closed.
        """
        grace = self._settings.shutdown_grace if grace is None else grace
        try:
            await self._withdraw(grace)
            await self._shut_down(grace, unused)
        except BaseException:
            self._cut_off(unused)
            raise

    async def _withdraw(self, grace: timedelta) -> None:
        """Stop claiming, and leave the maintenance to another worker."""
        self._poller.finish()  # first: nothing more is claimed, however long the rest takes
        self._emit(events.WorkerStopping(worker=self.id, running=self.running, grace=grace.total_seconds()))
        for host in self._others:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(MAINTENANCE_PATIENCE):
                    await host.stop()

    async def _shut_down(self, grace: timedelta, unused: Unused | None) -> None:
        """Wait for the last claim and for the bodies, and close.

        After a cancellation it can be called again.
        """
        await self._listening.aclose()
        await self._polling.ended()  # if cancelled here, a claim may be unanswered: its runs are released
        await self._finish_bodies(grace)
        await asyncio.shield(self._recording.stop())
        await asyncio.shield(self._settling.stop())  # if cancelled here, the last outcomes are still written
        self._executor.close()  # runs that the last answer refused
        await self._beating.stop()
        self._pool.close()
        with contextlib.suppress(ReltaskError, TimeoutError):
            async with asyncio.timeout(GOODBYE):
                await self.store.stop_worker(self.id)
                await self.store.signal()  # the other workers look, and learn due times that only this one knew
        if unused is not None:
            await unused()
        await self.store.close()
        self._emit(events.WorkerStopped(worker=self.id, unsettled=self.running))

    def _cut_off(self, unused: Unused | None) -> None:
        """This stop was cancelled: ask all bodies to end, and renew no claim, so that the locks expire.

        The beater has its own thread, and would renew them for as long as the process lives. The
        rest of the stop continues as a task, without a grace, for as long as the loop runs.
        """
        for host in (self._beating, self._polling, *self._others):
            host.service.finish()
        self._executor.begin_no_more()
        self._shutting_down = self._loop.create_task(self._shut_down(timedelta(0), unused))

    async def drained(self) -> None:
        """Wait until nothing is due and nothing runs: for `worker --once`."""
        while not self.is_drained:
            if self.running == 0:
                self._poller.make_sure()
            self._places.freed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await self._places.freed.wait()

    @property
    def is_drained(self) -> bool:
        """Whether the last look found nothing, and nothing runs."""
        return self._poller.idle and self.running == 0

    def retire(self) -> None:
        """It could not be started: its shard shares the places no more."""
        self._places.leave()

    def hurry(self) -> None:
        """End the grace of a stop, now or when it comes: stop the bodies at once."""
        self._hurried.set()

    def wake(self, job_ids: Collection[UUID] = ()) -> None:  # noqa: ARG002 - of one database all jobs are one's own
        """Look for work now: for these jobs, or any if none is named. From any thread."""
        self._poller.wake()

    def may_be_cancelled(self, job_ids: Collection[UUID]) -> None:
        """These jobs are cancelled: stop them, if they run here. From any thread."""
        self._beater.may_be_cancelled(job_ids)

    async def _finish_bodies(self, grace: timedelta) -> None:
        """Wait for the bodies; stop those that outlast the grace, and wait for their own stop grace."""
        waits = [self._loop.create_task(self._hurried.wait()), self._loop.create_task(self._places.emptied())]
        try:
            await asyncio.wait(waits, timeout=grace.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._executor.stop_bodies(self._places)
        longest = max((run.pace.stop_grace for run in self._places), default=0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest + 2.0):
                await self._places.emptied()
        self._executor.close()

    def _abandon(self, abandons: Sequence[Abandon]) -> None:
        """Stop bodies whose claims can no longer be trusted. Called on the beater's thread.

        All are stopped before the first event is emitted.
        """
        found = [(run, abandon) for abandon in abandons if (run := self._places.get(abandon.hold)) is not None]
        for run, abandon in found:
            run.starved = abandon.starved
            run.stop(StopReason.LOST if abandon.lost else StopReason.ABANDONED, abandon.reason)
        for run, abandon in found:
            claim = run.claim
            self._emit_soon(
                events.RunAbandoned(
                    worker=self.id,
                    task=claim.task,
                    job_id=claim.job_id,
                    slot_no=claim.slot_no,
                    fence=claim.fence,
                    reason=abandon.reason,
                )
            )

    def _stop_cancelled(self, stops: Sequence[StopCancelled]) -> None:
        """Stop bodies whose slots are cancelled. Called on the beater's thread."""
        for stop in stops:
            run = self._places.get(stop.hold)
            if run is not None:
                run.stop(StopReason.CANCELLED, BY_REQUEST)

    def _find_pace(self, lock_timeout: timedelta) -> Pace:
        """The pace for a row's lock timeout, with its own heartbeat if this worker's does not fit."""
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
            queues=sorted(self._queues),  # as its peers write them: their rows are compared
            tasks=self._registry.names(),
            concurrency=self._settings.concurrency,
            alive_for=self._waking.promise(),
        )
