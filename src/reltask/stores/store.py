"""The store interface: what the engine needs of a database. Each verb is one transaction.

Each verb is one file `sql/<verb>.sql`, under the same name in every store. A verb is applied as a
whole or not at all, and returns what it did. It raises only `TransientError` (certainly not
applied), `ConflictError`, `AmbiguousError` (perhaps applied) or `PermanentError`.

A store belongs to one event loop. `dedicated()` makes another store with its own connection for the
heartbeat thread, without pool, circuit breaker or retry.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from reltask.errors import PermanentError, UsageError
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
from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.shards import ShardMark, check_number
from reltask.model.views import JobEnd, JobView, LeaseView, MetricView, RunView, StatusView, WorkerView
from reltask.stores.audit import AuditStore
from reltask.stores.cancel import CancelStore
from reltask.stores.control import ControlStore
from reltask.stores.durable import DurableStore, DurableTransaction
from reltask.stores.keys import UniqueStore, UniqueTransaction
from reltask.stores.limits import LimitStore
from reltask.stores.screens import ScreenStore
from reltask.stores.waking import WakingStore

BATCH = 1_000
"""The most rows that a verb takes at once; callers split. Only `enqueue_jobs` may take more: `bulk`."""


def ended_inside() -> UsageError:
    """A statement of the user's has ended the transaction of a block: it must complete nothing."""
    return UsageError(
        "The block's transaction was ended inside the block, so its writes cannot commit with the completion.",
        remedy="Do not commit or roll back inside the block: leaving it commits, an exception rolls back. "
        "To undo a part, use a savepoint.",
    )


async def open_as_shard(store: Store, number: int) -> None:
    """Open the store of a shard. An install without a number gets this one, if the login may write it."""
    await store.open()
    mark = await store.read_shard()
    if mark.number is None:
        with suppress(PermanentError):
            await store.mark_shard(number)
            mark = await store.read_shard()
    check_number(mark, number)


class Transaction(DurableTransaction, UniqueTransaction, Protocol):
    """A task's own writes, committed together with its completion or not at all.

    If a statement of the user's ends the transaction, `ended_inside` is raised: at once where that can
    be seen, and else before anything is completed.
    """

    @property
    def connection(self) -> Any:
        """The driver's own connection, inside the open transaction."""
        ...

    async def execute(self, sql: str, /, *args: object, **named: object) -> None:
        """Run a statement: values in the driver's own style by position, or `:name` style by name."""
        ...

    async def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        """Run a query and return its rows."""
        ...

    async def read_now(self) -> datetime:
        """The database's time."""
        ...

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        """As the store's verb: the jobs exist when the transaction is committed."""
        ...

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """As the store's verb."""
        ...

    async def holds_job(self, worker: str, hold: Hold) -> bool:
        """Whether the committed row shows that this worker has the claim; takes no lock."""
        ...

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        """Renew the claim and keep it until the commit, if owner and fence still match: a chunk's last statement."""
        ...

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        """End the slot if owner and fence still match: the last statement before the commit."""
        ...

    async def guard_lease(self, term: Term) -> bool:
        """Keep others from taking over this lease until the commit, if its term is still this one."""
        ...


class Borrowed(Protocol):
    """A connection that the user has opened, as reltask may use it.

    With a synchronous one the coroutines never wait: they run to completion in the caller's thread.
    """

    @property
    def is_async(self) -> bool:
        """Whether its calls are awaited."""
        ...

    async def join(self) -> Transaction:
        """The user's own open transaction: only the user commits it. Without one, UsageError."""
        ...

    def transaction(self, *, timeout: timedelta) -> AbstractAsyncContextManager[Transaction]:
        """A new transaction: committed when the block ends, rolled back when it raises."""
        ...


class LeaseStore(Protocol):
    """The verbs for leases: all that a leader needs."""

    async def acquire_lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Take a lease that is free or expired, with the next term. Idempotent per acquisition."""
        ...

    async def heartbeat_lease(self, grant: Grant, *, metadata: str | None = None) -> bool:
        """Renew a lease that has not expired and is still this grant's, and publish `metadata`, if given."""
        ...

    async def resign_lease(self, grant: Grant) -> bool:
        """Give a lease back if it is still this grant's, so that the next holder need not wait for its expiry."""
        ...

    async def signal_lease(self, name: str) -> None:
        """Notify waiting candidates that a lease was given back, as `signal` notifies workers."""
        ...


