"""When a job runs next. Pure arithmetic: all times are aware UTC datetimes of the database's clock.

There are two kinds of schedule. A *plain* `every` counts from the last run, so it cannot miss slots.
A *grid* (`every` with `align=True`, or `cron`) has fixed points, and a late or long run misses some of them:

    grid       ──●────────●────────●────────●────────●────────●──
                 1        2        3        4        5        6
                 nominal              started    finished

    missed="once"   next is 4: one run covers all points missed before it started
    missed="all"    next is 2, then 3, 4 …: each point runs; the oldest beyond `missed_limit` are skipped
    missed="skip"   next is 4 if it is at most `missed_grace` late, else 5; the points before it are skipped,
                    each with a row in the ledger

The next slot is always strictly later than the last one, even if the clock is set back. Missed points are listed newest
first, at most `missed_limit` + `LISTED` of them, so after a long outage of a frequent schedule the cost stays bounded.

A schedule may have a *start*, before which it has no slots, an *end*, after which it has none and its job is removed,
and a *jitter*, by which each slot is later than its point:

    points       ──●─────────────●─────────────●───
    slots          └──○          └────────○    └─○    at most the jitter later, and before the next point

The part of the jitter that a slot gets is a hash of the job's id and the point. So the jobs of one schedule spread
over the jitter, each keeps its own pattern, every worker computes the same time, and a simulated history repeats.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Literal, NamedTuple, TypeGuard, get_args

import msgspec

from reltask.errors import DeclarationError
from reltask.model.cron import check_cron, nearest
from reltask.model.duration import Duration, format_duration, parse_duration
from reltask.model.job import EARLIEST, LATEST

Missed = Literal["once", "all", "skip"]

LISTED = 1000
"""The most skipped slots that are listed (the newest), and the highest `missed_limit`."""

SHORTEST_INTERVAL = timedelta(milliseconds=10)
"""A job with a shorter one would keep a worker busy with nothing else. Rows with one fail as unreadable."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)
_GRACE = timedelta(minutes=1)
_NONE = timedelta(0)
_SHORTEST_GRACE = timedelta(seconds=1)


class Every(msgspec.Struct, frozen=True):
    """At an interval: from the start of the last run, from its end, or on a grid counted from 1970-01-01 UTC."""

    interval: timedelta
    align: bool = False
    after_finish: bool = False
    missed: Missed = "once"
    missed_limit: int = 100
    missed_grace: timedelta = _GRACE
    start: datetime | None = None
    end: datetime | None = None
    jitter: timedelta = _NONE

    def __post_init__(self) -> None:
        if self.interval < SHORTEST_INTERVAL:
            raise DeclarationError(
                f"every: {format_duration(self.interval)} is too short for an interval.",
                remedy=f'Write a duration of at least {format_duration(SHORTEST_INTERVAL)}, such as "10m".',
            )
        if self.align and self.after_finish:
            raise DeclarationError(
                "align and after_finish cannot be combined: a grid does not wait for a run to finish.",
                remedy="Keep one of them.",
            )
        _check_missed(self)
        _check_bounds(self)
        if self.jitter > self.interval:
            raise DeclarationError(
                f"jitter={format_duration(self.jitter)} is longer than the interval.", remedy="Write a shorter one."
            )
        if not self.align and (self.missed, self.missed_limit, self.missed_grace) != ("once", 100, _GRACE):
            raise DeclarationError(
                "missed needs a grid: an interval that counts from the last run cannot miss a slot.",
                remedy="Add align=True, or remove the options that begin with missed.",
            )


class Cron(msgspec.Struct, frozen=True):
    """At the wall times of a cron expression in a time zone."""

    expression: str
    timezone: str = "UTC"
    missed: Missed = "once"
    missed_limit: int = 100
    missed_grace: timedelta = _GRACE
    start: datetime | None = None
    end: datetime | None = None
    jitter: timedelta = _NONE

    def __post_init__(self) -> None:
        check_cron(self.expression, self.timezone)
        _check_missed(self)
        _check_bounds(self)


Schedule = Every | Cron


