"""What can happen to a call between a process and its database.

    call ─► latency ─► [request lost?] ─► the statement, really executed ─► [answer lost?] ─► latency ─► answer
                              │                       ▲                            │
                              │        [request late: it arrives after the caller gave up]
                              └──────────── Transient or Ambiguous ◄───────────────┘

The statement is the real SQL on a real SQLite file. The inspector sees every execution, with the
rows before it, including those whose answer is lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from uuid import UUID

from reltask.errors import AmbiguousError, TransientError
from reltask.model.clock import Clock
from reltask.model.durable import Recording
from reltask.model.job import Hold, NewJob
from reltask.resilience import AskOnce, Policy
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.sqlite.transaction import transaction
from reltask.stores.verbs import AT_ONCE, VERBS
from reltask.stores.waking import Cancelled, News, Wake
from tests.simulation.database import OPTIONS, Database

Inspect = Callable[[str, tuple[Any, ...]], Callable[[Any], None]]
"""Reads the rows before a statement; the function it returns checks them after it."""
LATENCY = 0.004
LATEST = 25.0
"""How many seconds late a request may arrive: longer than a lock timeout."""
READS = frozenset(
    {
        "read_declared",
        "read_keys",
        "read_limits",
        "read_holds",
        "read_cancelled",
        "read_outcomes",
        "read_overdue",
        "read_status",
        "read_job",
        "read_steps",
        "read_waits",
        "list_jobs",
        "read_now",
    }
)
SETTLEMENTS = frozenset({"complete_jobs", "fail_jobs", "release_jobs", "suspend_jobs", "record_steps"})
SKIPPING = SETTLEMENTS | {"heartbeat_jobs"}
LOOKS = frozenset({"claim_jobs", "claim_limited", "reclaim_jobs", "fold_marks"})
LATEST_ANSWER = 30.0
"""Seconds: three lock timeouts."""
LOOK_AT_ROW = 0.5
"""Seconds between two looks of a statement that waits for a row."""


class Trouble(StrEnum):
    """How the connection to the database is broken, for a while."""

    NONE = "none"
    REFUSED = "refused"
    """Connections are refused: the statement was not applied."""
    BUSY = "busy"
    """The database answers that it is busy: the statement was not applied."""
    REQUEST_LOST = "request lost"
    ANSWER_LOST = "answer lost"
    REQUEST_LATE = "request late"
    """The caller gives up; the request arrives afterwards."""
    SLOW = "slow"
    ANSWER_LATE = "answer late"
    """The statement is executed at once; its answer takes up to three lock timeouts."""
    SETTLEMENTS_REFUSED = "settlements refused"
    """Outcomes cannot be written; everything else works."""
    ROWS_HELD = "rows held"
    """Another transaction holds some rows: heartbeats and settlements skip them, unless a settlement waits."""


class HeldRows:
    """The rows that another session has locked while a trouble lasts: every second one, chosen when it is met."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._held: dict[UUID, bool] = {}

    def __contains__(self, job_id: UUID) -> bool:
        if job_id not in self._held:
            self._held[job_id] = self._rng.random() < 0.5
        return self._held[job_id]

    def has_been(self, job_id: UUID) -> bool:
        """Whether a statement has met this row, and it was locked."""
        return self._held.get(job_id, False)