class Maintainable(Protocol):
    """The verbs of the maintenance, done by the leader or by every worker.

    With `leader`, nothing is written unless that term is still the lease's, and no other worker can
    take the lease over before the writes are committed.
    """

    async def mark_dead_workers(self, *, leader: Term | None) -> list[str]:
        """Mark workers whose next sign of life is overdue as dead; return their ids."""
        ...

    async def prune_runs(self, *, older_than: timedelta, most: int, leader: Term | None, limit: int = BATCH) -> int:
        """Remove the oldest ledger rows: beyond the age or the count, but none younger than an hour."""
        ...

    async def prune_records(self, *, workers: timedelta, metrics: timedelta, leader: Term | None) -> int:
        """Remove workers that ended, and metrics that were written, longer ago than this; a batch of each."""
        ...

    async def roll_up_runs(self, *, leader: Term | None) -> int:
        """Recount the ledger's rows of recent minutes, by minute and task; return the number of minutes written."""
        ...

    def advisory_lock(self, name: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[bool]] | None]:
        """Try for a lock that ends with its connection.

        Yields None, or a function that returns whether the connection is still alive. UsageError
        where the database has no such locks.
        """
        ...


class Store(
    LeaseStore,
    Maintainable,
    DurableStore,
    LimitStore,
    ControlStore,
    ScreenStore,
    CancelStore,
    UniqueStore,
    WakingStore,
    AuditStore,
    Protocol,
):
    """A database that holds jobs, runs, steps, signals, limits, workers, leases, pauses and metrics."""

    bulk: int
    """The most jobs that one call of `enqueue_jobs` takes."""

    async def open(self) -> None:
        """Connect, and check that the schema is the one that this version needs."""
        ...

    async def close(self) -> None:
        """Close every connection. Idempotent."""
        ...

    def dedicated(self, *, timeout: timedelta, inline: bool = True) -> Store:
        """Another store on the same database: one connection, no retries, each call at most `timeout`.

        `inline`: it may block its caller's thread, which does nothing else.
        """
        ...

    async def read_now(self) -> datetime:
        """The database's time."""
        ...

    # Producing

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        """Insert the jobs that are new, and return their ids.

        New: the id is in neither table nor ledger, and the (task, key) is free.

        `again`: the answer to an earlier call with these jobs was lost. Jobs that it has inserted
        count as inserted.
        """
        ...

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """The ids of the existing jobs with these (task, key) names."""
        ...

    async def read_declared(self, names: Sequence[tuple[str, str | None]]) -> list[Declared]:
        """Read the jobs with these (task, key) names, recurring or unique, and the database's time."""
        ...

    async def declare_job(
        self, job: NewJob, *, seen: Declared, worker: str | None = None, fence: int | None = None
    ) -> bool:
        """Rewrite a recurring job's definition if it is still as `seen` and unclaimed.

        With the `worker` and `fence` of its claim it may be claimed. Then the slot is not moved:
        that worker ends it by the new schedule.
        """
        ...

    # The protocol

    async def claim_jobs(self, request: ClaimRequest) -> ClaimAnswer:
        """Take up to `limit` due jobs that are unclaimed, not paused, not dead, and known to this worker.

        Up to `oldest` of them are those that have waited longest, whatever their priority.
        """
        ...

    async def heartbeat_jobs(
        self,
        worker: str,
        holds: Sequence[Hold],
        *,
        alive_for: timedelta,
        tokens: Sequence[UUID] = (),
        pending: Sequence[UUID] = (),
    ) -> BeatAnswer:
        """Renew these claims without ever waiting for a row, and name the rows of claims whose answer was lost.

        The rows of claims that still wait for their answer, `pending`, are renewed as well.
        """
        ...

    async def read_holds(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        """Those of these claims that this worker still has, according to the committed rows."""
        ...

    # The three settlements skip rows that another session has locked, so one such row does not delay
    # the rest. `read_holds` distinguishes a skipped row from a lost claim. With `wait` they wait for
    # the rows.

    async def complete_jobs(
        self, worker: str, completions: Sequence[Completion], *, wait: bool = False
    ) -> list[Settled]:
        """End these slots where owner and fence still match: ledger row, lock cleared, next slot or row removed."""
        ...

    async def fail_jobs(self, worker: str, failures: Sequence[Failure], *, wait: bool = False) -> list[Settled]:
        """Record these failures where owner and fence still match: lock cleared, slot kept, retry later or dead."""
        ...

    async def release_jobs(self, worker: str, releases: Sequence[Release], *, wait: bool = False) -> list[Settled]:
        """Release these claims where owner and fence still match: lock cleared, slot kept, attempt returned."""
        ...

    async def read_overdue(self, *, since: timedelta) -> Overdue:
        """What has been due for this long and is unclaimed, by lane; and whether a lock has ended."""
        ...

    async def reclaim_jobs(self, *, limit: int = BATCH) -> list[Reclaimed]:
        """Take expired claims away from their owners: ledger row "lost", lock cleared, dead at the last attempt."""
        ...

    async def read_outcomes(self, holds: Sequence[Hold]) -> dict[Hold, Outcome]:
        """The outcomes of these runs in the ledger: read after a lost answer."""
        ...

    async def record_progress(self, worker: str, hold: Hold, progress: str) -> bool:
        """Write a run's progress where owner and fence still match."""
        ...

    def transaction(self, *, timeout: timedelta) -> AbstractAsyncContextManager[Transaction]:
        """A transaction on a connection of its own: committed when the block ends, rolled back when it raises."""
        ...

    def borrow(self, connection: object) -> Borrowed:
        """Use the user's own connection to this database; UsageError if it is none.

        Needs no open store.
        """
        ...

    # Workers

    async def register_worker(self, record: WorkerRecord) -> None:
        """Insert a worker's row, or update it."""
        ...

    async def stop_worker(self, worker: str) -> None:
        """Mark a worker as stopped."""
        ...

    # Operators. With `fence` they change nothing unless that is still the job's: a page may be old.

    async def pause_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        """Keep a job from being claimed; a run in progress continues."""
        ...

    async def resume_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        """Let a paused job be claimed again."""
        ...

    async def run_job_now(self, job_id: UUID, *, fence: int | None = None) -> bool:
        """Make an unclaimed job due at once; its nominal time stays."""
        ...

    async def retry_job(self, job_id: UUID, *, fence: int | None = None) -> bool:
        """Give a dead job a new set of attempts, due at once."""
        ...

    async def discard_job(self, job_id: UUID) -> bool:
        """Remove an unclaimed job, and record that in the ledger."""
        ...

    async def release_lease(self, term: Term) -> bool:
        """Take a lease away from its holder if its term is still this one."""
        ...

    # Shards

    async def read_shard(self) -> ShardMark:
        """Which shard of a system this install is, and whether it is being drained."""
        ...

    async def mark_shard(self, number: int) -> bool:
        """Number this install as a shard, unless it has another number."""
        ...

    async def drain_shard(self, *, draining: bool) -> None:
        """Let this shard get no new jobs, or let it get some again."""
        ...

    # Reading

    async def read_status(self) -> StatusView:
        """Counts of jobs by state and of live workers; due jobs of unknown tasks."""
        ...

    async def read_job(self, job_id: UUID) -> JobView | None:
        """One job."""
        ...

    async def list_jobs(
        self, *, state: State | None = None, task: str | None = None, limit: int = 100
    ) -> list[JobView]:
        """Jobs by due time."""
        ...

    async def list_runs(
        self, *, job_id: UUID | None = None, task: str | None = None, limit: int = 100
    ) -> list[RunView]:
        """Ledger rows, newest first."""
        ...

    async def read_results(self, job_ids: Sequence[UUID]) -> list[JobEnd]:
        """How those of these jobs have ended that have: gone, or dead. Also names those that recur."""
        ...

    async def list_workers(self) -> list[WorkerView]:
        """Workers, living ones first."""
        ...

    async def list_leases(self) -> list[LeaseView]:
        """Leases by name."""
        ...

    async def list_metrics(self, *, since: timedelta, task: str | None = None) -> list[MetricView]:
        """Metrics of the time `since`, newest first."""
        ...
