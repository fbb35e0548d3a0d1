"""Converts values to SQL Server's types and back; the conventions of every file in `sql/`.

    times       datetime2(6) in UTC: sent without a zone, aware in Python
    lengths     bigint microseconds (:delay, :alive_for, :older_than, …); those named …_ms, and the columns of that
                name, bigint milliseconds. DATEADD takes no bigint, so a length is added in two steps:
                DATEADD(MICROSECOND, @delay % 60000000, DATEADD(MINUTE, @delay / 60000000, @now))
    ids         uniqueidentifier, sent as text
    booleans    bit
    a batch     one JSON text with an array of objects, at most 1 000: OPENJSON(@batch) WITH (fence bigint '$.fence', …)
                claims are {"id", "fence"} objects; a list of names is an array of strings, OPENJSON(@names) its rows
    names       two columns compare only if their collations agree, so names out of JSON go into table variables that
                are declared COLLATE Latin1_General_100_BIN2, as the tables are
    an answer   the only result set that has columns, read by their names; columns and parameters have the same names
                as in the other stores (:id for one job; :holds, :completions, … for a batch)

A file is one batch. It begins with SET NOCOUNT ON; SET XACT_ABORT ON; and assigns each parameter once to a variable of
the right type, because the driver numbers the parameters and guesses their types from their values:

    DECLARE @now datetime2(6) = COALESCE(:now, SYSUTCDATETIME()),
            @worker nvarchar(256) = :worker;

Its statements are inside BEGIN TRY, because the driver hides error numbers; several writes are also inside BEGIN
TRANSACTION … COMMIT TRANSACTION, and the answer is selected after that. It ends with

    END TRY
    BEGIN CATCH
        IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION;
        SELECT ERROR_NUMBER() AS error_number, ERROR_MESSAGE() AS error_message;
    END CATCH;

which also ends a transaction that was open before the batch: with XACT_ABORT it was lost anyway. The caller has the
error in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from reltask.errors import ArgumentsError, UsageError
from reltask.model.audit import Break, BreakKind, LossCount, TaskCount, Wait
from reltask.model.durable import Recording
from reltask.model.job import (
    BeatAnswer,
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

Row = dict[str, Any]
Columns = dict[str, object]

_MICROSECOND = timedelta(microseconds=1)
_MILLISECOND = timedelta(milliseconds=1)
_LONGEST = {"task": 256, "key": 256, "queue": 128}
"""The lengths of a job's name columns, in UTF-16 units. The server would silently cut off the rest."""


def moment(value: datetime | None) -> datetime | None:
    """A time for datetime2: in UTC, without a time zone."""
    if value is None:
        return None
    if value.tzinfo is None:
        raise UsageError(f"{value!r} has no time zone.", remedy="Pass an aware datetime, for example in UTC.")
    return value.astimezone(UTC).replace(tzinfo=None)


def written(value: datetime | None) -> str | None:
    """The same for a JSON batch."""
    plain = moment(value)
    return None if plain is None else plain.isoformat(timespec="microseconds")


def aware(value: object) -> object:
    """A returned value: times become aware, in UTC."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) else value


def length(value: timedelta | None) -> int | None:
    """A duration in microseconds."""
    return None if value is None else value // _MICROSECOND


def milliseconds(value: timedelta | None) -> int | None:
    """Whole milliseconds, rounded up: a lock must not expire early."""
    return None if value is None else max(1, -(-value // _MILLISECOND))


def text(value: str | None) -> str | None:
    """A traceback with NULs and lone surrogates, which databases refuse, as readable escapes."""
    if value is None:
        return None
    return value.replace("\0", "\\0").encode("utf-8", "backslashreplace").decode("utf-8")


def batch(items: Iterable[Any]) -> str:
    """One JSON parameter."""
    return msgspec.json.encode(list(items)).decode()


# Arguments of verbs


def hold(given: Hold) -> Columns:
    """The job id and fence that a run sends with every write."""
    return {"id": str(given.job_id), "fence": given.fence}


def holds(given: Iterable[Hold]) -> str:
    """The same for several runs."""
    return batch(map(hold, given))


def new_job(job: NewJob) -> Columns:
    """A single job, for a statement that takes plain parameters. ArgumentsError if a name does not fit its column."""
    _refuse_long_names(job)
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
        "lock_timeout_ms": milliseconds(job.lock_timeout),
        "run_at": moment(job.run_at),
        "delay": length(job.delay),
        "headers": job.headers,
        "limit_key": job.limits[0] if job.limits else None,
        "limits": batch(job.limits) if len(job.limits) > 1 else None,
    }


def _refuse_long_names(job: NewJob) -> None:
    for name, most in _LONGEST.items():
        units = len((getattr(job, name) or "").encode("utf-16-le", "surrogatepass")) // 2
        if units > most:
            raise ArgumentsError(
                f"The job's {name} has {units} characters; on SQL Server it may have at most {most}.",
                remedy="Choose a shorter one; for a long key, use its hash.",
            )


def new_jobs(given: Sequence[NewJob]) -> str:
    """A batch of jobs, numbered: of two that cannot both be inserted, the first is."""
    return batch(
        {**new_job(job), **_parent(job), "run_at": written(job.run_at), "nth": nth} for nth, job in enumerate(given)
    )


def _parent(job: NewJob) -> Columns:
    """The step that waits for a child's end."""
    if job.parent is None:
        return {}
    parent = job.parent
    step = {"parent_slot": parent.slot_no, "parent_step": parent.step, "parent_nth": parent.nth}
    return {"parent_id": str(parent.job_id), **step}


