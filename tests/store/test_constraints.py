"""What the tables refuse. One row that a worker cannot read, or compute with, would stop its claims.

Producers check their values before they send them; these rules are for rows that people and other programs insert.
"""

from __future__ import annotations

from datetime import timedelta

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
}


def _refused(backend: Backend) -> Refused:
    if isinstance(backend, MssqlBackend):
        return MSSQL
    return POSTGRES if isinstance(backend, PostgresBackend) else SQLITE


async def test_values_that_would_stop_workers_are_refused(harness: StoreHarness) -> None:
    """The error names the rule, and the table stays as it was."""
    for what, (column, literal, rule) in _refused(harness.backend).items():
        with pytest.raises(Exception, match=rule):  # noqa: PT012 - the note says which of them was not refused
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
