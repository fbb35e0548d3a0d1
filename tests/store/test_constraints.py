"""What the tables refuse. One row that a worker cannot read, or compute with, would stop its claims.

Producers check their values before they send them; these rules are for rows that people and other programs insert.
"""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from reltask.errors import ConflictError
from reltask.model.duration import LONGEST
from reltask.model.job import LATEST
from reltask.worker.outcome import fault_of
from tests.store.store_harness import Backend, MssqlBackend, PostgresBackend, StoreHarness, new_job

Refused = dict[str, tuple[str, str, str]]
"""What is wrong: the column, its value, and the constraint that refuses it."""

POSTGRES: Refused = {
    "infinity": ("next_run_time", "'infinity'", "jobs_next_run_time_in_range"),
    "minus infinity": ("next_run_time", "'-infinity'", "jobs_next_run_time_in_range"),
    "year 20000": ("next_run_time", "'20000-01-01'", "jobs_next_run_time_in_range"),
    "year 9000": ("next_run_time", "'9000-01-01 00:00:00+00'", "jobs_next_run_time_in_range"),
    "before Christ": ("next_run_time", "'4000-01-01 BC'", "jobs_next_run_time_in_range"),
    "never retried": ("not_before", "'infinity'", "jobs_not_before_in_range"),
    "created at no time": ("created_at", "'-infinity'", "jobs_times_in_range"),
    "started at no time": ("slot_started_at", "'infinity'", "jobs_times_in_range"),
    "ran at no time": ("last_run_time", "'infinity'", "jobs_times_in_range"),
    "endless lock": ("lock_timeout_ms", "9000000000000000000", "jobs_lock_timeout_in_range"),
    "no lock": ("lock_timeout_ms", "0", "jobs_lock_timeout_in_range"),
    "no attempts": ("max_attempts", "0", "jobs_max_attempts_in_range"),
    "priority": ("priority", "10", "jobs_priority_in_range"),
    "last fence": ("fence", "9223372036854775807", "jobs_counts_in_range"),
    "last attempt": ("attempt", "2147483647", "jobs_counts_in_range"),
    "negative slot": ("slot_no", "-1", "jobs_counts_in_range"),
    "no name": ("task", "''", "jobs_names_fit"),
    "long key": ("key", "repeat('x', 2001)", "jobs_names_fit"),
    "long schedule": ("schedule", "repeat('x', 10001)", "jobs_names_fit"),
    "empty key": ("key", "''", "jobs_names_fit"),
    "lock of a millisecond": ("lock_timeout_ms", "1", "jobs_lock_timeout_in_range"),
    "escape in a task": ("task", r"E'\x1b[2J'", "jobs_names_are_printable"),
    "line in a key": ("key", r"E'a\nb'", "jobs_names_are_printable"),
    "C1 in a queue": ("queue", "U&'\\009b'", "jobs_names_are_printable"),
    "delete in a version": ("app_version", "chr(127)", "jobs_names_are_printable"),
    "long arguments": ("args", "to_json(repeat('x', 16000000))", "jobs_args_fit"),
    "long progress": ("progress", "to_json(repeat('x', 16000000))", "jobs_progress_fits"),
}
SQLITE: Refused = {
    "infinity": ("next_run_time", "9e999", "jobs_next_run_time_in_range"),
    "minus infinity": ("next_run_time", "-9e999", "jobs_next_run_time_in_range"),
    "year 20000": ("next_run_time", "568971820800000000", "jobs_next_run_time_in_range"),
    "year 9000": ("next_run_time", "221845392000000000", "jobs_next_run_time_in_range"),
    "before 1970": ("next_run_time", "-1", "jobs_next_run_time_in_range"),
    "a date": ("next_run_time", "'2025-01-01'", "jobs_next_run_time_in_range"),
    "a fraction": ("not_before", "1.5", "jobs_not_before_in_range"),
    "created on Monday": ("created_at", "'Monday'", "jobs_created_at_in_range"),
    "started at no time": ("slot_started_at", "9e999", "jobs_slot_started_at_in_range"),
    "ran on Monday": ("last_run_time", "'Monday'", "jobs_last_run_time_in_range"),
    "endless lock": ("lock_timeout_ms", "9000000000000000000", "jobs_lock_timeout_in_range"),
    "lock in words": ("lock_timeout_ms", "'2m'", "jobs_lock_timeout_in_range"),
    "no attempts": ("max_attempts", "0", "jobs_max_attempts_in_range"),
    "priority in words": ("priority", "'high'", "jobs_priority_in_range"),
    "last fence": ("fence", "9223372036854775807", "jobs_counts_in_range"),
    "attempts in words": ("attempt", "'none'", "jobs_counts_in_range"),
    "no id": ("id", "'greeting-1'", "jobs_id_is_a_uuid"),
    "id in capitals": ("id", "'0000000A-0000-4000-8000-000000000000'", "jobs_id_is_a_uuid"),
    "no arguments": ("args", "'{'", "jobs_args_are_json"),
    "no name": ("task", "''", "jobs_names_fit"),
    "empty key": ("key", "''", "jobs_names_fit"),
    "lock of a millisecond": ("lock_timeout_ms", "1", "jobs_lock_timeout_in_range"),
    "escape in a task": ("task", "char(27) || '[2J'", "jobs_names_are_printable"),
    "line in a key": ("key", "'a' || char(10)", "jobs_names_are_printable"),
    "C1 in a queue": ("queue", "char(155)", "jobs_names_are_printable"),
    "long arguments": ("args", "json_quote(printf('%.*c', 16000000, 'x'))", "jobs_args_fit"),
}
MSSQL: Refused = {
    "year 9000": ("NextRunTime", "'9000-01-01'", "CK_Jobs_NextRunTime"),
    "before 1970": ("NextRunTime", "'1969-12-31'", "CK_Jobs_NextRunTime"),
    "retried in 9999": ("NotBefore", "'9999-12-31'", "CK_Jobs_NotBefore"),
    "created in 1": ("CreatedAt", "'0001-01-01'", "CK_Jobs_CreatedAt"),
    "started in 9999": ("SlotStartedAt", "'9999-12-31'", "CK_Jobs_SlotStartedAt"),
    "ran in 9999": ("LastRunTime", "'9999-12-31'", "CK_Jobs_LastRunTime"),
    "endless lock": ("LockTimeoutMs", "9000000000000000000", "CK_Jobs_LockTimeout"),
    "lock of centuries": ("LockTimeoutMinutes", "2147483647", "CK_Jobs_LockTimeout"),
    "interval of centuries": ("IntervalMinutes", "2147483647", "CK_Jobs_Interval"),
    "last fence": ("Fence", "9223372036854775807", "CK_Jobs_Counts"),
    "last attempt": ("Attempt", "2147483647", "CK_Jobs_Counts"),
    "lock of a millisecond": ("LockTimeoutMs", "1", "CK_Jobs_LockTimeout"),
    "interval of a millisecond": ("IntervalMs", "1", "CK_Jobs_Interval"),
    "long arguments": ("Args", "N'[\"' + REPLICATE(CAST(N'x' AS nvarchar(max)), 16000000) + N'\"]'", "CK_Jobs_Args"),
}


