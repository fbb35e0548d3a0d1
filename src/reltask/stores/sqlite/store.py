"""The store on SQLite.

    event loop                     the store's one thread
    ──────────                     ───────────────────────────────────────────
    await store.fail_jobs(…)  ──►  BEGIN IMMEDIATE · statements · COMMIT
                              ◄──  answer, or an error of reltask's tree

Each call of the thread is a whole transaction: the event loop never waits for the file, and no
transaction waits for the event loop. With `inline=True` there is no thread: calls run in the
caller's thread. The heartbeat's own thread and simulations in virtual time use this.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from reltask.errors import UsageError
from reltask.model.clock import Clock, SystemClock
from reltask.model.job import (
    BeatAnswer,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Declared,
    Failure,
    Hold,
    NewJob,
    Outcome,
    Overdue,
    Reclaimed,
    Release,
    Settled,
    State,
    WorkerRecord,
)
from reltask.model.views import JobEnd, JobView, RunView, StatusView, WorkerView
from reltask.resilience import AskOnce, Policy
from reltask.stores.borrowed import recognise
from reltask.stores.prune_cutoff import PruneCutoff
from reltask.stores.settling import row_by_row
from reltask.stores.sqlite import values
from reltask.stores.sqlite.audit import AuditVerbs
from reltask.stores.sqlite.borrowed import BorrowedSqlite
from reltask.stores.sqlite.cancel import CancelVerbs
from reltask.stores.sqlite.claim import claim_jobs
from reltask.stores.sqlite.connections import FileTransaction, Session, SqliteOptions
from reltask.stores.sqlite.control import ControlVerbs
from reltask.stores.sqlite.durable import DurableVerbs
from reltask.stores.sqlite.keys import UniqueVerbs
from reltask.stores.sqlite.limits import LimitVerbs
from reltask.stores.sqlite.maintenance import MaintenanceVerbs
from reltask.stores.sqlite.reclaim import Reclaimer
from reltask.stores.sqlite.schema import ensure_schema
from reltask.stores.sqlite.screens import ScreenVerbs
from reltask.stores.sqlite.transaction import SqliteTransaction, transaction
from reltask.stores.sqlite.url import MEMORY, database_path, database_schema
from reltask.stores.sqlite.watch import watching
from reltask.stores.statement import load
from reltask.stores.store import BATCH
from reltask.stores.verbs import VERBS
from reltask.stores.waking import Cancelled, Ids, LeaseWake, Lost, Wake

T = TypeVar("T")
Rows = list[Any]
THREAD_SHARE = 0.8
"""The thread's share of a caller's timeout."""


class SqliteStore(
    AuditVerbs, DurableVerbs, LimitVerbs, MaintenanceVerbs, ControlVerbs, CancelVerbs, UniqueVerbs, ScreenVerbs
):
    """Jobs, runs, steps, signals, limits, workers, leases, pauses and metrics in one SQLite file."""

    bulk = BATCH

    def __init__(
        self,
        path_or_url: str,
        *,
        options: SqliteOptions | None = None,
        policy: Policy | None = None,
        now: Callable[[], datetime] | None = None,
        inline: bool = False,
        clock: Clock | None = None,
        schema: str | None = None,
    ) -> None:
        """`schema` is the prefix of the tables' names; None: as the URL says."""
        self.path = database_path(path_or_url)
        self._schema = schema or database_schema(path_or_url)
        if self.path == MEMORY and not inline:
            raise UsageError(
                "A database in memory lives in one connection, so only an inline store can use it.",
                remedy="Name a file, or pass inline=True in a test.",
            )
        self._options = options or SqliteOptions()
        self._policy = policy or AskOnce()
        self._now = now
        self._inline = inline
        self._clock = clock or SystemClock()
        self._session = Session(self.path, self._options, now, self._schema)
        self._reclaimer = Reclaimer(self._options.confirm_stale, self._clock.monotonic)
        self._surplus = PruneCutoff(self._clock.monotonic)
        self._thread: ThreadPoolExecutor | None = None
        self._pid = os.getpid()

    async def open(self) -> None:
        """Also create missing tables: a file has no administrator."""
        await self._call("open", lambda: ensure_schema(self._session))

    async def close(self) -> None:
        await self._hop(self._session.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def dedicated(self, *, timeout: timedelta, inline: bool = True) -> SqliteStore:
        # A caller that does not block may stop waiting at its timeout: by then the thread has ended its try.
        options = msgspec.structs.replace(self._options, command_timeout=timeout if inline else timeout * THREAD_SHARE)
        other = SqliteStore(
            self.path, options=options, now=self._now, inline=inline, clock=self._clock, schema=self._schema
        )
        if self.path == MEMORY:
            other._session = self._session  # a database in memory lives in one connection
        return other

    # Producing

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        (rows,) = await self._write("enqueue_jobs", jobs=values.batch(map(values.job_row, jobs)))
        inserted = {UUID(row["id"]) for row in rows}
        return inserted | {job.id for job in jobs if again and await self._knows(job.id)}

    async def _knows(self, job_id: UUID) -> bool:
        return await self.read_job(job_id) is not None or bool(await self.list_runs(job_id=job_id, limit=1))

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        (rows,) = await self._read("read_keys", names=values.batch(names))
        return values.keys(rows)

    async def read_declared(self, names: Sequence[tuple[str, str | None]]) -> list[Declared]:
        (rows,) = await self._read("read_declared", names=values.batch(names))
        return [values.declared(row) for row in rows]

    async def declare_job(
        self, job: NewJob, *, seen: Declared, worker: str | None = None, fence: int | None = None
    ) -> bool:
        columns = {**values.job_row(job), "worker": worker, "fence": fence}
        columns |= {"seen": seen.declaration, "seen_time": values.micros(seen.next_run_time)}
        return await self._wins("declare_job", **columns)

    # The protocol

    async def claim_jobs(self, request: ClaimRequest) -> ClaimAnswer:
        return await self._call("claim_jobs", lambda: claim_jobs(self._session, request))

    async def heartbeat_jobs(
        self,
        worker: str,
        holds: Sequence[Hold],
        *,
        alive_for: timedelta,
        tokens: Sequence[UUID] = (),
        pending: Sequence[UUID] = (),
    ) -> BeatAnswer:
        renewed, early, _, strays = await self._write(
            "heartbeat_jobs",
            worker=worker,
            holds=values.holds(holds),
            tokens=values.batch(map(str, tokens)),
            pending=values.batch(map(str, pending)),
            alive_for=values.length(alive_for),
        )
        return BeatAnswer(
            renewed=frozenset(map(values.hold, [*renewed, *early])),
            strays=list(map(values.hold, strays)),
            cancelled=frozenset(values.hold(row) for row in [*renewed, *early] if row["cancelled"]),
        )

    async def read_holds(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        (rows,) = await self._read("read_holds", worker=worker, holds=values.holds(holds))
        return set(map(values.hold, rows))

    async def complete_jobs(
        self,
        worker: str,
        completions: Sequence[Completion],
        *,
        wait: bool = False,  # noqa: ARG002 - no rows are locked
    ) -> list[Settled]:
        rows = [values.completion_row(completion) for completion in completions]
        accepted = await self._settle("complete_jobs", worker, "completions", rows, answer=0)
        return [Settled(values.hold(row)) for row in accepted]

    async def fail_jobs(
        self,
        worker: str,
        failures: Sequence[Failure],
        *,
        wait: bool = False,  # noqa: ARG002 - as above
    ) -> list[Settled]:
        rows = [values.failure_row(failure) for failure in failures]
        return [values.settled(row) for row in await self._settle("fail_jobs", worker, "failures", rows, answer=1)]

    async def release_jobs(
        self,
        worker: str,
        releases: Sequence[Release],
        *,
        wait: bool = False,  # noqa: ARG002 - as above
    ) -> list[Settled]:
        rows = [values.release_row(release) for release in releases]
        return [values.settled(row) for row in await self._settle("release_jobs", worker, "releases", rows, answer=1)]

    async def reclaim_jobs(self, *, limit: int = BATCH) -> list[Reclaimed]:
        return await self._call("reclaim_jobs", lambda: self._reclaimer.reclaim_jobs(self._session, limit))

    async def read_overdue(self, *, since: timedelta) -> Overdue:
        (rows,) = await self._read("read_overdue", since=values.length(since))
        return values.overdue(rows[0])

    async def read_outcomes(self, holds: Sequence[Hold]) -> dict[Hold, Outcome]:
        (rows,) = await self._read("read_outcomes", holds=values.holds(holds))
        return {values.hold(row): Outcome(row["outcome"]) for row in rows}

    async def record_progress(self, worker: str, hold: Hold, progress: str) -> bool:
        return await self._wins(
            "record_progress", worker=worker, job_id=str(hold.job_id), fence=hold.fence, progress=progress
        )

    def transaction(self, *, timeout: timedelta) -> AbstractAsyncContextManager[SqliteTransaction]:
        options = msgspec.structs.replace(self._options, command_timeout=timeout)
        return transaction(Session(self.path, options, self._now, self._schema), inline=self._inline)

    def borrow(self, connection: object) -> BorrowedSqlite:
        return BorrowedSqlite(recognise(connection, "sqlite"), self._now, self._schema)

    # Workers

    async def register_worker(self, record: WorkerRecord) -> None:
        await self._write("register_worker", **values.worker_row(record))

    async def stop_worker(self, worker: str) -> None:
        await self._write("stop_worker", worker=worker)

    # Waking

    async def signal(self, due_at: datetime | None = None, *, wanted: int | None = None) -> None:
        """Nothing to send: listeners watch the file itself."""

    async def signal_cancel(self, job_ids: Sequence[UUID]) -> None:
        """Nothing to send: holders watch the file itself."""

    async def signal_awaited(self, job_ids: Sequence[UUID]) -> None:
        """Nothing to send."""

    async def signal_ended(self, job_ids: Sequence[UUID]) -> None:
        """Nothing to send."""

    async def signal_lease(self, name: str) -> None:
        """Nothing to send: candidates watch the file itself."""

    def listen(
        self,
        wake: Wake,
        lease: LeaseWake | None = None,
        lost: Lost | None = None,  # noqa: ARG002 - a file is not lost
        *,
        cancelled: Cancelled | None = None,
        awaited: Ids | None = None,  # noqa: ARG002 - no signal says it
        ended: Ids | None = None,
    ) -> AbstractAsyncContextManager[bool]:
        if self._options.watch is None or self.path == MEMORY:
            return _unwatched()

        def changed() -> None:
            wake(None)
            if lease is not None:
                lease(None)
            if cancelled is not None:
                cancelled([])
            if ended is not None:
                ended([])

        interval = self._options.watch.total_seconds()
        return watching(self.path, changed, interval=interval, sleep=self._clock.sleep)

    # Operators

    async def pause_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return await self._wins("pause_job", job_id=str(job_id), fence=fence)

    async def resume_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return await self._wins("resume_job", job_id=str(job_id), fence=fence)

    async def run_job_now(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return await self._wins("run_job_now", job_id=str(job_id), fence=fence)

    async def retry_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return await self._wins("retry_job", job_id=str(job_id), fence=fence)

    async def discard_job(self, job_id: UUID) -> bool:
        return await self._wins("discard_job", job_id=str(job_id))

    # Reading

    async def read_now(self) -> datetime:
        return await self._call("read_now", lambda: self._session.read(lambda tx: values.moment(tx.now)))

    async def read_status(self) -> StatusView:
        (counts,), unknown = await self._read("read_status")
        status = values.status_view(counts, unknown)
        return msgspec.structs.replace(status, circuit=self._policy.state)

    async def read_job(self, job_id: UUID) -> JobView | None:
        (rows,) = await self._read("read_job", job_id=str(job_id))
        return values.job_view(rows[0]) if rows else None

    async def list_jobs(
        self, *, state: State | None = None, task: str | None = None, limit: int = 100
    ) -> list[JobView]:
        (rows,) = await self._read("list_jobs", state=state, task=task, limit=limit)
        return [values.job_view(row) for row in rows]

    async def list_runs(
        self, *, job_id: UUID | None = None, task: str | None = None, limit: int = 100
    ) -> list[RunView]:
        of_one, of_all = load("sqlite", "list_runs", "named", self._schema)
        statement, wanted = (of_all, None) if job_id is None else (of_one, str(job_id))

        def work(transaction: FileTransaction) -> Rows:
            return transaction.run(statement, job_id=wanted, task=task, limit=limit)

        return [values.run_view(row) for row in await self._call("list_runs", lambda: self._session.read(work))]

    async def read_results(self, job_ids: Sequence[UUID]) -> list[JobEnd]:
        (rows,) = await self._read("read_results", ids=values.batch(map(str, job_ids)))
        return [values.job_end(row) for row in rows]

    async def list_workers(self) -> list[WorkerView]:
        (rows,) = await self._read("list_workers")
        return [values.worker_view(row) for row in rows]

    # Running verbs

    async def _settle(self, verb: str, worker: str, name: str, rows: Rows, *, answer: int) -> Rows:
        async def settle(some: Sequence[Any]) -> Rows:
            return (await self._write(verb, worker=worker, **{name: values.batch(some)}))[answer]

        return await row_by_row(rows, settle, ends=verb != "record_steps")

    async def _wins(self, verb: str, **parameters: object) -> bool:
        return bool((await self._write(verb, **parameters))[-1])

    async def _read(self, verb: str, **parameters: object) -> list[Rows]:
        return await self._call(verb, lambda: self._session.read(lambda tx: tx.verb(verb, **parameters)))

    async def _write(self, verb: str, **parameters: object) -> list[Rows]:
        return await self._call(verb, lambda: self._session.write(lambda tx: tx.verb(verb, **parameters)))

    async def _call(self, verb: str, work: Callable[[], T]) -> T:
        how = VERBS[verb]
        return await self._policy.call(
            verb, lambda: self._hop(work), resend_ambiguous=how.resend_ambiguous, retry=how.retry
        )

    def _hop(self, work: Callable[[], T]) -> Awaitable[T]:
        return _here(work) if self._inline else asyncio.get_running_loop().run_in_executor(self._own_thread(), work)

    def _own_thread(self) -> ThreadPoolExecutor:
        if self._thread is None or self._pid != os.getpid():  # a forked child has its parent's memory, not its threads
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="reltask-sqlite")
            self._pid = os.getpid()
        return self._thread


async def _here(work: Callable[[], T]) -> T:
    return work()


@asynccontextmanager
async def _unwatched() -> AsyncIterator[bool]:
    """No other process writes, or none is to be noticed before the poll."""
    yield True
