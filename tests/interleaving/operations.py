"""The store's verbs as operations: which statements, on which rows, by which worker.

Most operations are one statement. A task's transaction is two: the check with the task's own write,
then the fenced end. If the end is refused, the transaction is rolled back, as the worker does it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from reltask.model.job import (
    BeatAnswer,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Failure,
    Hold,
    NewJob,
    Outcome,
    Release,
    Settled,
    Verb,
    WorkerRecord,
)
from reltask.model.lease import LeaseAnswer
from tests.interleaving.driver import Session
from tests.store.store_harness import seen

T = datetime(2025, 3, 30, 0, 59, 59, 123456, tzinfo=UTC)
"""The time of the first operation. The second is later, so the rows show which one wrote last."""
BEFORE = T - timedelta(minutes=10)
"""The time at which jobs were due."""
LATER = timedelta(seconds=1)
LOCK = timedelta(minutes=2)
ALIVE = timedelta(seconds=90)
EVERY = '{"every":"10m"}'
TOKEN = UUID(int=7)

A, B, C = (UUID(int=number) for number in (0xA, 0xB, 0xC))
OTHER = UUID(int=0xF)
"""The id of a second job with the first one's key."""
HOLD = Hold(A, 1)
"""The claim of "alice" on job A. In some setups it has been lost."""

Statement = Callable[[Session], Awaitable[Any]]


@dataclass(frozen=True)
class Operation:
    """One transaction."""

    name: str
    statements: tuple[Statement, ...]
    verb: Verb | None = None
    """Its name in the transition table."""
    jobs: tuple[UUID, ...] = (A,)
    """The rows that it may lock."""
    workers: tuple[str, ...] = ()
    leases: tuple[str, ...] = ()
    never_waits: bool = False
    fenced_end: bool = False
    """If the end is refused, the transaction is rolled back with the task's own write."""

    def __str__(self) -> str:
        return self.name

    def renamed(self, name: str) -> Operation:
        return replace(self, name=name)


def comparable(answer: Any) -> Any:
    """The answer as a comparable value: sorted by id, without hints about when to ask again."""
    match answer:
        case ClaimAnswer(claims=claims):
            return sorted(claims, key=lambda claim: claim.job_id)
        case BeatAnswer(renewed=renewed, strays=strays, cancelled=cancelled):
            return sorted(renewed), sorted(strays), sorted(cancelled)
        case LeaseAnswer(term=term):
            return term
        case [str(), *_]:
            return sorted(answer)
        case list():
            return sorted(answer, key=lambda one: one.hold if isinstance(one, Settled) else one.job_id)
    return answer


def won(operation: Operation, answer: Any) -> bool:
    """Whether the answer says that the operation changed a job."""
    return bool(answer[0]) if operation.verb is Verb.HEARTBEAT else bool(answer)


# Jobs


def one_off(job_id: UUID = A, **fields: Any) -> NewJob:
    return NewJob(**{"id": job_id, "task": "greet", "run_at": BEFORE, **fields})


def recurring(job_id: UUID = A, **fields: Any) -> NewJob:
    return one_off(job_id, **{"schedule": EVERY, "declaration": "v1", **fields})


# Workers


def claim(limit: int = 1, jobs: tuple[UUID, ...] = (A,), worker: str | None = None) -> Operation:
    """The session's worker claims, unless another one is named."""

    async def statement(session: Session) -> Any:
        request = ClaimRequest(
            worker=worker or session.worker,
            token=TOKEN,
            queues=["default"],
            tasks=["greet"],
            limit=limit,
            lock_timeout=LOCK,
            isolated=True,
            alive_for=ALIVE,
        )
        return await session.store.claim_jobs(request)

    workers = (worker,) if worker else ()
    return Operation("claim", (statement,), Verb.CLAIM, jobs, workers, never_waits=True)


def _ids(holds: Sequence[Hold]) -> tuple[UUID, ...]:
    return tuple(hold.job_id for hold in holds)


def heartbeat(*holds: Hold) -> Operation:
    given = holds or (HOLD,)

    async def statement(session: Session) -> Any:
        return await session.store.heartbeat_jobs("alice", given, alive_for=ALIVE)

    return Operation("heartbeat", (statement,), Verb.HEARTBEAT, _ids(given), ("alice",), never_waits=True)