OTHER_TABLES: Refused = {
    "a run in the year 9000": ("runs.finished_at", "'9000-01-01 00:00:00+00'", "runs_finished_at_in_range"),
    "a run that never ended": ("runs.finished_at", "'infinity'", "runs_finished_at_in_range"),
    "a worker's name in a run": ("runs.worker", "chr(27)", "runs_names_are_printable"),
    "a long error": ("runs.error", "repeat('x', 16000001)", "runs_texts_fit"),
    "a worker's queues": ("workers.queues", """'{"a": 1}'""", "workers_lists_are_lists"),
    "a worker's tasks": ("workers.tasks", "'null'", "workers_lists_are_lists"),
    "a worker's id": ("workers.id", "chr(155)", "workers_names_are_printable"),
    "a worker's host": ("workers.host", "chr(10)", "workers_names_are_printable"),
    "a worker for ever": ("workers.alive_until", "'infinity'", "workers_times_in_range"),
    "a death before Christ": ("workers.dead_at", "'4000-01-01 BC'", "workers_dead_at_in_range"),
    "a lease for ever": ("leases.ttl_ms", "9000000000000000000", "leases_ttl_in_range"),
    "a lease of no length": ("leases.ttl_ms", "0", "leases_ttl_in_range"),
    "the last term": ("leases.term", "9223372036854775807", "leases_term_in_range"),
    "a lease's name": ("leases.name", "chr(7)", "leases_names_are_printable"),
    "a lease without end": ("leases.expires_at", "'infinity'", "leases_times_in_range"),
    "a waiter for ever": ("lease_waiters.waiting_until", "'infinity'", "lease_waiters_times_in_range"),
    "a minute of no time": ("metrics.minute", "'-infinity'", "metrics_minute_in_range"),
    "a negative count": ("metrics.failed", "-1", "metrics_counts_in_range"),
}
"""PostgreSQL's other tables, which only workers write: one of them must not keep people from reading the rest."""
SOUND = {
    "runs": "gen_random_uuid() as job_id, 1 as fence, 1 as slot_no, 't' as task, 'q' as queue, 'w' as worker, "
    "1 as attempt, now() as nominal_time, now() as due_at, now() as finished_at, 'lost' as outcome, 'e' as error",
    "workers": "'w' as id, 'h' as host, 1 as pid, '1' as version, json '[]' as queues, json '[]' as tasks, "
    "1 as concurrency, now() as started_at, now() as heartbeat_at, now() as alive_until, now() as dead_at",
    "leases": "'n' as name, 1 as term, now() as acquired_at, now() as heartbeat_at, 1 as ttl_ms, now() as expires_at",
    "lease_waiters": "'n' as name, 'h' as holder, now() as waiting_until",
    "metrics": "now() as minute, 't' as task, 1 as succeeded, 1 as failed, 1 as seconds, 1 as seconds_most, "
    "1 as late, 1 as late_most",
}


