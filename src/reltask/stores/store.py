"""The seam: what the engine asks of a database. One verb, one transaction, one sentence.

Each verb is one file `sql/<verb>.sql`, under the same name in every store. A verb either happens whole or
not at all, and says what it did. Failures arrive as `TransientError` (certainly not applied),
`ConflictError`, `AmbiguousError` (perhaps applied) or `PermanentError`, and as nothing else.

A store belongs to one event loop. `dedicated()` makes another one, with a connection of its own, for the
thread that beats: no pool, no breaker and no retry stand in front of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

from reltask.model.audit import Break, LossCount, TaskCount, Wait
from reltask.model.doctor import Facts
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
    Reclaimed,
    Release,
    Settled,
    State,
    WorkerRecord,
)
from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.views import JobView, LeaseView, MetricView, RunView, StatusView, WorkerView

Wake = Callable[[datetime | None], None]
"""Called with the time at which something becomes due; None: look now."""
LeaseWake = Callable[[str | None], None]
"""Called with the name of a lease that was given back; None: look at all of them."""
BATCH = 1_000
"""No verb touches more rows than this at once; callers chunk. Only of new jobs a store may take more."""


class Transaction(Protocol):
    """A task's own writes, to be committed together with its completion or not at all."""

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
        """As the store's verb: the jobs exist once the transaction is committed, and never if it is not."""
        ...

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """As the store's verb."""
        ...

    async def holds_job(self, worker: str, hold: Hold) -> bool:
        """Whether the committed row shows the claim as this worker's; takes no lock."""
        ...

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        """Renew the claim and keep it until the commit, if owner and fence still match: a chunk's last statement."""
        ...

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        """End the slot if owner and fence still match: the last statement before the commit."""
        ...

    async def guard_lease(self, term: Term) -> bool:
        """Keep anybody from taking over this lease until the commit, if its term is still this one."""
        ...


class Borrowed(Protocol):
    """A connection that the user already has, as far as reltask may use it.

    With a synchronous one the coroutines never wait: they run to their end in the thread that starts them.
    """

    @property
    def is_async(self) -> bool:
        """Whether its calls are awaited."""
        ...

    async def join(self) -> Transaction:
        """The user's own open transaction: only the user commits it. Without one, UsageError."""
        ...

    def transaction(self, *, timeout: timedelta) -> AbstractAsyncContextManager[Transaction]:
        """A transaction begun here: committed when the block ends, rolled back when it raises."""
        ...


class LeaseStore(Protocol):
    """A database that holds leases: all that a leader needs."""

    async def acquire_lease(self, request: LeaseRequest) -> LeaseAnswer:
        """Take a lease that nobody holds any more, with the next term; the same acquisition again gets the same."""
        ...

    async def heartbeat_lease(self, grant: Grant, *, metadata: str | None = None) -> bool:
        """Renew a lease that has not ended and is still this grant's, and publish its metadata if there is any."""
        ...

    async def resign_lease(self, grant: Grant) -> bool:
        """Give a lease back if it is still this grant's, so that the next one need not wait for its end."""
        ...

    async def signal_lease(self, name: str) -> None:
        """Tell those that wait that a lease was given back, as `signal` tells workers."""
        ...


class Maintainable(Protocol):
    """A database that is kept in order by whoever leads, or by everybody.

    With `leader`, nothing is written unless that term is still the lease's, and nobody can take the lease over before
    the writes are committed.
    """

    async def mark_dead_workers(self, *, leader: Term | None) -> list[str]:
        """Mark workers that gave no sign of life for as long as they had promised; say which."""
        ...

    async def prune_runs(self, *, older_than: timedelta, most: int, leader: Term | None, limit: int = BATCH) -> int:
        """Remove the oldest ledger rows: those past the age, and those beyond the count; none younger than an hour."""
        ...

    async def prune_records(self, *, workers: timedelta, metrics: timedelta, leader: Term | None) -> int:
        """Remove workers that ended, and metrics that were made, longer ago than this; a batch of each."""
        ...

    async def roll_up_runs(self, *, leader: Term | None) -> int:
        """Count the ledger's rows of recent minutes anew, by minute and task; say how many minutes were written."""
        ...

    def advisory_lock(self, name: str) -> AbstractAsyncContextManager[Callable[[], Awaitable[bool]] | None]:
        """Try for a lock that ends with its connection; yields None, or a question: is the connection still alive?

        UsageError where the database has no such locks.
        """
        ...