def completion(hold: Hold, *, again: bool) -> Completion:
    """The next slot is due at once, so that a claim may follow."""
    return Completion(hold=hold, result='"done"', next_run_time=T - timedelta(minutes=1) if again else None)


def complete(*holds: Hold, again: bool) -> Operation:
    """Complete slots that recur, or those that do not: some stores have a statement for each, one of which waits."""
    given = holds or (HOLD,)

    async def statement(session: Session) -> Any:
        return await session.store.complete_jobs("alice", [completion(hold, again=again) for hold in given])

    name = "complete" if again else "finish"
    return Operation(name, (statement,), Verb.COMPLETE, _ids(given), never_waits=again)


def fail(*holds: Hold) -> Operation:
    given = holds or (HOLD,)

    async def statement(session: Session) -> Any:
        failures = [Failure(hold=hold, error="boom", delay=timedelta(0)) for hold in given]
        return await session.store.fail_jobs("alice", failures)

    return Operation("fail", (statement,), Verb.FAIL, _ids(given), never_waits=True)


def release(*holds: Hold) -> Operation:
    given = holds or (HOLD,)

    async def statement(session: Session) -> Any:
        releases = [Release(hold=hold, outcome=Outcome.RELEASED) for hold in given]
        return await session.store.release_jobs("alice", releases)

    return Operation("release", (statement,), Verb.RELEASE, _ids(given), never_waits=True)


def reclaim(jobs: tuple[UUID, ...] = (A,)) -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.reclaim_jobs()

    return Operation("reclaim", (statement,), Verb.RECLAIM, jobs, never_waits=True)


def progress(hold: Hold = HOLD) -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.record_progress("alice", hold, '"half"')

    return Operation("progress", (statement,), jobs=(hold.job_id,))


# A task's transaction


def _own_write(hold: Hold, kind: str) -> Statement:
    async def statement(session: Session) -> Any:
        """If the claim is lost, the body raises before it writes."""
        if await session.transaction.holds_job("alice", hold):
            await session.write_effect(hold.job_id, kind)

    return statement


def transaction(hold: Hold = HOLD, *, again: bool) -> Operation:
    """The task's write and the completion."""

    async def end(session: Session) -> Any:
        return await session.transaction.complete_job("alice", completion(hold, again=again))

    steps = (_own_write(hold, "completion"), end)
    return Operation("transaction", steps, Verb.COMPLETE, (hold.job_id,), fenced_end=True)


def chunk(hold: Hold = HOLD) -> Operation:
    """The task's write and the guard, which completes nothing."""

    async def end(session: Session) -> Any:
        return await session.transaction.guard_job("alice", hold)

    return Operation("chunk", (_own_write(hold, "chunk"), end), jobs=(hold.job_id,), fenced_end=True)


# Producers


def enqueue(*jobs: NewJob, name: str) -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.enqueue_jobs(jobs)

    return Operation(name, (statement,), jobs=tuple(job.id for job in jobs))


def declare(job: NewJob) -> Operation:
    async def statement(session: Session) -> Any:
        return await session.store.declare_job(job, seen=seen(at=BEFORE))

    return Operation("declare", (statement,), never_waits=True)


# Operators


def _operator(name: str, verb: Verb | None = None) -> Operation:
    async def statement(session: Session) -> Any:
        return await getattr(session.store, name)(A)

    return Operation(name.partition("_job")[0], (statement,), verb)


pause = _operator("pause_job", Verb.PAUSE)
resume = _operator("resume_job", Verb.RESUME)
retry = _operator("retry_job", Verb.RETRY)
discard = _operator("discard_job", Verb.DISCARD)
cancel = _operator("cancel_job", Verb.CANCEL)
run_now = _operator("run_job_now").renamed("run_now")


# Workers' own rows


def record(worker: str) -> WorkerRecord:
    return WorkerRecord(
        id=worker,
        host="host",
        pid=1,
        version="1",
        app_version=None,
        queues=["default"],
        tasks=["greet"],
        concurrency=4,
        alive_for=ALIVE,
    )


def register(worker: str) -> Operation:
    async def statement(session: Session) -> Any:
        await session.store.register_worker(record(worker))

    return Operation(f"register {worker}", (statement,), jobs=(), workers=(worker,))


def stop(worker: str) -> Operation:
    async def statement(session: Session) -> Any:
        await session.store.stop_worker(worker)

    return Operation(f"stop {worker}", (statement,), jobs=(), workers=(worker,), never_waits=True)