class Next(NamedTuple):
    """The next slot's nominal time, and the grid points skipped before it, oldest first."""

    at: datetime
    skipped: tuple[datetime, ...]


# What the user writes, and what the row holds.


def make_schedule(
    *,
    every: Duration | None = None,
    cron: str | None = None,
    timezone: str | None = None,
    align: bool = False,
    after_finish: bool = False,
    missed: Missed = "once",
    missed_limit: int = 100,
    missed_grace: Duration = "1m",
    start: datetime | None = None,
    end: datetime | None = None,
    jitter: Duration | None = None,
) -> Schedule | None:
    """The schedule of a declaration, None if it has none, or an error that says what to write instead."""
    grace = _duration(missed_grace, "missed_grace")
    spread = _NONE if jitter is None else _duration(jitter, "jitter")
    if every is not None and cron is not None:
        raise DeclarationError("every and cron were both given.", remedy="Keep one of them.")
    if cron is None and timezone is not None:
        raise DeclarationError(
            "timezone needs cron: every counts elapsed time, which is the same in all time zones.",
            remedy=f'Write cron="0 9 * * *", timezone="{timezone}", or remove timezone.',
        )
    if every is None and (align or after_finish):
        raise DeclarationError(
            "align and after_finish need every.", remedy='Write every="10m" with them, or remove them.'
        )
    if every is not None:
        return Every(_duration(every, "every"), align, after_finish, missed, missed_limit, grace, start, end, spread)
    if cron is not None:
        expression, zone = " ".join(str(cron).split()), "UTC" if timezone is None else timezone
        return Cron(expression, zone, missed, missed_limit, grace, start, end, spread)
    if (start, end, jitter) != (None, None, None):
        raise DeclarationError(
            "start, end and jitter need a schedule.", remedy='Write every="10m" or cron="0 9 * * *" with them.'
        )
    if missed != "once":
        raise DeclarationError("missed needs a schedule.", remedy='Write cron="0 9 * * *" with it, or remove it.')
    return None


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    """The JSON of a schedule: the arguments of `make_schedule`, as a user would write them."""

    every: str | None = None
    cron: str | None = None
    timezone: str | None = None
    align: bool = False
    after_finish: bool = False
    missed: Missed = "once"
    missed_limit: int = 100
    missed_grace: str = "1m"
    start: datetime | None = None
    end: datetime | None = None
    jitter: str | None = None


_DEFAULTS = msgspec.structs.asdict(_Stored())


def encode(schedule: Schedule) -> str:
    """The schedule as readable JSON: `{"every":"10m","align":true}`. Defaults are left out."""
    stored = _Stored(
        missed=schedule.missed,
        missed_limit=schedule.missed_limit,
        missed_grace=format_duration(schedule.missed_grace),
        start=schedule.start,
        end=schedule.end,
        jitter=format_duration(schedule.jitter) if schedule.jitter else None,
    )
    if isinstance(schedule, Every):
        stored.every = format_duration(schedule.interval)
        stored.align, stored.after_finish = schedule.align, schedule.after_finish
    else:
        stored.cron = schedule.expression
        stored.timezone = None if schedule.timezone == "UTC" else schedule.timezone
    written = {name: value for name, value in msgspec.structs.asdict(stored).items() if value != _DEFAULTS[name]}
    return msgspec.json.encode(written).decode()


@lru_cache(maxsize=1024)
def decode(text: str) -> Schedule:
    """The schedule that `encode` wrote. Cached, because workers read the same few repeatedly."""
    try:
        schedule = make_schedule(**msgspec.structs.asdict(msgspec.json.decode(text, type=_Stored)))
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _not_a_schedule(text, str(error)) from error
    if schedule is None:
        raise _not_a_schedule(text, "it has neither every nor cron")
    return schedule


def describe(schedule: Schedule) -> str:
    """The schedule in a few words."""
    more = f" from {schedule.start:%Y-%m-%d %H:%M %Z}" if schedule.start else ""
    more += f" until {schedule.end:%Y-%m-%d %H:%M %Z}" if schedule.end else ""
    more += f" with up to {format_duration(schedule.jitter)} of jitter" if schedule.jitter else ""
    if isinstance(schedule, Cron):
        return f"cron {schedule.expression} {schedule.timezone}{more}"
    manner = " on the grid" if schedule.align else " after finishing" if schedule.after_finish else ""
    return f"every {format_duration(schedule.interval)}{manner}{more}"


