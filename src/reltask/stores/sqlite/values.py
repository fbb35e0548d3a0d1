"""Converts values to SQLite's types and back.

Times are whole microseconds since 1970 UTC: integers, so that nothing is rounded. A batch is one JSON text, which the
statements read with `json_each`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from reltask.errors import UsageError
from reltask.model.audit import Break, BreakKind, LossCount, Wait
from reltask.model.job import (
    LATEST,
    UNREADABLE,
    Claim,
    Completion,
    Declared,
    Failure,
    Hold,
    NewJob,
    Outcome,
    Overdue,
    Release,
    Settled,
    State,
    WorkerRecord,
)
from reltask.model.lease import Grant, LeaseRequest, Term
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

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)


def micros(moment: datetime) -> int:
    """A time as SQLite stores it."""
    if moment.tzinfo is None:
        raise UsageError(f"{moment!r} has no time zone.", remedy="Pass an aware datetime, for example in UTC.")
    return (moment - _EPOCH) // _MICROSECOND


def moment(stored: int) -> datetime:
    """A stored time, in UTC. A column may hold anything: what is no time is read as UNREADABLE or LATEST."""
    try:
        return _EPOCH + stored * _MICROSECOND
    except OverflowError:
        return UNREADABLE if stored < 0 else LATEST
    except TypeError:  # text, which SQLite sorts after every number
        return LATEST


def optional_micros(value: datetime | None) -> int | None:
    """The same, or None."""
    return None if value is None else micros(value)


def optional_moment(stored: int | None) -> datetime | None:
    """The same, or None."""
    return None if stored is None else moment(stored)


def length(value: timedelta | None) -> int | None:
    """A duration in microseconds."""
    return None if value is None else value // _MICROSECOND


def timeout_ms(value: timedelta | None) -> int | None:
    """A lock timeout in milliseconds, at least one."""
    return None if value is None else max(1, value // _MILLISECOND)


def text(value: str | None) -> str | None:
    """A traceback with NULs and lone surrogates, which databases refuse, as readable escapes."""
    if value is None:
        return None
    return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def batch(items: Iterable[Any]) -> str:
    """One JSON parameter."""
    return msgspec.json.encode(list(items)).decode()


def holds(items: Iterable[Hold]) -> str:
    """Claims as [id, fence] pairs."""
    return batch((str(hold.job_id), hold.fence) for hold in items)


# Arguments of verbs


def job_row(job: NewJob) -> dict[str, object]:
    """A job to insert, by the names that enqueue_jobs.sql and declare_job.sql use."""
    return {
        "id": str(job.id),
        "task": job.task,
        "key": job.key,
        "queue": job.queue,
        "priority": job.priority,
        "args": job.args,
        "schedule": job.schedule,
        "declaration": job.declaration,
        "app_version": job.app_version,
        "max_attempts": job.max_attempts,
        "lock_timeout_ms": timeout_ms(job.lock_timeout),
        "run_at": optional_micros(job.run_at),
        "delay": length(job.delay),
        "parent": job.parent,
        "headers": job.headers,
        "limit_key": job.limits[0] if job.limits else None,
        "limits": batch(job.limits) if len(job.limits) > 1 else None,
    }


def completion_row(completion: Completion) -> dict[str, object]:
    """As complete_jobs.sql wants it."""
    return {
        "id": str(completion.hold.job_id),
        "fence": completion.hold.fence,
        "outcome": completion.outcome,
        "result": completion.result,
        "error": text(completion.error),
        "next_run_time": optional_micros(completion.next_run_time),
        "skipped": [micros(nominal) for nominal in completion.skipped],
        "args": completion.args,
        "has_parent": completion.has_parent,
        "keeps": completion.keeps_args,
    }


def failure_row(failure: Failure) -> dict[str, object]:
    """As fail_jobs.sql wants it."""
    return {
        "id": str(failure.hold.job_id),
        "fence": failure.hold.fence,
        "error": text(failure.error),
        "delay": length(failure.delay),
        "final": failure.final,
        "patient": failure.patient,
    }


def release_row(release: Release) -> dict[str, object]:
    """As release_jobs.sql wants it."""
    return {
        "id": str(release.hold.job_id),
        "fence": release.hold.fence,
        "outcome": release.outcome,
        "error": text(release.error),
        "delay": length(release.delay),
        "counted": release.counted,
    }


def worker_row(record: WorkerRecord) -> dict[str, object]:
    """As register_worker.sql wants it."""
    return {
        "id": record.id,
        "host": record.host,
        "pid": record.pid,
        "version": record.version,
        "app_version": record.app_version,
        "queues": batch(record.queues),
        "tasks": batch(record.tasks),
        "concurrency": record.concurrency,
        "alive_for": length(record.alive_for),
    }


def leader(term: Term | None) -> dict[str, object]:
    """The lease and term that guard a leader's write; without a leader, no lease is checked."""
    return {"lease": None if term is None else term.lease, "term": None if term is None else term.number}


