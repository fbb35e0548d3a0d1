"""What `using(…)` can change about the jobs that are enqueued through it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from msgspec import Struct

from reltask.errors import ArgumentsError, DeclarationError, UsageError
from reltask.model.duration import format_duration
from reltask.model.job import EARLIEST, LATEST
from reltask.model.pace import SHORTEST
from reltask.model.schedule import Schedule
from reltask.model.surroundings import check_headers
from reltask.model.task import PRIORITIES, check_number, check_text

_LONGEST_NAME = 400


class JobOptions(Struct, frozen=True, kw_only=True):
    """What one call of `enqueue` changes about its job."""

    queue: str | None = None
    priority: int | None = None
    key: str | None = None
    at: datetime | None = None
    delay: timedelta | None = None
    schedule: Schedule | None = None
    max_attempts: int | msgspec.UnsetType | None = msgspec.UNSET
    lock_timeout: timedelta | None = None
    replace: bool | None = None
    """Whether an existing schedule with this key is changed to this one."""
    headers: Mapping[str, Any] | None = None

    def with_given(self, given: JobOptions) -> JobOptions:
        """These options, overridden by those that are set in `given`."""
        said = {name: value for name, value in msgspec.structs.asdict(given).items() if value is not None}
        if given.headers is not None:
            check_headers(given.headers)
            said["headers"] = {**(self.headers or {}), **given.headers}
        if given.max_attempts is msgspec.UNSET:
            del said["max_attempts"]
        else:
            said["max_attempts"] = given.max_attempts
        return msgspec.structs.replace(self, **said)


def check_job_options(options: JobOptions) -> None:
    """Refuse options that could never run as intended."""
    check_text("queue", options.queue, UsageError)
    check_text("key", options.key, UsageError)
    check_number("priority", options.priority, UsageError)
    check_number("max_attempts", options.max_attempts, UsageError)
    if options.at is not None:
        _check_time(options.at)
    if options.at is not None and options.delay is not None:
        raise UsageError("Both at= and delay= are given.", remedy="Give one of them.")
    if options.queue == "":
        raise UsageError("queue= needs a name.", remedy="Leave it out for the task's own queue.")
    if options.priority is not None and options.priority not in PRIORITIES:
        raise UsageError(f"priority={options.priority} is outside 0 (first) to 9 (last).")
    if isinstance(options.max_attempts, int) and options.max_attempts < 1:
        raise UsageError(f"max_attempts={options.max_attempts} would never run it.", remedy="Write 1 or more, or None.")
    if options.lock_timeout is not None and options.lock_timeout < SHORTEST:
        raise UsageError(
            f"lock_timeout={format_duration(options.lock_timeout)} is too short for a lock.",
            remedy=f"Write at least {format_duration(SHORTEST)}.",
        )
    if options.schedule is not None and options.key is None:
        raise DeclarationError(
            "A schedule made at run time needs a key.", remedy='Write using(key="…", every=…), so that it exists once.'
        )
    if options.key is not None and not 0 < len(options.key) <= _LONGEST_NAME:
        raise ArgumentsError(f"key= must have 1 to {_LONGEST_NAME} characters.")


def _check_time(at: object) -> None:
    if not isinstance(at, datetime):
        raise UsageError(f"at={at!r} is no datetime.", remedy="Write datetime(..., tzinfo=timezone.utc).")
    if at.tzinfo is None:
        raise UsageError(f"at={at} has no time zone.", remedy="Write datetime(..., tzinfo=timezone.utc).")
    if not EARLIEST <= at < LATEST:
        raise UsageError(
            f"at={at} is outside the years {EARLIEST.year} to {LATEST.year - 1}.",
            remedy="Write a time that can come, or leave it out to run the job at once.",
        )