# Slots. `seed` is what makes the jitter of one job differ from that of others: its id. Callers ask `has_ended`.


def first_slot(schedule: Schedule, now: datetime, seed: str = "") -> datetime:
    """The first slot of a new job: `every` at once, on a grid at its next point, cron strictly after now."""
    if _is_plain(schedule):
        return max(now, schedule.start or now)
    return _after(schedule, now - _TICK if isinstance(schedule, Every) else now, seed)


def has_ended(schedule: Schedule, slot: datetime) -> bool:
    """Whether there is no such slot, because it would be after the end."""
    return schedule.end is not None and slot > schedule.end


def next_slot(schedule: Schedule, *, nominal: datetime, started: datetime, finished: datetime, seed: str = "") -> Next:
    """The slot after the one at `nominal`, whose first claim was at `started` and whose body ended at `finished`."""
    if _is_plain(schedule):
        counted_from = finished if schedule.after_finish else started
        late = _share(seed, nominal, schedule.jitter)
        # The second term is later only if the database's clock was set back.
        return Next(max(counted_from + schedule.interval + late, nominal + _TICK), ())
    if schedule.missed == "once":
        return Next(_after(schedule, max(nominal, started), seed), ())
    passed = _newest_first(schedule, seed, after=nominal, until=min(finished, schedule.end or finished))
    if schedule.missed == "all":
        kept = list(islice(passed, schedule.missed_limit))
    else:
        kept = [newest for newest in islice(passed, 1) if finished <= newest + schedule.missed_grace]
    at = kept[-1] if kept else _after(schedule, max(nominal, finished), seed)
    skipped = _newest_first(schedule, seed, after=nominal, until=at - _TICK)
    return Next(at, tuple(islice(skipped, LISTED))[::-1])


def is_missed(schedule: Schedule, *, nominal: datetime, claimed_at: datetime, attempt: int) -> bool:
    """Whether a slot is claimed too late to run: only with missed="skip", and only at its first attempt."""
    return schedule.missed == "skip" and attempt <= 1 and claimed_at > nominal + schedule.missed_grace


def upcoming(schedule: Schedule, first: datetime, *, count: int, seed: str = "") -> list[datetime]:
    """The slots from `first` on, if each runs on time and takes no time; fewer, if the schedule ends before."""
    slots: list[datetime] = []
    while len(slots) < count and not has_ended(schedule, first):
        slots.append(first)
        first = next_slot(schedule, nominal=first, started=first, finished=first, seed=seed).at
    return slots


def next_after_change(
    old: Schedule | None, new: Schedule, *, next_run_time: datetime, now: datetime, seed: str = ""
) -> datetime:
    """Where the unclaimed slot of a job moves when its declaration changes."""
    if _is_plain(new) and _is_plain(old):
        soon = min(next_run_time, now + new.interval)
        return max(soon, new.start or soon)
    if old is not None and _points(old) == _points(new):
        return next_run_time  # only the handling of missed slots changed: a slot that is already due stays due
    return first_slot(new, now, seed)


def _is_plain(schedule: Schedule | None) -> TypeGuard[Every]:
    return isinstance(schedule, Every) and not schedule.align


def _points(schedule: Schedule) -> tuple[object, ...]:
    """What determines a schedule's points."""
    bounds = (schedule.start, schedule.end, schedule.jitter)
    if isinstance(schedule, Every):
        return schedule.interval, schedule.align, *bounds
    return schedule.expression, schedule.timezone, *bounds


# Slots of a grid: those strictly after and strictly before a moment.


def _after(grid: Schedule, moment: datetime, seed: str) -> datetime:
    if grid.start is not None and moment < grid.start:
        return _slot(grid, _point_after(grid, grid.start - _TICK), seed)
    if grid.jitter:
        last = _point_before(grid, moment + _TICK)
        slot = _slot(grid, last, seed)
        if slot > moment and last >= (grid.start or last):
            return slot
    return _slot(grid, _point_after(grid, moment), seed)