def grant(given: Grant) -> dict[str, object]:
    """As heartbeat_lease.sql and resign_lease.sql want it."""
    return {"lease": given.term.lease, "term": given.term.number, "acquisition": str(given.acquisition)}


def lease_request(request: LeaseRequest) -> dict[str, object]:
    """As acquire_lease.sql wants it."""
    return {
        "lease": request.name,
        "holder": request.holder,
        "acquisition": str(request.acquisition),
        "ttl_ms": timeout_ms(request.ttl),
        "waits": length(request.waits),
    }


# Rows


def hold(row: sqlite3.Row) -> Hold:
    """From the first two columns: the job and the fence."""
    return Hold(UUID(row[0]), row[1])


def settled(row: sqlite3.Row) -> Settled:
    """A row of fail_jobs.sql, release_jobs.sql or suspend_jobs.sql."""
    return Settled(hold(row), dead=bool(row["dead"]))


def overdue(row: sqlite3.Row) -> Overdue:
    """What should have been taken."""
    return Overdue(
        lanes=row["lanes"],
        oldest=optional_moment(row["oldest"]),
        newest=optional_moment(row["newest"]),
        marked=bool(row["marked"]),
        expired=bool(row["expired"]),
    )


def claim(row: sqlite3.Row) -> Claim:
    """A row that claim_jobs.sql took."""
    return Claim(
        job_id=UUID(row["id"]),
        fence=row["fence"],
        task=row["task"],
        key=row["key"],
        args=row["args"],
        queue=row["queue"],
        priority=row["priority"],
        schedule=row["schedule"],
        slot_no=row["slot_no"],
        nominal=moment(row["next_run_time"]),
        due_at=moment(row["due_at"]),
        slot_started_at=moment(row["slot_started_at"]),
        locked_at=moment(row["locked_at"]),
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        lock_timeout=row["claim_timeout_ms"] * _MILLISECOND,
        isolated=bool(row["isolated"]),
        steps=row["steps"],
        has_parent=bool(row["has_parent"]),
        progress=row["progress"],
        headers=row["headers"],
        cancelled=bool(row["cancelled"]),
    )


def keys(rows: Iterable[Any]) -> dict[tuple[str, str], UUID]:
    """The rows of read_keys.sql: the ids of jobs by task and key."""
    return {(task, key): UUID(job_id) for task, key, job_id in rows}


def declared(row: sqlite3.Row) -> Declared:
    """A row of read_declared.sql."""
    return Declared(
        id=UUID(row["id"]),
        task=row["task"],
        key=row["key"],
        schedule=row["schedule"],
        declaration=row["declaration"],
        app_version=row["app_version"],
        next_run_time=moment(row["next_run_time"]),
        now=moment(row["now"]),
    )


def job_view(row: sqlite3.Row) -> JobView:
    """A row of read_job.sql or list_jobs.sql."""
    return JobView(
        id=UUID(row["id"]),
        task=row["task"],
        key=row["key"],
        queue=row["queue"],
        priority=row["priority"],
        state=State(row["state"]),
        schedule=row["schedule"],
        slot_no=row["slot_no"],
        next_run_time=moment(row["next_run_time"]),
        due_at=moment(row["due_at"]),
        last_run_time=optional_moment(row["last_run_time"]),
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        fence=row["fence"],
        locked_by=row["locked_by"],
        locked_at=optional_moment(row["locked_at"]),
        heartbeat_at=optional_moment(row["heartbeat_at"]),
        lock_expires_at=optional_moment(row["lock_expires_at"]),
        progress=row["progress"],
        isolated=bool(row["isolated"]),
        created_at=moment(row["created_at"]),
        steps=row["steps"],
        parent_id=None if row["parent_id"] is None else UUID(row["parent_id"]),
    )