class Line:
    """One process's connection to the database. The world sets its trouble."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.trouble = Trouble.NONE
        self.share = 1.0
        """The share of calls that the trouble hits."""
        self.bites = 0
        self.held = HeldRows(rng)
        """What is locked in a `ROWS_HELD`."""
        self.open_transactions: list[Any] = []
        self.looks_under_way = 0
        """Claims, reclaims and folds that wait for their answer: until then the worker cannot look for work."""

    def strikes(self) -> Trouble:
        """The trouble that this call meets."""
        if self.trouble is Trouble.NONE or self.rng.random() > self.share:
            return Trouble.NONE
        self.bites += 1
        return self.trouble


class Signals:
    """Notifications between the workers of a history, as PostgreSQL and SQLite have them and SQL Server has not."""

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._listeners: list[tuple[contextvars.Context, Wake, Cancelled | None]] = []

    @contextmanager
    def heard_by(self, wake: Wake, cancelled: Cancelled | None) -> Iterator[None]:
        """Call `wake` at each signal, as a step of the process that listens."""
        listener = (contextvars.copy_context(), wake, cancelled)
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def send(self, news: News) -> None:
        if self.enabled:
            for context, wake, _ in self._listeners:
                asyncio.get_running_loop().call_later(LATENCY, wake, news, context=context)

    def send_cancel(self, job_ids: Sequence[UUID]) -> None:
        if self.enabled:
            for context, _, cancelled in self._listeners:
                if cancelled is not None:
                    asyncio.get_running_loop().call_later(LATENCY, cancelled, job_ids, context=context)


class SimStore:
    """A `Store` whose calls go over a line."""

    bulk = SqliteStore.bulk

    def __init__(
        self,
        database: Database,
        *,
        line: Line,
        clock: Clock,
        inspect: Inspect,
        timeout: float,
        land: Callable[[Any], object],
        signals: Signals | None = None,
        policy: Policy | None = None,
    ) -> None:
        """`policy` sends again what failed, and stops sending for a while; without one every call is sent once."""
        self._database, self._line, self._clock = database, line, clock
        self._policy = policy or AskOnce()
        self._inspect, self._timeout, self._land = inspect, timeout, land
        self._signals = signals or Signals(enabled=False)
        self.inner = SqliteStore(database.path, options=OPTIONS, now=database.read_clock, inline=True, clock=clock)
        self.inner._session = database.session

    def __getattr__(self, verb: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            self._line.looks_under_way += verb in LOOKS
            try:
                how = VERBS.get(verb, AT_ONCE)
                return await self._policy.call(
                    verb,
                    lambda: self._call(verb, args, options),
                    resend_ambiguous=how.resend_ambiguous,
                    retry=how.retry,
                )
            finally:
                self._line.looks_under_way -= verb in LOOKS

        return call

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        """The connection is shared."""

    def dedicated(self, *, timeout: timedelta, inline: bool = True) -> SimStore:  # noqa: ARG002 - it never blocks
        return SimStore(
            self._database,
            line=self._line,
            clock=self._clock,
            inspect=self._inspect,
            timeout=timeout.total_seconds(),
            land=self._land,
            signals=self._signals,
        )

    async def signal(self, due_at: datetime | None = None, *, wanted: int | None = None) -> None:
        await self._travel()
        if self._line.strikes() in (Trouble.NONE, Trouble.SETTLEMENTS_REFUSED, Trouble.ROWS_HELD, Trouble.ANSWER_LATE):
            self._signals.send(wanted if due_at is None else due_at)

    async def signal_cancel(self, job_ids: Sequence[UUID]) -> None:
        await self._travel()
        if self._line.strikes() in (Trouble.NONE, Trouble.SETTLEMENTS_REFUSED, Trouble.ROWS_HELD, Trouble.ANSWER_LATE):
            self._signals.send_cancel(job_ids)

    async def signal_lease(self, name: str) -> None:
        """Candidates for the maintenance's lease try at intervals. Like every signal this one raises no error."""

    @asynccontextmanager
    async def listen(
        self,
        wake: Wake,
        lease: object = None,  # noqa: ARG002 - none is sent
        lost: object = None,  # noqa: ARG002
        *,
        cancelled: Cancelled | None = None,
        awaited: object = None,  # noqa: ARG002
        ended: object = None,  # noqa: ARG002
    ) -> AsyncIterator[bool]:
        with self._signals.heard_by(wake, cancelled):
            yield self._signals.enabled

    @asynccontextmanager
    async def transaction(self, **_options: object) -> AsyncIterator[Any]:
        """The task's own transaction: it can fail at its start and at its commit."""
        await self._travel()
        if self._line.strikes() in (Trouble.REFUSED, Trouble.BUSY, Trouble.REQUEST_LOST, Trouble.REQUEST_LATE):
            raise TransientError("begin: refused")
        lost = False
        async with transaction(self._database.check_out(), inline=True) as inner:
            self._line.open_transactions.append(inner)
            try:
                yield (block := SimTransaction(inner, self._inspect))
            finally:
                self._line.open_transactions.remove(inner)
            lost = self._line.strikes() is Trouble.ANSWER_LOST
            committed = self._inspect("commit", (block.inserted, block.recorded))
        committed(None)
        await self._travel()
        if lost:
            raise AmbiguousError("commit: the answer was lost")

    async def _call(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        await self._travel()
        trouble = self._line.strikes()
        if trouble in (Trouble.REFUSED, Trouble.BUSY):
            raise TransientError(f"{verb}: {trouble}")
        if trouble is Trouble.SETTLEMENTS_REFUSED and verb in SETTLEMENTS:
            raise TransientError(f"{verb}: the row is locked")
        if trouble is Trouble.SLOW:
            await self._clock.sleep(self._line.rng.uniform(0, self._timeout * 0.9))
        if trouble is Trouble.REQUEST_LOST:
            await self._clock.sleep(self._timeout)
            raise self._lost(verb)
        if trouble is Trouble.REQUEST_LATE:
            self._land(self._execute_late(verb, args, options))
            await self._clock.sleep(self._timeout)
            raise self._lost(verb)
        if trouble is Trouble.ROWS_HELD and options.get("wait"):
            await self._wait_for_rows(verb, args[1])
        elif trouble is Trouble.ROWS_HELD:
            args, options = self._skip_held(verb, args, options)
        answer = await self._execute(verb, args, options)
        if trouble is Trouble.ANSWER_LOST:
            await self._clock.sleep(self._timeout)
            raise self._lost(verb)
        if trouble is Trouble.ANSWER_LATE:
            await self._clock.sleep(self._line.rng.uniform(0, LATEST_ANSWER))
        return answer

    def _skip_held(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """What a statement does that skips held rows."""
        if verb in SKIPPING:
            return (args[0], [one for one in args[1] if job_of(one) not in self._line.held]), options
        if verb == "fold_marks" and self._line.rng.random() < 0.5:
            return (), {"limit": 0}
        return args, options

    async def _wait_for_rows(self, verb: str, settlements: Sequence[Any]) -> None:
        """The other transaction ends at some time, or the server ends the wait."""
        if not any(job_of(settlement) in self._line.held for settlement in settlements):
            return
        until = self._clock.monotonic() + self._timeout
        while self._line.trouble is Trouble.ROWS_HELD:
            await self._clock.sleep(LOOK_AT_ROW)
            if self._clock.monotonic() > until:
                raise TransientError(f"{verb}: a row is held")

    async def _execute(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """The real statement; the inspector compares the rows before and after."""
        check = self._inspect(verb, args)
        answer = await getattr(self.inner, verb)(*args, **options)
        check(answer)
        return answer

    async def _execute_late(self, verb: str, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        await asyncio.sleep(self._timeout + self._line.rng.uniform(0, LATEST))
        try:
            await self._execute(verb, args, options)
        except TransientError:
            return

    async def _travel(self) -> None:
        await self._clock.sleep(self._line.rng.uniform(0, LATENCY))

    def _lost(self, verb: str) -> Exception:
        if verb in READS:
            return TransientError(f"{verb}: no answer")
        return AmbiguousError(f"{verb}: no answer")


def job_of(one: Any) -> UUID:
    """The job that a hold or a settlement is about."""
    job_id: UUID = one.job_id if isinstance(one, Hold) else one.hold.job_id
    return job_id


class SimTransaction:
    """An open transaction. Its writes to jobs are inspected like all others."""

    def __init__(self, inner: Any, inspect: Inspect) -> None:
        self._inner, self._inspect = inner, inspect
        self.inserted: list[NewJob] = []
        self.recorded: list[Recording] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def complete_job(self, worker: str, completion: Any) -> bool:
        check = self._inspect("complete_jobs", (worker, [completion]))
        won: bool = await self._inner.complete_job(worker, completion)
        check([completion] if won else [])
        return won

    async def guard_job(self, worker: str, hold: Any) -> bool:
        check = self._inspect("guard_job", (worker, [hold]))
        won: bool = await self._inner.guard_job(worker, hold)
        check([hold] if won else [])
        return won

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        created: set[UUID] = await self._inner.enqueue_jobs(jobs)
        self.inserted += [job for job in jobs if job.id in created]
        return created

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        check = self._inspect("record_in_transaction", (worker, [recording]))
        won: bool = await self._inner.record_steps(worker, recording)
        check([recording] if won else [])
        self.recorded += [recording] if won else []
        return won