def _before(grid: Schedule, moment: datetime, seed: str) -> datetime:
    point = _point_before(grid, moment)
    slot = _slot(grid, point, seed)
    return slot if slot < moment else _slot(grid, _point_before(grid, point), seed)


def _slot(grid: Schedule, point: datetime, seed: str) -> datetime:
    """The slot of a point: with jitter, a little later, but before the next point."""
    if not grid.jitter:
        return point
    return point + _share(seed, point, min(grid.jitter, _point_after(grid, point) - point))


def _share(seed: str, moment: datetime, whole: timedelta) -> timedelta:
    """A part of a duration, less than all of it, that depends on nothing but seed and moment."""
    if not whole:
        return _NONE
    digest = hashlib.blake2b(f"{seed}@{moment.timestamp():.6f}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) * (whole // _TICK) >> 64) * _TICK


def _point_after(grid: Schedule, moment: datetime) -> datetime:
    if isinstance(grid, Cron):
        return nearest(grid.expression, grid.timezone, moment, forward=True)
    return _EPOCH + ((moment - _EPOCH) // grid.interval + 1) * grid.interval


def _point_before(grid: Schedule, moment: datetime) -> datetime:
    if isinstance(grid, Cron):
        return nearest(grid.expression, grid.timezone, moment, forward=False)
    return _EPOCH - ((_EPOCH - moment) // grid.interval + 1) * grid.interval


def _newest_first(grid: Schedule, seed: str, *, after: datetime, until: datetime) -> Iterator[datetime]:
    """The slots of a grid later than `after`, not later than `until`."""
    slot = _before(grid, until + _TICK, seed)
    while slot > after:
        yield slot
        slot = _before(grid, slot, seed)


# Checks.


def check_grace(schedule: Schedule | None) -> None:
    """Refuse a declaration whose slots would all be skipped. An existing row with such a schedule is still read."""
    if schedule is not None and schedule.missed == "skip" and schedule.missed_grace < _SHORTEST_GRACE:
        raise DeclarationError(
            f"missed_grace={format_duration(schedule.missed_grace)} is too short: every slot would be skipped.",
            remedy=f"Write at least {format_duration(_SHORTEST_GRACE)}.",
        )


def _check_missed(schedule: Every | Cron) -> None:
    if schedule.missed not in get_args(Missed):
        raise DeclarationError(f"missed: {schedule.missed!r} is unknown.", remedy='Write "once", "all" or "skip".')
    if schedule.missed_limit not in range(1, LISTED + 1):
        raise DeclarationError(
            f"missed_limit: {schedule.missed_limit!r} is out of range.", remedy=f"Write a number from 1 to {LISTED}."
        )


def _check_bounds(schedule: Every | Cron) -> None:
    for name in ("start", "end"):
        value = getattr(schedule, name)
        if value is None:
            continue
        if not isinstance(value, datetime) or value.tzinfo is None:
            raise DeclarationError(
                f"{name}={value!r} is not a time with a time zone.", remedy="Write datetime(..., tzinfo=timezone.utc)."
            )
        if not EARLIEST <= value < LATEST:
            raise DeclarationError(f"{name}={value} is outside the years {EARLIEST.year} to {LATEST.year - 1}.")
    if schedule.start is not None and schedule.end is not None and schedule.end < schedule.start:
        raise DeclarationError("The end of the schedule is before its start.", remedy="Exchange them.")
    if schedule.jitter < _NONE:
        raise DeclarationError("jitter cannot be negative.", remedy="Leave it out.")


def _duration(value: Duration, name: str) -> timedelta:
    try:
        return parse_duration(value, name=name)
    except ValueError as error:
        raise DeclarationError(str(error)) from error


def _not_a_schedule(text: str, reason: str) -> DeclarationError:
    return DeclarationError(
        f"{text!r} is not a stored schedule: {reason}.",
        remedy='It looks like {"every":"10m"} or {"cron":"0 9 * * mon-fri","timezone":"Europe/Berlin"}.',
    )