def request(asked: ClaimRequest) -> Columns:
    """The parameters of a claim."""
    return {
        "worker": asked.worker,
        "token": str(asked.token),
        "queues": batch(asked.queues),
        "tasks": batch(asked.tasks),
        "limit": asked.limit,
        "lock_timeout_ms": milliseconds(asked.lock_timeout),
        "isolated": int(asked.isolated),
        "alive_for": length(asked.alive_for),
        "oldest": asked.oldest,
        "counts": int(asked.counts),
    }


def completions(given: Iterable[Completion]) -> Columns:
    """As complete_jobs.sql wants them."""
    return {"completions": batch(map(_completion, given))}


def failures(given: Iterable[Failure]) -> Columns:
    """As fail_jobs.sql wants them."""
    return {"failures": batch(map(_failure, given))}


def releases(given: Iterable[Release]) -> Columns:
    """As release_jobs.sql wants them."""
    return {"releases": batch(map(_release, given))}


def _completion(given: Completion) -> Columns:
    return {
        **hold(given.hold),
        "outcome": given.outcome,
        "result": given.result,
        "error": text(given.error),
        "next_run_time": written(given.next_run_time),
        "args": given.args,
        "skipped": [written(nominal) for nominal in given.skipped],
        "skipped_count": len(given.skipped),
        "keeps": int(given.keeps_args),
    }


def _failure(given: Failure) -> Columns:
    return {
        **hold(given.hold),
        "error": text(given.error),
        "delay": length(given.delay),
        "final": int(given.final),
        "patient": int(given.patient),
    }


def _release(given: Release) -> Columns:
    return {
        **hold(given.hold),
        "outcome": given.outcome,
        "error": text(given.error),
        "delay": length(given.delay),
        "counted": int(given.counted),
    }


def worker_record(record: WorkerRecord) -> Columns:
    """A worker's row."""
    return {
        **msgspec.structs.asdict(record),
        "queues": batch(record.queues),
        "tasks": batch(record.tasks),
        "alive_for": length(record.alive_for),
    }


def leader(term: Term | None) -> Columns:
    """The lease and term that guard a leader's write; without a leader, no lease is checked."""
    return {"lease": None if term is None else term.lease, "term": None if term is None else term.number}


def grant(given: Grant) -> Columns:
    """The parameters of a holder's heartbeat and resignation."""
    return {**leader(given.term), "acquisition": str(given.acquisition)}


def lease_request(asked: LeaseRequest) -> Columns:
    """The parameters of a try for a lease."""
    return {
        "lease": asked.name,
        "holder": asked.holder,
        "acquisition": str(asked.acquisition),
        "ttl_ms": milliseconds(asked.ttl),
        "waits": length(asked.waits),
    }


# Rows


def claim_answer(rows: Sequence[Row]) -> ClaimAnswer:
    """The first columns are equal in all rows; a single row without a job means that nothing was claimed."""
    first = rows[0]
    return ClaimAnswer(
        claims=[] if first["id"] is None else [claim(row) for row in rows],
        now=first["now"],
        next_due=first["next_due"],
        next_expiry=first["next_expiry"],
        marked=first["marked"],
        limited_at=first["limited_at"],
        fleet=None
        if first["fleet_size"] is None
        else Fleet(first["fleet_rank"], first["fleet_size"], first["fleet_idle"]),
    )


