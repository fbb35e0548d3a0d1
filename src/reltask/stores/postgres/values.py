"""Converts the arguments of verbs into columns, and rows into `reltask.model` values.

A batch is sent as one array per column, and `unnest` makes rows of them: one round trip and one plan for any number of
rows. A column that is null in every row is sent as an empty array: `unnest` pads shorter arrays with nulls, and most
columns of most batches are null. Rows are read by position, in the order of the statement's last `select`.
The payloads of signals are at the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from reltask.model.audit import Break, BreakKind, LossCount, TaskCount, Wait
from reltask.model.job import (
    Claim,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Declared,
    Failure,
    Fleet,
    Hold,
    NewJob,
    Outcome,
    Overdue,
    Parent,
    Reclaimed,
    Release,
    Settled,
    Settlement,
    State,
    WorkerRecord,
)
from reltask.model.lease import Grant, LeaseAnswer, LeaseRequest, Term
from reltask.model.views import (
    JobEnd,
    JobView,
    LeaseView,
    MetricView,
    RunView,
    StatusView,
    WorkerView,
    read_names,
)
from reltask.stores.waking import News

Row = Sequence[Any]
Columns = dict[str, object]
T = TypeVar("T")

WORTH_COPYING = 100
"""From this number of jobs on, COPY with its transaction costs less than a statement."""
COPIED = [
    *("id", "task", "queue", "priority", "args", "max_attempts", "lock_timeout_ms", "created_at", "next_run_time"),
    "headers",
]
"""The columns of a row without key, schedule and limits; the others have the table's defaults."""
LARGEST_COPY = 1_000_000
"""The most bytes in one COPY, unless a single row is larger. The driver sends half a megabyte at a time, and before the
second full half it waits without a timeout, even if the network is down. This limit avoids a second full half."""
_ROW, _WIDEST = 120, 4
"""The bytes of a row besides its texts, and the most bytes of a character."""

