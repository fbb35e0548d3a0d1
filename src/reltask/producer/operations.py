"""Operating a running system from Python: reads, audits, and actions on jobs and leases."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any
from uuid import UUID

from reltask.errors import UsageError
from reltask.model.audit import DEFAULT_LOCK_TIMEOUT, Report
from reltask.model.doctor import Facts
from reltask.model.duration import Duration, parse_duration
from reltask.model.job import State
from reltask.model.lease import Term
from reltask.model.metrics import TaskStats, sum_up
from reltask.model.overview import Overview
from reltask.model.preview import ScheduleView, view_schedule
from reltask.model.views import JobView, LeaseView, RunView, ShardView, StatusView, WorkerView
from reltask.producer.audit import Watcher, audit
from reltask.producer.client import Client
from reltask.producer.enqueue import Enqueuer
from reltask.producer.job import Job
from reltask.producer.limits import LimitOperations
from reltask.producer.portal import Operation
from reltask.stores.screens import PAGE
from reltask.stores.store import Store

AUDIT_TIMEOUT = "10m"


class Operations(LimitOperations):
    """Reads and operations: each as a coroutine and, with the suffix `_sync`, for synchronous code."""

    _client: Client
    _enqueuer: Enqueuer

    def status(self) -> Coroutine[Any, Any, StatusView]:
        """Counts of everything."""
        return self._client.run(lambda store: store.read_status(), name="status")

    def status_sync(self) -> StatusView:
        """`status` for synchronous code."""
        return self._client.run_sync(lambda store: store.read_status(), name="status")

    def overview(self) -> Coroutine[Any, Any, Overview]:
        """Jobs by queue and task, the fleet, leases, and the runs of the last hour: what the dashboard shows.

        Counting stops at 10 000, so it costs the same however many jobs there are.
        """
        return self._client.run(lambda store: store.read_overview(), name="overview")

    def overview_sync(self) -> Overview:
        """`overview` for synchronous code."""
        return self._client.run_sync(lambda store: store.read_overview(), name="overview")

    def jobs(
        self, *, state: State | None = None, task: str | None = None, limit: int = 100
    ) -> Coroutine[Any, Any, list[JobView]]:
        """Jobs by due time; `state=State.DEAD` lists the dead letters."""
        return self._client.run(lambda store: store.list_jobs(state=state, task=task, limit=limit), name="jobs")

    def jobs_sync(self, *, state: State | None = None, task: str | None = None, limit: int = 100) -> list[JobView]:
        """`jobs` for synchronous code."""
        return self._client.run_sync(lambda store: store.list_jobs(state=state, task=task, limit=limit), name="jobs")

    def schedules(self, *, task: str | None = None, limit: int = 100) -> Coroutine[Any, Any, list[ScheduleView]]:
        """Recurring jobs by task and key, each with its next fires; `app.job(view.id)` acts on one."""
        return self._client.run(lambda store: _schedules(store, task, limit), name="schedules")

    def schedules_sync(self, *, task: str | None = None, limit: int = 100) -> list[ScheduleView]:
        """`schedules` for synchronous code."""
        return self._client.run_sync(lambda store: _schedules(store, task, limit), name="schedules")

    def job(self, job_id: UUID) -> Job[Any]:
        """The handle of the job with this id. Nothing is read until the handle is used."""
        return self._enqueuer.access.job(job_id)

    def runs(
        self, *, job_id: UUID | None = None, task: str | None = None, limit: int = 100
    ) -> Coroutine[Any, Any, list[RunView]]:
        """Runs that have ended, newest first."""
        return self._client.run(lambda store: self._runs(store, job_id, task, limit), name="runs")

    def runs_sync(self, *, job_id: UUID | None = None, task: str | None = None, limit: int = 100) -> list[RunView]:
        """`runs` for synchronous code."""
        return self._client.run_sync(lambda store: self._runs(store, job_id, task, limit), name="runs")

    async def _runs(self, store: Store, job_id: UUID | None, task: str | None, limit: int) -> list[RunView]:
        runs = await store.list_runs(job_id=job_id, task=task, limit=limit)
        return self._enqueuer.access.shown.runs(runs)

    def workers(self) -> Coroutine[Any, Any, list[WorkerView]]:
        """The workers that this database has seen, living ones first."""
        return self._client.run(lambda store: store.list_workers(), name="workers")

    def workers_sync(self) -> list[WorkerView]:
        """`workers` for synchronous code."""
        return self._client.run_sync(lambda store: store.list_workers(), name="workers")

    def leases(self) -> Coroutine[Any, Any, list[LeaseView]]:
        """Who holds which lease."""
        return self._client.run(lambda store: store.list_leases(), name="leases")

    def leases_sync(self) -> list[LeaseView]:
        """`leases` for synchronous code."""
        return self._client.run_sync(lambda store: store.list_leases(), name="leases")

    def release_lease(self, term: Term) -> Coroutine[Any, Any, bool]:
        """Take a lease away from its holder, if its term is still this one; say whether it was."""
        return self._client.run(lambda store: _release(store, term), name="release_lease")

    def release_lease_sync(self, term: Term) -> bool:
        """`release_lease` for synchronous code."""
        return self._client.run_sync(lambda store: _release(store, term), name="release_lease")

    def stats(
        self, *, since: timedelta = timedelta(hours=1), task: str | None = None
    ) -> Coroutine[Any, Any, list[TaskStats]]:
        """Metrics of each task over the time `since`. Runs are counted once a minute."""
        return self._client.run(lambda store: _stats(store, since, task), name="stats")

    def stats_sync(self, *, since: timedelta = timedelta(hours=1), task: str | None = None) -> list[TaskStats]:
        """`stats` for synchronous code."""
        return self._client.run_sync(lambda store: _stats(store, since, task), name="stats")

    def audit(
        self,
        *,
        task: str | None = None,
        lock_timeout: timedelta = DEFAULT_LOCK_TIMEOUT,
        timeout: Duration = AUDIT_TIMEOUT,
        watch: Watcher | None = None,
    ) -> Coroutine[Any, Any, Report]:
        """Check the ledger against the jobs; `lock_timeout` is for jobs that name none of their own.

        The audit has a connection of its own, and takes at most `timeout` in all. `watch` is called from another
        thread with its progress.
        """
        limit, audit = _auditing(task, lock_timeout, timeout, watch)
        return self._client.run_long(audit, timeout=limit, name="audit")

    def audit_sync(
        self,
        *,
        task: str | None = None,
        lock_timeout: timedelta = DEFAULT_LOCK_TIMEOUT,
        timeout: Duration = AUDIT_TIMEOUT,
        watch: Watcher | None = None,
    ) -> Report:
        """`audit` for synchronous code."""
        limit, audit = _auditing(task, lock_timeout, timeout, watch)
        return self._client.run_long_sync(audit, timeout=limit, name="audit")

    def shards(self) -> Coroutine[Any, Any, list[ShardView]]:
        """The shards: whether each answers, is being drained, and how many jobs it has. Empty without shards."""
        return self._client.run(_shards, name="shards")

    def shards_sync(self) -> list[ShardView]:
        """`shards` for synchronous code."""
        return self._client.run_sync(_shards, name="shards")

    def drain_shard(self, number: int, *, draining: bool = True) -> Coroutine[Any, Any, ShardView]:
        """Let a shard get no new jobs, or with `draining=False` some again. Workers go on serving it.

        Producers notice within ten seconds. When it has no jobs left, it can be removed from `shards=`.
        """
        return self._client.run(lambda store: _drain(store, number, draining=draining), name="drain_shard")

    def drain_shard_sync(self, number: int, *, draining: bool = True) -> ShardView:
        """`drain_shard` for synchronous code."""
        return self._client.run_sync(lambda store: _drain(store, number, draining=draining), name="drain_shard")

    def examine(self, *, shard: int | None = None) -> Coroutine[Any, Any, Facts]:
        """The facts that `reltask doctor` checks, of a database in any state; of the first shard, or this one."""
        return self._client.run_apart(lambda store: _examine(store, shard), name="examine")

    def examine_sync(self, *, shard: int | None = None) -> Facts:
        """`examine` for synchronous code."""
        return self._client.run_apart_sync(lambda store: _examine(store, shard), name="examine")

    def notify(self) -> Coroutine[Any, Any, None]:
        """Wake the workers.

        Call it after you commit jobs enqueued with `connection=`, to start them at once.
        """
        return self._client.run(self._enqueuer.access.sender.signal, name="notify")

    def notify_sync(self) -> None:
        """`notify` for synchronous code."""
        self._client.run_sync(self._enqueuer.access.sender.signal, name="notify")


async def _shards(store: Any) -> list[ShardView]:
    return await store.list_shards() if hasattr(store, "list_shards") else []


async def _examine(store: Any, shard: int | None) -> Facts:
    facts: Facts = await (store.examine() if shard is None else store.examine(shard))
    return facts


async def _drain(store: Any, number: int, *, draining: bool) -> ShardView:
    if not hasattr(store, "drain"):
        raise UsageError("This app has no shards.", remedy="Name the app that has them: App(shards=…).")
    view: ShardView = await store.drain(number, draining=draining)
    return view


async def _release(store: Store, term: Term) -> bool:
    released = await store.release_lease(term)
    if released:
        await store.signal_lease(term.lease)
    return released


async def _schedules(store: Store, task: str | None, limit: int) -> list[ScheduleView]:
    """Page by page; those of one task are next to each other."""
    found: list[JobView] = []
    after = None if task is None else (task, UUID(int=0))
    while len(found) < limit:
        page = await store.list_schedules(after=after, limit=min(PAGE, limit - len(found)))
        found += [job for job in page if task in (None, job.task)]
        if not page or task not in (None, page[-1].task):
            break
        after = page[-1].task, page[-1].id
    return [view_schedule(job) for job in found]


async def _stats(store: Store, since: timedelta, task: str | None) -> list[TaskStats]:
    return sum_up(await store.list_metrics(since=since, task=task))


def _auditing(
    task: str | None, lock_timeout: timedelta, timeout: Duration, watch: Watcher | None
) -> tuple[timedelta, Operation[Report]]:
    try:
        limit = parse_duration(timeout, name="timeout")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return limit, lambda store: audit(store, task=task, lock_timeout=lock_timeout, timeout=limit, watch=watch)
