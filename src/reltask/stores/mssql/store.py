"""The store on SQL Server and Azure SQL: one batch per verb, sent on a connection of its own.

    await store.fail_jobs(…)  ──►  values → columns  ──►  policy: retry, breaker  ──►  sql/fail_jobs.sql
                              ◄──  rows → values     ◄──  reltask's errors        ◄──  rows, or the error it caught

Each batch is one transaction in READ COMMITTED, with or without READ_COMMITTED_SNAPSHOT. `verbs.py` says what may be
sent again after a lost answer.

SQL Server has no signals that a client could wait for. A worker looks for work at the due times
that it knows, and at every poll; it finds a job that another process enqueues within one poll
interval.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import TypeVar, cast
from uuid import UUID

import msgspec

from reltask.errors import TransientError
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
from reltask.stores.entra import Credential, Tokens
from reltask.stores.mssql import values
from reltask.stores.mssql.audit import AuditVerbs
from reltask.stores.mssql.borrowed import BorrowedMssql
from reltask.stores.mssql.cancel import CancelVerbs
from reltask.stores.mssql.connections import Connections, MssqlOptions, cause, failed, fetch
from reltask.stores.mssql.control import ControlVerbs
from reltask.stores.mssql.durable import DurableVerbs, S
from reltask.stores.mssql.keys import UniqueVerbs
from reltask.stores.mssql.limits import LimitVerbs
from reltask.stores.mssql.maintenance import MaintenanceVerbs
from reltask.stores.mssql.schema import check
from reltask.stores.mssql.screens import ScreenVerbs
from reltask.stores.mssql.transaction import MssqlTransaction, transaction
from reltask.stores.mssql.url import read_url
from reltask.stores.mssql.values import Row
from reltask.stores.settling import row_by_row
from reltask.stores.statement import load_batch
from reltask.stores.store import BATCH
from reltask.stores.verbs import VERBS, WAITING
from reltask.stores.waking import Cancelled, Ids, LeaseWake, Lost, Wake

T = TypeVar("T")


class MssqlStore(
    AuditVerbs, MaintenanceVerbs, DurableVerbs, LimitVerbs, ControlVerbs, CancelVerbs, UniqueVerbs, ScreenVerbs
):
    """Jobs, runs, steps, signals, limits, workers, leases, pauses and metrics in a schema of SQL Server."""

    bulk = BATCH

    def __init__(
        self,
        url: str,
        *,
        options: MssqlOptions | None = None,
        policy: Policy | None = None,
        now: Callable[[], datetime] | None = None,
        tokens: Tokens | None = None,
        credential: Credential | None = None,
    ) -> None:
        """`now` replaces the database's clock in tests; `policy` retries; None: send once."""
        super().__init__()
        self._url = url
        self._target = read_url(url)
        self._tokens = tokens or Tokens(credential, client_id=self._target.client_id)
        self._options = options or MssqlOptions()
        self._policy = policy or AskOnce()
        self._now = now
        self._connections = Connections(self._target, self._tokens, self._options)
        self._tasks_connections = Connections(self._target, self._tokens, self._options)

    async def open(self) -> None:
        check((await self._ask("read_schema"))[0])

    async def close(self) -> None:
        await self._connections.close()
        await self._tasks_connections.close()

    def dedicated(self, *, timeout: timedelta, inline: bool = True) -> MssqlStore:  # noqa: ARG002 - it never blocks
        """The caller waits for at most `timeout`; the driver may wait longer, which saves the connection."""
        options = msgspec.structs.replace(self._options, call_timeout=timeout.total_seconds(), pool_size=1)
        return MssqlStore(self._url, options=options, now=self._now, tokens=self._tokens)

    # Producing

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        if not jobs:
            return set()
        columns: values.Columns = {"jobs": values.new_jobs(jobs)}
        if again:
            rows = await self._call("enqueue_jobs", lambda: self._insert_again(columns))
        else:
            rows = await self._ask("enqueue_jobs", **columns)
        return {row["id"] for row in rows if row["inserted"] or again}

    async def _insert_again(self, columns: values.Columns) -> list[Row]:
        """The known jobs and the new ones.

        A job of the earlier attempt may have ended meanwhile.
        """
        async with self.transaction(timeout=timedelta(seconds=self._options.command_timeout)) as resent:
            rows = await resent.verb("enqueue_jobs", **columns)
            inserted = values.batch(str(row["id"]) for row in rows if row["inserted"])
            if await resent.verb("read_ended", ids=inserted):
                raise TransientError("enqueue_jobs: a job of the first sending has just ended; rolled back.")
        return rows

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self._ask("read_keys", names=values.names(names)))

    async def read_declared(self, names: Sequence[tuple[str, str | None]]) -> list[Declared]:
        return [values.declared(row) for row in await self._ask("read_declared", names=values.names(names))]

    async def declare_job(
        self, job: NewJob, *, seen: Declared, worker: str | None = None, fence: int | None = None
    ) -> bool:
        columns = {**values.new_job(job), "worker": worker, "fence": fence}
        columns |= {"seen": seen.declaration, "seen_time": values.moment(seen.next_run_time)}
        return bool(await self._ask("declare_job", **columns))

    # The protocol

    async def claim_jobs(self, request: ClaimRequest) -> ClaimAnswer:
        return values.claim_answer(await self._ask("claim_jobs", **values.request(request)))

    async def heartbeat_jobs(
        self,
        worker: str,
        holds: Sequence[Hold],
        *,
        alive_for: timedelta,
        tokens: Sequence[UUID] = (),
        pending: Sequence[UUID] = (),
    ) -> BeatAnswer:
        claims = {"tokens": values.batch(map(str, tokens)), "pending": values.batch(map(str, pending))}
        columns = {**claims, "holds": values.holds(holds), "worker": worker, "alive_for": values.length(alive_for)}
        return values.beat_answer(await self._ask("heartbeat_jobs", **columns))

    async def read_holds(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        rows = await self._ask("read_holds", worker=worker, holds=values.holds(holds))
        return {values.held(row) for row in rows}

    async def complete_jobs(
        self, worker: str, completions: Sequence[Completion], *, wait: bool = False
    ) -> list[Settled]:
        return await self._settle("complete_jobs", worker, completions, values.completions, wait=wait)

    async def fail_jobs(self, worker: str, failures: Sequence[Failure], *, wait: bool = False) -> list[Settled]:
        return await self._settle("fail_jobs", worker, failures, values.failures, wait=wait)

    async def release_jobs(self, worker: str, releases: Sequence[Release], *, wait: bool = False) -> list[Settled]:
        return await self._settle("release_jobs", worker, releases, values.releases, wait=wait)

    async def reclaim_jobs(self, *, limit: int = BATCH) -> list[Reclaimed]:
        return [values.reclaimed(row) for row in await self._ask("reclaim_jobs", limit=limit)]

    async def read_overdue(self, *, since: timedelta) -> Overdue:
        return values.overdue((await self._ask("read_overdue", since=values.length(since)))[0])

    async def read_outcomes(self, holds: Sequence[Hold]) -> dict[Hold, Outcome]:
        rows = await self._ask("read_outcomes", holds=values.holds(holds))
        return {values.held(row): Outcome(row["outcome"]) for row in rows}

    async def record_progress(self, worker: str, hold: Hold, progress: str) -> bool:
        columns = {**values.hold(hold), "worker": worker, "progress": progress}
        return bool(await self._ask("record_progress", **columns))

    def transaction(self, *, timeout: timedelta) -> AbstractAsyncContextManager[MssqlTransaction]:
        return transaction(self._tasks_connections, timeout=timeout, now=self._now)

    def borrow(self, connection: object) -> BorrowedMssql:
        return BorrowedMssql(recognise(connection, "mssql"), self._now, self._target.schema)

    # Workers

    async def register_worker(self, record: WorkerRecord) -> None:
        await self._ask("register_worker", **values.worker_record(record))

    async def stop_worker(self, worker: str) -> None:
        await self._ask("stop_worker", worker=worker)

    # Waking

    async def signal(self, due_at: datetime | None = None, *, wanted: int | None = None) -> None:
        """Nothing to send: SQL Server has no signals."""

    async def signal_cancel(self, job_ids: Sequence[UUID]) -> None:
        """Nothing to send: holders learn it from their next heartbeat."""

    async def signal_awaited(self, job_ids: Sequence[UUID]) -> None:
        """Nothing to send."""

    async def signal_ended(self, job_ids: Sequence[UUID]) -> None:
        """Nothing to send."""

    async def signal_lease(self, name: str) -> None:
        """Nothing to send: candidates for a lease try at intervals."""

    def listen(
        self,
        wake: Wake,  # noqa: ARG002 - there are no signals
        lease: LeaseWake | None = None,  # noqa: ARG002
        lost: Lost | None = None,  # noqa: ARG002
        *,
        cancelled: Cancelled | None = None,  # noqa: ARG002
        awaited: Ids | None = None,  # noqa: ARG002
        ended: Ids | None = None,  # noqa: ARG002
    ) -> AbstractAsyncContextManager[bool]:
        return _silence()

    # Operators

    async def pause_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("pause_job", id=str(job_id), fence=fence))

    async def resume_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("resume_job", id=str(job_id), fence=fence))

    async def run_job_now(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("run_job_now", id=str(job_id), fence=fence))

    async def retry_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("retry_job", id=str(job_id), fence=fence))

    async def discard_job(self, job_id: UUID) -> bool:
        return bool(await self._ask("discard_job", id=str(job_id)))

    # Reading

    async def read_now(self) -> datetime:
        (row,) = await self._ask("read_now")
        return cast("datetime", row["now"])

    async def read_status(self) -> StatusView:
        status = values.status_view((await self._ask("read_status"))[0])
        return msgspec.structs.replace(status, circuit=self._policy.state)

    async def read_job(self, job_id: UUID) -> JobView | None:
        rows = await self._ask("read_job", id=str(job_id))
        return values.job_view(rows[0]) if rows else None

    async def list_jobs(
        self, *, state: State | None = None, task: str | None = None, limit: int = 100
    ) -> list[JobView]:
        rows = await self._ask("list_jobs", state=state, task=task, limit=limit)
        return [values.job_view(row) for row in rows]

    async def list_runs(
        self, *, job_id: UUID | None = None, task: str | None = None, limit: int = 100
    ) -> list[RunView]:
        wanted = None if job_id is None else str(job_id)
        rows = await self._ask("list_runs", job_id=wanted, task=task, limit=limit)
        return [values.run_view(row) for row in rows]

    async def read_results(self, job_ids: Sequence[UUID]) -> list[JobEnd]:
        ids = values.batch({"id": str(job_id)} for job_id in job_ids)
        return [values.job_end(row) for row in await self._ask("read_results", ids=ids)]

    async def list_workers(self) -> list[WorkerView]:
        return [values.worker_view(row) for row in await self._ask("list_workers")]

    # Sending

    async def _ask(self, verb: str, **columns: object) -> list[Row]:
        """Send a verb's batch, as the table of verbs says."""
        return await self._call(verb, lambda: self._send(verb, columns, writes=VERBS[verb].writes))

    async def _call(self, verb: str, operation: Callable[[], Awaitable[T]]) -> T:
        how = VERBS[verb]
        return await self._policy.call(verb, operation, resend_ambiguous=how.resend_ambiguous, retry=how.retry)

    async def _settle(
        self,
        verb: str,
        worker: str,
        batch: Sequence[S],
        columns: Callable[[Sequence[S]], values.Columns],
        *,
        wait: bool,
    ) -> list[Settled]:
        async def send(some: Sequence[S]) -> list[Settled]:
            given = columns(some)
            if wait:
                rows = await self._call(verb, lambda: self._wait_and_settle(verb, worker, some, given))
            else:
                rows = await self._ask(verb, worker=worker, **given)
            return values.settled(some, rows)

        return await row_by_row(batch, send, ends=verb != "record_steps")

    async def _wait_and_settle(self, verb: str, worker: str, batch: Sequence[S], columns: values.Columns) -> list[Row]:
        """Wait for the rows first: the batch itself skips locked ones."""
        seconds = self._options.call_timeout or self._options.command_timeout
        async with self.transaction(timeout=timedelta(seconds=seconds)) as waiting:
            for settlement in batch:
                await waiting.guard_job(worker, settlement.hold)
            return await waiting.verb(verb, worker=worker, **columns)

    async def _send(self, verb: str, columns: values.Columns, *, writes: bool) -> list[Row]:
        """Send once. A failure to connect means that nothing was applied."""
        statement = load_batch("mssql", verb, "qmark", self._target.schema)
        given = {**columns, "now": values.moment(self._now()) if self._now else None}
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            taken = self._connections.take_to_wait() if verb in WAITING else self._connections.take()
            async with taken as threaded:
                patience = self._connections.patience
                if self._options.call_timeout is not None:
                    patience = max(0.001, self._options.call_timeout - (loop.time() - started))
                return await threaded.call(lambda connection: fetch(connection, statement, given), patience)
        except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
            raise failed(error, verb=verb, writes=writes) from cause(error)

    def _single(self) -> Connections:
        return Connections(self._target, self._tokens, msgspec.structs.replace(self._options, pool_size=1))


@asynccontextmanager
async def _silence() -> AsyncIterator[bool]:
    yield False