_MILLISECOND = timedelta(milliseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def milliseconds(length: timedelta | None) -> int | None:
    """Whole milliseconds, rounded up: a lock must not expire early."""
    return None if length is None else -(-length // _MILLISECOND)


def storable(text: str | None) -> str | None:
    """Text that PostgreSQL accepts: in a traceback, NULs and lone surrogates are replaced."""
    return None if text is None else text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


# Arguments of verbs


def optional(column: list[T | None]) -> list[T | None]:
    """A column that may be null: empty if every row is null. The ids determine the number of rows."""
    return [] if column.count(None) == len(column) else column


def holds(given: Sequence[Hold]) -> Columns:
    """The job ids and fences that runs send with every write."""
    return {"ids": [hold.job_id for hold in given], "fences": [hold.fence for hold in given]}


def request(asked: ClaimRequest) -> Columns:
    """The parameters of a claim."""
    return {
        "worker": asked.worker,
        "token": asked.token,
        "queues": asked.queues,
        "tasks": asked.tasks,
        "limit": asked.limit,
        "lock_timeout_ms": milliseconds(asked.lock_timeout),
        "isolated": asked.isolated,
        "alive_for": asked.alive_for,
        "oldest": asked.oldest,
        "counts": asked.counts,
    }


def completions(given: Sequence[Completion]) -> Columns:
    """One column per field, where a null outcome means success; skipped slots in columns of their own, numbered."""
    passed = [(c.hold.job_id, nth, time) for c in given if c.skipped for nth, time in enumerate(c.skipped, start=1)]
    return {
        **holds([completion.hold for completion in given]),
        "outcomes": optional([None if c.outcome is Outcome.SUCCEEDED else c.outcome for c in given]),
        "results": optional([completion.result for completion in given]),
        "errors": [storable(error) for error in optional([completion.error for completion in given])],
        "next_times": optional([completion.next_run_time for completion in given]),
        "args": optional([completion.args for completion in given]),
        "drops": optional([None if completion.keeps_args else True for completion in given]),
        "skipped_counts": optional([len(completion.skipped) or None for completion in given]),
        "skipped_ids": [job_id for job_id, _, _ in passed],
        "skipped_nths": [nth for _, nth, _ in passed],
        "skipped_times": [time for _, _, time in passed],
    }


def failures(given: Sequence[Failure]) -> Columns:
    """One column per field."""
    return {
        **holds([failure.hold for failure in given]),
        "errors": [storable(failure.error) for failure in given],
        "delays": [failure.delay for failure in given],
        "finals": optional([failure.final or None for failure in given]),
        "patients": optional([failure.patient or None for failure in given]),
    }


def releases(given: Sequence[Release]) -> Columns:
    """One column per field."""
    return {
        **holds([release.hold for release in given]),
        "outcomes": [release.outcome for release in given],
        "errors": [storable(release.error) for release in given],
        "delays": [release.delay for release in given],
        "counted": [release.counted for release in given],
    }


def new_jobs(given: Sequence[NewJob]) -> Columns:
    """One column per field."""
    return {
        "ids": [job.id for job in given],
        "tasks": [job.task for job in given],
        "keys": optional([job.key for job in given]),
        "queues": [job.queue for job in given],
        "priorities": [job.priority for job in given],
        "args": [job.args for job in given],
        "schedules": optional([job.schedule for job in given]),
        "declarations": optional([job.declaration for job in given]),
        "app_versions": optional([job.app_version for job in given]),
        "max_attempts": optional([job.max_attempts for job in given]),
        "lock_timeouts_ms": optional([milliseconds(job.lock_timeout) for job in given]),
        "run_ats": optional([job.run_at for job in given]),
        "delays": optional([job.delay for job in given]),
        "headers": optional([job.headers for job in given]),
        "limit_keys": optional([job.limits[0] if job.limits else None for job in given]),
        "limits": optional([_all_keys(job) for job in given]),
        **_parents([job.parent for job in given]),
    }


def _parents(given: Sequence[Parent | None]) -> Columns:
    """The steps that wait for jobs."""
    return {
        "parent_ids": optional([None if parent is None else parent.job_id for parent in given]),
        "parent_slots": optional([None if parent is None else parent.slot_no for parent in given]),
        "parent_steps": optional([None if parent is None else parent.step for parent in given]),
        "parent_nths": optional([None if parent is None else parent.nth for parent in given]),
    }


def enqueueing(jobs: Sequence[NewJob]) -> tuple[str, Columns]:
    """The statement and its columns: a single one-off, the usual case, needs no arrays.

    One-offs have statements of their own, because the role for producers may write neither a
    schedule nor a parent.
    """
    verb = inserting(jobs)
    if len(jobs) > 1 or verb != "enqueue_jobs":
        return verb, new_jobs(jobs)
    timeout = None if jobs[0].lock_timeout is None else milliseconds(jobs[0].lock_timeout)
    return "enqueue_job", {**msgspec.structs.asdict(jobs[0]), "lock_timeout_ms": timeout}


def inserting(jobs: Sequence[NewJob]) -> str:
    """The statement for any number of such jobs."""
    if not all(is_plain(job) for job in jobs):
        return "schedule_jobs"
    return "enqueue_limited" if any(job.limits for job in jobs) else "enqueue_jobs"


def can_be_copied(jobs: Sequence[NewJob]) -> bool:
    """Whether COPY can insert them: it can neither leave out a job whose name is taken, nor mark a limit once."""
    return all(job.key is None and not job.limits and is_plain(job) for job in jobs)


def is_plain(job: NewJob) -> bool:
    """Whether a job has neither a parent nor any of the columns of a schedule."""
    return job.schedule is None and job.declaration is None and job.app_version is None and job.parent is None


def records(jobs: Sequence[NewJob], now: datetime) -> Iterator[list[Row]]:
    """The COPIED columns, row by row, as the statement would fill them at `now`; in slices, see LARGEST_COPY."""
    rows: list[Row] = []
    size = 0
    for job in jobs:
        width = _ROW + _WIDEST * (len(job.args) + len(job.task) + len(job.queue) + len(job.headers or ""))
        if rows and size + width > LARGEST_COPY:
            yield rows
            rows, size = [], 0
        size += width
        rows.append(
            (
                job.id,
                job.task,
                job.queue,
                job.priority,
                job.args,
                job.max_attempts,
                milliseconds(job.lock_timeout),
                now,
                job.run_at or (now if job.delay is None else now + job.delay),
                job.headers,
            )
        )
    yield rows


def new_job(job: NewJob) -> Columns:
    """A single job, for a statement that takes plain parameters."""
    limits = {"limit_key": job.limits[0] if job.limits else None, "limits": _all_keys(job)}
    return {**msgspec.structs.asdict(job), "lock_timeout_ms": milliseconds(job.lock_timeout), **limits}


def _all_keys(job: NewJob) -> str | None:
    """JSON of the keys of a job that has several."""
    return msgspec.json.encode(job.limits).decode() if len(job.limits) > 1 else None


def worker_record(record: WorkerRecord) -> Columns:
    """A worker's row."""
    return msgspec.structs.asdict(record)


def leader(term: Term | None) -> Columns:
    """The lease and term that guard a leader's write; without a leader, no lease is checked."""
    return {"lease": None if term is None else term.lease, "term": None if term is None else term.number}


def grant(given: Grant) -> Columns:
    """The parameters of a holder's heartbeat and resignation."""
    return {**leader(given.term), "acquisition": given.acquisition}


def lease_request(asked: LeaseRequest) -> Columns:
    """The parameters of a try for a lease."""
    return {
        "lease": asked.name,
        "holder": asked.holder,
        "acquisition": asked.acquisition,
        "ttl_ms": milliseconds(asked.ttl),
        "waits": asked.waits,
    }


# Rows


def claim_answer(rows: Sequence[Row]) -> ClaimAnswer:
    """The first row has the times of the whole claim; each further row is a claimed slot."""
    now, next_due, next_expiry, marked, limited_at, rank, size, idle, *_ = rows[0]
    return ClaimAnswer(
        claims=[claim(row, now) for row in rows[1:]],
        now=now,
        next_due=next_due,
        next_expiry=next_expiry,
        marked=marked,
        limited_at=limited_at,
        fleet=None if size is None else Fleet(rank, size, idle),
    )


def overdue(row: Row) -> Overdue:
    """What should have been taken."""
    lanes, oldest, newest, marked, expired = row
    return Overdue(lanes=lanes, oldest=oldest, newest=newest, marked=marked, expired=expired)


def claim(row: Row, now: datetime) -> Claim:
    """One claimed slot, after the eight columns of the first row."""
    job_id, fence, task, key, args, queue, priority, schedule, slot_no, nominal, due_at, *rest = row[8:]
    started, attempt, max_attempts, timeout_ms, isolated, steps, has_parent, progress, headers, cancelled = rest
    return Claim(  # by position: keyword arguments would cost more than everything else here
        job_id,
        fence,
        task,
        key,
        args,
        queue,
        priority,
        schedule,
        slot_no,
        nominal,
        due_at or nominal,
        started or now,
        now,
        attempt,
        max_attempts,
        _length(timeout_ms),
        isolated,
        steps or 0,
        has_parent,
        progress,
        headers,
        cancelled or False,
    )


@lru_cache(maxsize=64)
def _length(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def settled(rows: Sequence[Row]) -> list[Settled]:
    """What was accepted."""
    return [Settled(Hold(job_id, fence), dead) for job_id, fence, dead in rows]


def settled_one_offs(given: Sequence[Settlement], rows: Sequence[Row]) -> list[Settled]:
    """What was accepted: the first row has the number; if not all were, the other rows name those that were."""
    (_, _, accepted), *named = rows
    if accepted == len(given):
        return [Settled(settlement.hold) for settlement in given]
    return [Settled(Hold(job_id, fence)) for job_id, fence, _ in named]


def reclaimed(row: Row) -> Reclaimed:
    """One reclaimed claim."""
    job_id, fence, task, slot_no, worker, dead = row
    return Reclaimed(job_id=job_id, fence=fence, task=task, slot_no=slot_no, worker=worker, dead=dead)


def names(given: Sequence[tuple[str, str | None]]) -> Columns:
    """Names of jobs, as two columns."""
    return {"tasks": [task for task, _ in given], "keys": [key for _, key in given]}


def keys(rows: Iterable[Row]) -> dict[tuple[str, str], UUID]:
    """The ids of jobs by task and key. On a user's connection some drivers return ids as text."""
    return {(task, key): as_uuid(job_id) for task, key, job_id in rows}


def as_uuid(value: UUID | str) -> UUID:
    """An id that the driver returned as UUID or as text."""
    return value if isinstance(value, UUID) else UUID(value)


def declared(row: Row) -> Declared:
    """A recurring job's definition."""
    return Declared(**dict(zip(Declared.__struct_fields__, row, strict=True)))


def job_view(row: Row) -> JobView:
    """A job's view."""
    fields = dict(zip(JobView.__struct_fields__, row, strict=True))
    return JobView(**{**fields, "state": State(fields["state"])})


def run_view(row: Row) -> RunView:
    """A run's view."""
    fields = dict(zip(RunView.__struct_fields__, row, strict=True))
    return RunView(**{**fields, "outcome": Outcome(fields["outcome"])})


def job_end(row: Row) -> JobEnd:
    """How a job has ended."""
    fields = dict(zip(JobEnd.__struct_fields__, row, strict=True))
    return JobEnd(**{**fields, "outcome": fields["outcome"] and Outcome(fields["outcome"])})


def worker_view(row: Row) -> WorkerView:
    """A worker's view."""
    fields = dict(zip(WorkerView.__struct_fields__, row, strict=True))
    names = {name: read_names(fields[name]) for name in ("queues", "tasks")}
    return WorkerView(**{**fields, **names})


def status_view(row: Row) -> StatusView:
    """The counts."""
    fields = dict(zip(StatusView.__struct_fields__[: len(row)], row, strict=True))
    return StatusView(**{**fields, "unknown": msgspec.json.decode(fields["unknown"], type=dict[str, int])})


def task_count(row: Row) -> TaskCount:
    """A task's line of the audit."""
    return TaskCount(**dict(zip(TaskCount.__struct_fields__, row, strict=True)))


def found_break(row: Row) -> Break:
    """A break in a job's history."""
    fields = dict(zip(Break.__struct_fields__, row, strict=False))  # audit_slots.sql names no step
    return Break(**{**fields, "kind": BreakKind(fields["kind"])})


def found_wait(row: Row) -> Wait:
    """Jobs that wait too long."""
    fields = dict(zip(Wait.__struct_fields__, row, strict=True))
    return Wait(**{**fields, "kind": BreakKind(fields["kind"])})


def loss(row: Row) -> LossCount:
    """Runs that lost their lock."""
    fields = dict(zip(LossCount.__struct_fields__, row, strict=True))
    return LossCount(**{**fields, "outcome": Outcome(fields["outcome"])})


def lease_answer(rows: Sequence[Row]) -> LeaseAnswer:
    """The answer to a try."""
    (row,) = rows
    return LeaseAnswer(**dict(zip(LeaseAnswer.__struct_fields__, row, strict=True)))


def lease_view(row: Row) -> LeaseView:
    """A lease's view."""
    fields = dict(zip(LeaseView.__struct_fields__, row, strict=True))
    return LeaseView(**{**fields, "ttl": fields["ttl"] * _MILLISECOND})


def metric_view(row: Row) -> MetricView:
    """One task in one minute."""
    return MetricView(**dict(zip(MetricView.__struct_fields__, row, strict=True)))


def to_payload(news: News) -> str:
    """A time as microseconds since 1970; `*8` asks for eight answers now; empty: now."""
    if isinstance(news, datetime):
        return str((news - _EPOCH) // timedelta(microseconds=1))
    return "" if news is None else f"*{news}"


def from_payload(payload: str) -> News:
    """What a signal says. A payload that cannot be read means now: an extra look is harmless."""
    try:
        if payload.startswith("*"):
            return max(0, int(payload[1:]))
        return _EPOCH + timedelta(microseconds=int(payload))
    except (ValueError, OverflowError):
        return None


def to_ids(payload: str) -> list[UUID]:
    """The jobs that a signal names. A payload that cannot be read names none: all are looked at."""
    try:
        return [UUID(text) for text in payload.split()]
    except ValueError:
        return []