def overdue(row: Row) -> Overdue:
    """What should have been taken."""
    return Overdue(**row)


def claim(row: Row) -> Claim:
    """One claimed slot."""
    same = {name: row[name] for name in Claim.__struct_fields__ if name in row}
    return Claim(
        **same,
        job_id=row["id"],
        nominal=row["next_run_time"],
        lock_timeout=row["claim_timeout_ms"] * _MILLISECOND,
    )


def beat_answer(rows: Sequence[Row]) -> BeatAnswer:
    """The renewed claims, and the worker's claims that it does not know of."""
    return BeatAnswer(
        renewed=frozenset(held(row) for row in rows if not row["stray"]),
        strays=[held(row) for row in rows if row["stray"]],
        cancelled=frozenset(held(row) for row in rows if row["cancelled"]),
    )


def held(row: Row) -> Hold:
    """The job and the fence."""
    return Hold(row["id"], row["fence"])


def settled(_given: Sequence[Settlement | Recording], rows: Sequence[Row]) -> list[Settled]:
    """What was accepted."""
    return [Settled(held(row), dead=row["dead"]) for row in rows]


def number(rows: Sequence[Row]) -> int:
    """The only number of the only row."""
    ((only,),) = (row.values() for row in rows)
    return int(only)


def reclaimed(row: Row) -> Reclaimed:
    """One reclaimed claim."""
    return Reclaimed(
        job_id=row["id"],
        fence=row["fence"],
        task=row["task"],
        slot_no=row["slot_no"],
        worker=row["worker"],
        dead=row["dead"],
    )


def names(given: Sequence[tuple[str, str | None]]) -> str:
    """Names of jobs."""
    return batch({"task": task, "key": key} for task, key in given)


def keys(rows: Iterable[Row]) -> dict[tuple[str, str], UUID]:
    """The ids of jobs by task and key."""
    return {(row["task"], row["key"]): row["id"] for row in rows}


def declared(row: Row) -> Declared:
    """A recurring job's definition."""
    return Declared(**row)


def job_view(row: Row) -> JobView:
    """A job's view."""
    return JobView(**{**row, "state": State(row["state"])})


def run_view(row: Row) -> RunView:
    """A run's view."""
    return RunView(**{**row, "outcome": Outcome(row["outcome"])})


def job_end(row: Row) -> JobEnd:
    """How a job has ended."""
    return JobEnd(**{**row, "outcome": row["outcome"] and Outcome(row["outcome"])})


def worker_view(row: Row) -> WorkerView:
    """A worker's view."""
    names = {name: read_names(row[name]) for name in ("queues", "tasks")}
    return WorkerView(**{**row, **names})


def status_view(row: Row) -> StatusView:
    """The counts."""
    unknown = msgspec.json.decode(row["unknown"] or "[]", type=list[dict[str, Any]])
    return StatusView(**{**row, "unknown": {one["task"]: one["jobs"] for one in unknown}})


def task_count(row: Row) -> TaskCount:
    """A task's line of the audit."""
    return TaskCount(**row)


def found_break(row: Row) -> Break:
    """A break in a job's history."""
    return Break(**{**row, "kind": BreakKind(row["kind"])})


def found_wait(row: Row) -> Wait:
    """Jobs that wait too long."""
    return Wait(**{**row, "kind": BreakKind(row["kind"])})


def loss(row: Row) -> LossCount:
    """Runs that lost their lock."""
    return LossCount(**{**row, "outcome": Outcome(row["outcome"])})


def lease_answer(rows: Sequence[Row]) -> LeaseAnswer:
    """The answer to a try."""
    (row,) = rows
    return LeaseAnswer(**row)


def lease_view(row: Row) -> LeaseView:
    """A lease's view."""
    same = {name: value for name, value in row.items() if name != "ttl_ms"}
    return LeaseView(**{**same, "ttl": row["ttl_ms"] * _MILLISECOND, "held": bool(row["held"])})


def metric_view(row: Row) -> MetricView:
    """One task in one minute."""
    return MetricView(**row)