class Store(LeaseStore, Maintainable, Protocol):
    """A database that holds jobs, runs, workers, leases and metrics."""

    bulk: int
    """How many jobs a call of `enqueue_jobs` takes at the most."""

    async def open(self) -> None:
        """Connect, and check that the schema is the one that this version speaks."""
        ...

    async def close(self) -> None:
        """Give every connection back; safe to call twice."""
        ...

    def dedicated(self, *, timeout: timedelta) -> Store:
        """Another store on the same database: one connection, no retries, each call at most `timeout`."""
        ...

    async def read_now(self) -> datetime:
        """The database's time."""
        ...

    # Producing

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, again: bool = False) -> set[UUID]:
        """Insert the jobs whose id neither table nor ledger knows and whose (task, key) is free; say which.

        `again`: the answer to an earlier sending of these was lost. What that one has brought counts as inserted.
        """
        ...

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        """Which jobs have these (task, key) names, of those that are there."""
        ...

    async def read_declared(self, names: Sequence[tuple[str, str | None]]) -> list[Declared]:
        """Read the jobs with these (task, key) names, recurring or unique, and the database's time."""
        ...

    async def declare_job(
        self, job: NewJob, *, seen: Declared, worker: str | None = None, fence: int | None = None
    ) -> bool:
        """Rewrite a recurring job's definition if it is still as `seen`, and nobody else has claimed it.

        With `worker` and `fence` as their claim says, the slot is not moved: they end it by the new schedule.
        """
        ...

    # The protocol

    async def claim_jobs(self, request: ClaimRequest) -> ClaimAnswer:
        """Take up to `limit` due jobs that are unclaimed, not paused, not dead, and known to this worker."""
        ...

    async def heartbeat_jobs(
        self, worker: str, holds: Sequence[Hold], *, alive_for: timedelta, tokens: Sequence[UUID] = ()
    ) -> BeatAnswer:
        """Renew these claims without ever waiting for a row, and name the rows of claims whose answer was lost."""
        ...

    async def read_holds(self, worker: str, holds: Sequence[Hold]) -> set[Hold]:
        """Which of these claims the committed rows still show as this worker's."""
        ...

    async def complete_jobs(self, worker: str, completions: Sequence[Completion]) -> list[Settled]:
        """End these slots where owner and fence still match: ledger row, lock cleared, next slot or row removed."""
        ...

    async def fail_jobs(self, worker: str, failures: Sequence[Failure]) -> list[Settled]:
        """Record these failures where owner and fence still match: lock cleared, slot kept, retry later or dead."""
        ...

    async def release_jobs(self, worker: str, releases: Sequence[Release]) -> list[Settled]:
        """Give these claims back where owner and fence still match: lock cleared, slot kept, attempt returned."""
        ...

    async def reclaim_jobs(self, *, limit: int = BATCH) -> list[Reclaimed]:
        """Take expired claims away from their owners: ledger row "lost", lock cleared, dead at the last attempt."""
        ...

    async def read_outcomes(self, holds: Sequence[Hold]) -> dict[Hold, Outcome]:
        """What the ledger says about these runs: how a lost answer is settled."""
        ...

    async def record_progress(self, worker: str, hold: Hold, progress: str) -> bool:
        """Write a run's progress where owner and fence still match."""
        ...

    def transaction(self, *, timeout: timedelta) -> AbstractAsyncContextManager[Transaction]:
        """A transaction on a connection of its own: committed when the block ends, rolled back when it raises."""
        ...

    def borrow(self, connection: object) -> Borrowed:
        """The user's own connection to this database; UsageError for what is none. Needs no open store."""
        ...

    # Workers

    async def register_worker(self, record: WorkerRecord) -> None:
        """Introduce a worker, or introduce it again."""
        ...

    async def stop_worker(self, worker: str) -> None:
        """Mark a worker as stopped."""
        ...

    # Waking

    async def signal(self, due_at: datetime | None = None) -> None:
        """Tell sleeping workers that something is due, or when it will be, where the database can; after the commit.

        Losing a signal costs time, not a job. So one that cannot be sent is no error: what it speaks of is done, and
        whoever took it for undone would do it again.
        """
        ...

    def listen(self, wake: Wake, lease: LeaseWake | None = None) -> AbstractAsyncContextManager[bool]:
        """Call `wake` at each signal while the block is open; yields False where the database has no signals.

        `lease` is called at each signal about a lease, over the same connection.
        """
        ...

    # Operators

    async def pause_job(self, job_id: UUID) -> bool:
        """Keep a job from being claimed; a claim under way goes on."""
        ...

    async def resume_job(self, job_id: UUID) -> bool:
        """Let a paused job be claimed again."""
        ...

    async def run_job_now(self, job_id: UUID) -> bool:
        """Make an unclaimed job due at once; its nominal time stays."""
        ...

    async def retry_job(self, job_id: UUID) -> bool:
        """Give a dead job a new set of attempts, due at once."""
        ...

    async def discard_job(self, job_id: UUID) -> bool:
        """Remove an unclaimed job, with a ledger row that says so."""
        ...

    async def release_lease(self, term: Term) -> bool:
        """Take a lease away from its holder if its term is still the one that was seen."""
        ...

    # Reading

    async def read_status(self) -> StatusView:
        """Count everything."""
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

    async def list_workers(self) -> list[WorkerView]:
        """Workers, living ones first."""
        ...

    async def list_leases(self) -> list[LeaseView]:
        """Leases by name."""
        ...

    async def list_metrics(self, *, since: timedelta, task: str | None = None) -> list[MetricView]:
        """Metrics of the last so many minutes, newest first."""
        ...

    # Auditing

    async def audit_tasks(self, *, task: str | None = None) -> list[TaskCount]:
        """Count slots and runs by task, and say how late slots were first claimed."""
        ...

    async def audit_slots(self, *, task: str | None = None, kept_for: timedelta, limit: int = BATCH) -> list[Break]:
        """Find what the ledger and the rows cannot both say; history younger than `kept_for` must be whole."""
        ...

    async def audit_waiting(self, *, task: str | None = None, lock_timeout: timedelta) -> list[Wait]:
        """Find jobs that wait longer than their lock timeout, or the one given where they name none."""
        ...

    async def audit_losses(self, *, task: str | None = None, limit: int = BATCH) -> list[LossCount]:
        """Count the runs that lost their lock by task, outcome and worker, latest first."""
        ...

    async def examine(self) -> Facts:
        """What a doctor wants to know. Needs no open store, and no tables."""
        ...
