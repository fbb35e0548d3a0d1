"""When schedules fire next, for people: in local time and in UTC, with the changes of the clock marked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import Struct

from reltask.errors import DeclarationError
from reltask.model.cron import find_zone
from reltask.model.duration import format_duration
from reltask.model.job import State
from reltask.model.schedule import Cron, Schedule, decode, describe, first_slot, upcoming
from reltask.model.views import JobView

FIRES = 5
"""How many fires a view of a schedule has."""


class ScheduleView(Struct, frozen=True, kw_only=True):
    """One schedule: a recurring job, and when it runs."""

    id: UUID
    task: str
    key: str | None
    queue: str
    state: State
    rule: str
    """In words; of a schedule that cannot be read, why."""
    timezone: str
    last_run_time: datetime | None
    next_fires: list[datetime]
    """The next slots, at most five, if each runs on time; an interval that counts from the last run can only be
    estimated."""


class Fire(Struct, frozen=True, kw_only=True):
    """One time at which a schedule fires."""

    utc: datetime
    local: datetime
    note: str
    """How the clock changed since the fire before; empty: it did not."""


def view_schedule(job: JobView) -> ScheduleView:
    """The view of a recurring job."""
    fires: list[datetime] = []
    timezone = "UTC"
    try:
        rule = decode(job.schedule or "")
        words = describe(rule)
        timezone = zone_of(rule)
        fires = upcoming(rule, job.next_run_time, count=FIRES, seed=str(job.id))
    except (DeclarationError, OverflowError) as error:
        words = str(error)
    return ScheduleView(
        id=job.id,
        task=job.task,
        key=job.key,
        queue=job.queue,
        state=job.state,
        rule=words,
        timezone=timezone,
        last_run_time=job.last_run_time,
        next_fires=fires,
    )


def zone_of(rule: Schedule) -> str:
    """The time zone that a schedule is written in."""
    return rule.timezone if isinstance(rule, Cron) else "UTC"


def preview(rule: Schedule, now: datetime, *, count: int, timezone: str | None = None, seed: str = "") -> list[Fire]:
    """The next fires of a schedule that begins now."""
    zone = find_zone(timezone or zone_of(rule))
    fires: list[Fire] = []
    before = now.astimezone(zone)
    for slot in upcoming(rule, first_slot(rule, now, seed), count=count, seed=seed):
        local = slot.astimezone(zone)
        fires.append(Fire(utc=slot.astimezone(UTC), local=local, note=_change(before, local)))
        before = local
    return fires


def _change(before: datetime, after: datetime) -> str:
    change = (after.utcoffset() or timedelta(0)) - (before.utcoffset() or timedelta(0))
    if not change:
        return ""
    return f"clocks went {'forward' if change > timedelta(0) else 'back'} {format_duration(abs(change))} before it"