def _row(table: str, column: str = "", literal: str = "") -> str:
    """An insert of a sound row, with another value in one column."""
    parts = [part.rsplit(" as ", 1) for part in SOUND[table].split(", ")]
    columns = {name: value for value, name in parts}
    columns |= {column: literal} if column else {}
    return f"insert into reltask.{table} ({', '.join(columns)}) values ({', '.join(columns.values())})"


@pytest.mark.parametrize("what", OTHER_TABLES)
async def test_values_that_would_stop_readers_are_refused(postgres_url: str, what: str) -> None:
    """The same row is accepted without the value, and refused with it."""
    where, literal, rule = OTHER_TABLES[what]
    table, _, column = where.partition(".")
    connection = await asyncpg.connect(postgres_url)
    try:
        with pytest.raises(asyncpg.CheckViolationError, match=rule):
            await connection.execute(_row(table, column, literal))
        await connection.execute(_row(table))
    finally:
        await connection.close()


def _refused(backend: Backend) -> Refused:
    if isinstance(backend, MssqlBackend):
        return MSSQL
    return POSTGRES if isinstance(backend, PostgresBackend) else SQLITE


async def test_values_that_would_stop_workers_are_refused(harness: StoreHarness) -> None:
    """The error names the rule, and the table stays as it was."""
    for what, (column, literal, rule) in _refused(harness.backend).items():
        with pytest.raises(Exception, match=f"(?i){rule}"):  # noqa: PT012 - the note says which of them was not refused
            await harness.backend.insert_by_hand(column, literal)
            pytest.fail(f"{what} is accepted: {column} = {literal}")
    assert await harness.store.list_jobs() == []


async def test_row_by_hand_is_claimed(harness: StoreHarness) -> None:
    """The values that a person must give are enough, and the defaults break no rule."""
    column, literal = ("Queue", "N'default'") if _refused(harness.backend) is MSSQL else ("queue", "'default'")
    await harness.backend.insert_by_hand(column, literal)
    assert fault_of(await harness.claim_one(), arguments_limit=1_000) is None


async def test_longest_values_are_accepted(harness: StoreHarness) -> None:
    """What a producer may send breaks no rule: one at a time, or many at once."""
    long = {"lock_timeout": LONGEST, "max_attempts": 2**31 - 1, "run_at": LATEST - timedelta(microseconds=1)}
    await harness.add(new_job(**long))
    await harness.add(*[new_job(**long) for _ in range(200)])


async def test_producer_learns_which_rule_it_broke(harness: StoreHarness) -> None:
    """A time that the client did not check is refused by the table, and nothing is inserted."""
    jobs = [new_job(), new_job(run_at=LATEST)]
    with pytest.raises(ConflictError):
        await harness.store.enqueue_jobs(jobs)
    assert await harness.store.list_jobs() == []
