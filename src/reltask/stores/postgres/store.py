"""The store on PostgreSQL: one statement per verb, sent on a connection of its own.

    await store.fail_jobs(…)  ──►  values → columns  ──►  policy: retry, breaker  ──►  sql/fail_jobs.sql
                              ◄──  rows → values     ◄──  reltask's errors        ◄──  rows, or a driver's error

Each statement is its own transaction in READ COMMITTED. `verbs.py` says what may be sent again after a lost answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from reltask.errors import ConflictError, ReltaskError, TransientError
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
from reltask.model.schema_name import split_schema
from reltask.model.views import JobEnd, JobView, RunView, StatusView, WorkerView
from reltask.resilience import AskOnce, Policy
from reltask.stores.borrowed import recognise
from reltask.stores.postgres import values
from reltask.stores.postgres.audit import AuditVerbs
from reltask.stores.postgres.borrowed import BorrowedPostgres
from reltask.stores.postgres.cancel import CancelVerbs
from reltask.stores.postgres.connections import SERVER_SHARE, Connections, PostgresOptions, Signals
from reltask.stores.postgres.control import ControlVerbs
from reltask.stores.postgres.durable import DurableVerbs, WithHold
from reltask.stores.postgres.errors import PATIENCE, SKIP_FOR, EndedBefore, RowLocked, quotable, statement_failed
from reltask.stores.postgres.keys import UniqueVerbs
from reltask.stores.postgres.limits import LimitVerbs
from reltask.stores.postgres.maintenance import MaintenanceVerbs
from reltask.stores.postgres.schema import check
from reltask.stores.postgres.screens import ScreenVerbs
from reltask.stores.postgres.transaction import PostgresTransaction, transaction
from reltask.stores.settling import one_by_one, row_by_row
from reltask.stores.statement import load
from reltask.stores.store import BATCH
from reltask.stores.verbs import VERBS, WAITING
from reltask.stores.waking import Cancelled, Ids, LeaseWake, Lost, News, Wake

S = TypeVar("S", bound=WithHold)
T = TypeVar("T")
Rows = list[Any]


class PostgresStore(
    AuditVerbs, MaintenanceVerbs, DurableVerbs, LimitVerbs, ControlVerbs, CancelVerbs, UniqueVerbs, ScreenVerbs
):
    """Jobs, runs, steps, signals, limits, workers, leases, pauses and metrics in a schema of PostgreSQL."""

    bulk = 2_500

    def __init__(
        self,
        url: str,
        *,
        options: PostgresOptions | None = None,
        policy: Policy | None = None,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        """`now` replaces the database's clock in tests; `policy` retries; None: send once."""
        super().__init__()
        self._url = url
        self._options = options or PostgresOptions()
        self._longest = timedelta(seconds=self._options.command_timeout * SERVER_SHARE)
        self._policy = policy or AskOnce()
        self._now = now
        self._schema = split_schema(url)[1]
        self._connections = Connections(url, self._options)
        self._tasks_connections = Connections(url, self._options, plain=True)
        self._listening = self._connections
        if self._options.signals_url is not None:
            direct = msgspec.structs.replace(self._options, pool_size=1)
            self._listening = Connections(self._options.signals_url, direct, schema=self._schema)
        self._signals = Signals(self._send_signal)
        self._skip_until = 0.0

    async def open(self) -> None:
        check((await self._ask("read_schema"))[0])

    async def close(self) -> None:
        async with AsyncExitStack() as closing:  # closes all of them, even after a cancellation
            closing.push_async_callback(self._tasks_connections.close)
            closing.push_async_callback(self._connections.close)
            closing.push_async_callback(self._listening.close)
            await self._signals.close()

    def dedicated(self, *, timeout: timedelta, inline: bool = True) -> PostgresStore:  # noqa: ARG002 - it never blocks
        seconds = timeout.total_seconds()
        options = msgspec.structs.replace(
            self._options, connect_timeout=seconds, command_timeout=seconds, call_timeout=seconds, pool_size=1
        )
        return PostgresStore(self._url, options=options, now=self._now)

    # Producing

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        if not jobs:
            return set()
        if again:
            return await self._call("enqueue_jobs", lambda: self._insert_again(jobs))
        if len(jobs) >= values.WORTH_COPYING and values.can_be_copied(jobs):
            return await self._call("enqueue_jobs", lambda: self._copy(jobs))
        verb, columns = values.enqueueing(jobs)
        rows = await self._call("enqueue_jobs", lambda: self._send(verb, columns, writes=True))
        return {job_id for job_id, inserted in rows if inserted}

    async def _copy(self, jobs: Sequence[NewJob]) -> set[UUID]:
        """Insert by COPY, at half the cost.

        COPY cannot skip known ids: then it is rolled back, and INSERT is used.

        The commit is not sent before the copy is answered. So a copy that arrives late, after a
        second attempt, ends with its connection; and a second attempt that meets an uncommitted
        copy waits for its commit.
        """
        try:
            async with transaction(self._connections, timeout=self._longest, now=self._now) as copying:
                await copying.copy_jobs(jobs)
        except ConflictError:
            return {job_id for job_id, inserted in await self._insert_and_look(jobs) if inserted}
        return {job.id for job in jobs}

    async def _insert_again(self, jobs: Sequence[NewJob]) -> set[UUID]:
        """Insert missing jobs. Jobs that the earlier attempt has inserted count as well."""
        return {job_id for job_id, _ in await self._insert_and_look(jobs)}

    async def _insert_and_look(self, jobs: Sequence[NewJob]) -> Rows:
        """The known jobs and the new ones.

        Jobs of an earlier attempt may appear meanwhile, or end.
        """
        verb, columns = values.inserting(jobs), values.new_jobs(jobs)
        try:
            async with self.transaction(timeout=self._longest) as resent:
                inserted = dict(await resent.verb(verb, **columns))
                if len(inserted) < len(jobs):  # neither inserted nor known: its key is taken, or it waited for a commit
                    inserted = dict(await resent.verb(verb, **columns)) | inserted
        except EndedBefore as error:
            raise TransientError("enqueue_jobs: a job of the first sending has just ended; rolled back.") from error
        return list(inserted.items())

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self._ask("read_keys", **values.names(names)))

    async def read_declared(self, names: Sequence[tuple[str, str | None]]) -> list[Declared]:
        return [values.declared(row) for row in await self._ask("read_declared", **values.names(names))]

    async def declare_job(
        self, job: NewJob, *, seen: Declared, worker: str | None = None, fence: int | None = None
    ) -> bool:
        columns = {**values.new_job(job), "worker": worker, "fence": fence}
        columns |= {"seen": seen.declaration, "seen_time": seen.next_run_time}
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
        columns = {**values.holds(holds), "worker": worker, "alive_for": alive_for}
        columns |= {"tokens": list(tokens), "pending": list(pending)}
        rows = await self._ask("heartbeat_jobs", **columns)
        return BeatAnswer(
            renewed=frozenset(Hold(job_id, fence) for job_id, fence, stray, _ in rows if not stray),
            strays=[Hold(job_id, fence) for job_id, fence, stray, _ in rows if stray],
            cancelled=frozenset(Hold(job_id, fence) for job_id, fence, _, cancelled in rows if cancelled),
        )

    async def read_holds(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        rows = await self._ask("read_holds", worker=worker, **values.holds(holds))
        return {Hold(job_id, fence) for job_id, fence in rows}

    async def complete_jobs(
        self, worker: str, completions: Sequence[Completion], *, wait: bool = False
    ) -> list[Settled]:
        if wait or [c for c in completions if c.has_parent or c.next_run_time is not None]:
            return await self._settle("complete_jobs", worker, completions, values.completions, wait=wait)
        try:
            return await self._complete_one_offs(worker, completions) if completions else []
        except ConflictError:
            return await one_by_one(completions, lambda some: self._complete_one_offs(worker, some))

    async def _complete_one_offs(self, worker: str, completions: Sequence[Completion]) -> list[Settled]:
        """Send the cheaper statement, which cannot skip locked rows; if it meets one, the statement that can.

        For a while after that, the second one is sent at once.
        """
        verb = "complete_limited" if any(end.has_limits for end in completions) else "complete_one_offs"
        columns = {**values.completions(completions), "worker": worker, "patience": PATIENCE}
        loop = asyncio.get_running_loop()

        async def send() -> list[Settled]:
            if loop.time() >= self._skip_until:
                try:
                    rows = await self._send(verb, columns, writes=True)
                    return values.settled_one_offs(completions, rows)
                except RowLocked:
                    self._skip_until = loop.time() + SKIP_FOR
            return values.settled(await self._send("complete_jobs", columns, writes=True))

        return await self._call("complete_one_offs", send)

    async def fail_jobs(self, worker: str, failures: Sequence[Failure], *, wait: bool = False) -> list[Settled]:
        return await self._settle("fail_jobs", worker, failures, values.failures, wait=wait)

    async def release_jobs(self, worker: str, releases: Sequence[Release], *, wait: bool = False) -> list[Settled]:
        return await self._settle("release_jobs", worker, releases, values.releases, wait=wait)

    async def reclaim_jobs(self, *, limit: int = BATCH) -> list[Reclaimed]:
        return [values.reclaimed(row) for row in await self._ask("reclaim_jobs", limit=limit)]

    async def read_overdue(self, *, since: timedelta) -> Overdue:
        return values.overdue((await self._ask("read_overdue", since=since))[0])

    async def read_outcomes(self, holds: Sequence[Hold]) -> dict[Hold, Outcome]:
        rows = await self._ask("read_outcomes", **values.holds(holds))
        return {Hold(job_id, fence): Outcome(outcome) for job_id, fence, outcome in rows}

    async def record_progress(self, worker: str, hold: Hold, progress: str) -> bool:
        columns = {"worker": worker, "id": hold.job_id, "fence": hold.fence, "progress": progress}
        return bool(await self._ask("record_progress", **columns))

    def transaction(self, *, timeout: timedelta) -> AbstractAsyncContextManager[PostgresTransaction]:
        return transaction(self._tasks_connections, timeout=timeout, now=self._now)

    def borrow(self, connection: object) -> BorrowedPostgres:
        return BorrowedPostgres(recognise(connection, "postgres"), self._now, self._schema)

    # Workers

    async def register_worker(self, record: WorkerRecord) -> None:
        await self._ask("register_worker", **values.worker_record(record))

    async def stop_worker(self, worker: str) -> None:
        await self._ask("stop_worker", worker=worker)

    # Waking

    async def signal(self, due_at: datetime | None = None, *, wanted: int | None = None) -> None:
        await self._signals.signal(wanted if due_at is None else due_at)

    async def _send_signal(self, news: News) -> None:
        await self._ask_quietly("signal", payload=values.to_payload(news))

    def listen(
        self,
        wake: Wake,
        lease: LeaseWake | None = None,
        lost: Lost | None = None,
        *,
        cancelled: Cancelled | None = None,
        awaited: Ids | None = None,
        ended: Ids | None = None,
    ) -> AbstractAsyncContextManager[bool]:
        return self._listening.listening(wake, lease, lost, cancelled=cancelled, awaited=awaited, ended=ended)

    # Operators

    async def pause_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("pause_job", id=job_id, fence=fence))

    async def resume_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("resume_job", id=job_id, fence=fence))

    async def run_job_now(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("run_job_now", id=job_id, fence=fence))

    async def retry_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        return bool(await self._ask("retry_job", id=job_id, fence=fence))

    async def discard_job(self, job_id: UUID) -> bool:
        return bool(await self._ask("discard_job", id=job_id))

    # Reading

    async def read_now(self) -> datetime:
        (row,) = await self._ask("read_now")
        now: datetime = row["now"]
        return now

    async def read_status(self) -> StatusView:
        status = values.status_view((await self._ask("read_status"))[0])
        return msgspec.structs.replace(status, circuit=self._policy.state)

    async def read_job(self, job_id: UUID) -> JobView | None:
        rows = await self._ask("read_job", id=job_id)
        return values.job_view(rows[0]) if rows else None

    async def list_jobs(
        self, *, state: State | None = None, task: str | None = None, limit: int = 100
    ) -> list[JobView]:
        rows = await self._ask("list_jobs", state=state, task=task, limit=limit)
        return [values.job_view(row) for row in rows]

    async def list_runs(
        self, *, job_id: UUID | None = None, task: str | None = None, limit: int = 100
    ) -> list[RunView]:
        rows = await self._ask("list_runs", job_id=job_id, task=task, limit=limit)
        return [values.run_view(row) for row in rows]

    async def read_results(self, job_ids: Sequence[UUID]) -> list[JobEnd]:
        return [values.job_end(row) for row in await self._ask("read_results", ids=list(job_ids))]

    async def list_workers(self) -> list[WorkerView]:
        return [values.worker_view(row) for row in await self._ask("list_workers")]

    # Sending

    async def _ask(self, verb: str, **columns: object) -> Rows:
        """Send a verb's statement, as the table of verbs says."""
        return await self._call(verb, lambda: self._send(verb, columns, writes=VERBS[verb].writes))

    async def _ask_quietly(self, verb: str, **columns: object) -> None:
        """Send a notification. It saves time only, so a failure is no error."""
        with suppress(ReltaskError):
            await self._ask(verb, **columns)

    async def _patiently(self, verb: str, **columns: object) -> Rows | None:
        """Send a statement that waits for locked rows, but not for long. None: one stayed locked, nothing was done."""
        given = {**columns, "patience": PATIENCE}

        async def send() -> Rows | None:
            try:
                return await self._send(verb, given, writes=VERBS[verb].writes)
            except RowLocked:
                return None

        return await self._call(verb, send)

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
                return values.settled(await self._call(verb, lambda: self._wait_and_settle(verb, worker, some, given)))
            rows = await self._patiently(verb, worker=worker, **given)
            if rows is None and len(some) > 1:  # another session has locked a step or a signal of one of them
                return [settled for one in some for settled in await send([one])]
            return values.settled(rows or [])

        return await row_by_row(batch, send, ends=verb != "record_steps")

    async def _wait_and_settle(self, verb: str, worker: str, batch: Sequence[S], columns: values.Columns) -> Rows:
        """Wait for the rows first: the statement itself skips locked ones."""
        async with self.transaction(timeout=self._longest) as waiting:
            for settlement in batch:
                await waiting.guard_job(worker, settlement.hold)
            return await waiting.verb(verb, worker=worker, **columns)

    async def _send(self, verb: str, columns: values.Columns, *, writes: bool) -> Rows:
        """Send once. A failure to connect means that nothing was applied."""
        (statement,) = load("postgres", verb, "numbered", self._schema)
        given = {**columns, "now": self._now() if self._now else None}
        arguments = [given[name] for name in statement.names]
        loop = asyncio.get_running_loop()
        started = loop.time()
        limit = self._options.call_timeout
        try:
            taken = self._connections.take_to_wait() if verb in WAITING else self._connections.take()
            async with taken as connection:
                left = None if limit is None else max(0.001, limit - (loop.time() - started))
                rows: Rows = await connection.fetch(
                    statement.text,
                    *arguments,
                    timeout=self._options.command_timeout if left is None else left,
                )
                return rows
        except ReltaskError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
            raise statement_failed(error, verb=verb, writes=writes) from quotable(error)