def run_view(row: sqlite3.Row) -> RunView:
    """A row of list_runs.sql."""
    return RunView(
        job_id=UUID(row["job_id"]),
        fence=row["fence"],
        slot_no=row["slot_no"],
        task=row["task"],
        key=row["key"],
        queue=row["queue"],
        worker=row["worker"],
        attempt=row["attempt"],
        nominal_time=moment(row["nominal_time"]),
        due_at=moment(row["due_at"]),
        claimed_at=optional_moment(row["claimed_at"]),
        finished_at=moment(row["finished_at"]),
        outcome=Outcome(row["outcome"]),
        error=row["error"],
        result=row["result"],
        steps=row["steps"],
    )


def job_end(row: sqlite3.Row) -> JobEnd:
    """A row of read_results.sql."""
    return JobEnd(
        job_id=UUID(row["job_id"]),
        recurring=bool(row["recurring"]),
        dead=bool(row["dead"]),
        outcome=None if row["outcome"] is None else Outcome(row["outcome"]),
        result=row["result"],
        error=row["error"],
    )


def worker_view(row: sqlite3.Row) -> WorkerView:
    """A row of list_workers.sql."""
    return WorkerView(
        id=row["id"],
        host=row["host"],
        pid=row["pid"],
        version=row["version"],
        app_version=row["app_version"],
        queues=read_names(row["queues"]),
        tasks=read_names(row["tasks"]),
        concurrency=row["concurrency"],
        running=row["running"],
        started_at=moment(row["started_at"]),
        heartbeat_at=moment(row["heartbeat_at"]),
        state=row["state"],
    )


def status_view(counts: sqlite3.Row, unknown: Sequence[sqlite3.Row]) -> StatusView:
    """The two answers of read_status.sql."""
    return StatusView(
        now=moment(counts["now"]),
        workers_alive=counts["workers_alive"],
        ready=counts["ready"],
        suspended=counts["suspended"],
        due=counts["due"],
        running=counts["running"],
        expired=counts["expired"],
        failing=counts["failing"],
        paused=counts["paused"],
        dead=counts["dead"],
        next_due=optional_moment(counts["next_due"]),
        unknown={row["task"]: row["jobs"] for row in unknown},
    )


def found_break(row: sqlite3.Row) -> Break:
    """A row of audit_slots.sql."""
    return Break(**{**dict(row), "kind": BreakKind(row["kind"]), "job_id": UUID(row["job_id"])})


def found_wait(row: sqlite3.Row) -> Wait:
    """A row of audit_waiting.sql."""
    decoded = {"kind": BreakKind(row["kind"]), "job_id": UUID(row["job_id"]), "since": moment(row["since"])}
    return Wait(**{**dict(row), **decoded})


def loss(row: sqlite3.Row) -> LossCount:
    """A row of audit_losses.sql."""
    return LossCount(**{**dict(row), "outcome": Outcome(row["outcome"]), "last_at": moment(row["last_at"])})


def lease_view(row: sqlite3.Row) -> LeaseView:
    """A row of list_leases.sql."""
    times = {name: moment(row[name]) for name in ("acquired_at", "heartbeat_at", "expires_at", "now")}
    return LeaseView(
        name=row["name"],
        holder=row["holder"],
        term=row["term"],
        ttl=row["ttl_ms"] * _MILLISECOND,
        held=bool(row["held"]),
        waiting=row["waiting"],
        metadata=row["metadata"],
        **times,
    )


def metric_view(row: sqlite3.Row) -> MetricView:
    """A row of list_metrics.sql."""
    return MetricView(**{**dict(row), "minute": moment(row["minute"])})
