"""Cron expressions: from wall times in a zone to instants.

An expression names wall times, and when daylight saving time starts or ends, an hour of them is missing or occurs
twice. What happens then depends on the hour field alone. If it holds the hour of the change and both hours beside it,
the expression follows elapsed time: the missing hour is left out, the repeated hour runs twice. Otherwise each wall
time runs once: one that does not exist runs at the moment of the jump, one that exists twice runs the first time.

    Europe/Berlin      forward, 02:00 → 03:00                      back, 03:00 → 02:00
    30 2 * * *         03:00                                       02:30, summer time
    */30 * * * *       01:30, 03:00, 03:30: half an hour apart     02:00, 02:30, 02:00, 02:30: half an hour apart

cronsim finds the matching wall times, forward or backward. It is given times without a zone, because its own rule for
these days depends on how a field is written (`*/15 2 * * *` would not run at all on the day of the jump) and does not
cover expressions with seconds.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

from reltask.errors import DeclarationError

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

    from cronsim import CronSim

_SECOND = timedelta(seconds=1)
_HOUR = timedelta(hours=1)
_FIELDS = (
    'Write five fields, minute hour day-of-month month day-of-week, such as "0 9 * * mon-fri", '
    "or six, beginning with the second. A field is *, a value, a range a-b, a list a,b or a step */n."
)


def check_cron(expression: str, timezone: str) -> None:
    """Raise DeclarationError unless both are valid and the expression matches at least one time."""
    find_zone(timezone)
    if next(_walls(expression, datetime(2000, 1, 1)), None) is None:  # noqa: DTZ001 - a wall time has no zone
        raise DeclarationError(f'cron: "{expression}" never matches a date.', remedy="Check its day and its month.")


def nearest(expression: str, timezone: str, moment: datetime, *, forward: bool) -> datetime:
    """The closest instant strictly after (or before) a moment, in UTC."""
    zone = find_zone(timezone)
    closest = min if forward else max
    return closest(
        _search(_walls(expression, start, reverse=not forward), zone, moment, forward=forward)
        for start in _starting_walls(moment, zone, forward=forward)
    )


def find_zone(name: str) -> ZoneInfo:
    """The time zone of that name, or an error that suggests one."""
    from zoneinfo import ZoneInfo  # noqa: PLC0415 - 8 ms at start-up, and most tasks have no time zone

    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        raise DeclarationError(f"timezone: {name!r} is not known.", remedy=_closest_zone(str(name))) from error


def _closest_zone(name: str) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - needed only for an error
    from zoneinfo import available_timezones  # noqa: PLC0415 - as above

    zones = {zone.lower(): zone for zone in available_timezones()}
    close = get_close_matches(name.lower(), zones, n=1)
    return f'Did you mean "{zones[close[0]]}"?' if close else 'Write a name such as "Europe/Berlin".'


def _walls(expression: str, start: datetime, *, reverse: bool = False) -> CronSim:
    """The wall times that match an expression, strictly beyond a start."""
    from cronsim import CronSim, CronSimError  # noqa: PLC0415 - 5 ms at start-up, and most tasks have no cron

    try:
        return CronSim(expression, start, reverse)
    except (CronSimError, ValueError) as error:
        reason = str(error).lower()
        raise DeclarationError(f'cron: "{expression}" cannot be read: {reason}.', remedy=_FIELDS) from error


def _search(walls: CronSim, zone: ZoneInfo, moment: datetime, *, forward: bool) -> datetime:
    """The first matching wall time that is an instant on the wanted side of the moment."""
    for wall in walls:
        instants = _instants(wall, zone, walls.hours)
        beyond = [instant for instant in instants if (instant > moment if forward else instant < moment)]
        if beyond:
            return min(beyond) if forward else max(beyond)
    raise DeclarationError(f"cron: no time matches within 50 years of {moment:%Y-%m-%d}.")


def _instants(wall: datetime, zone: ZoneInfo, hours: set[int]) -> tuple[datetime, ...]:
    """The instants at which a matching wall time runs, by the rule in the module's docstring."""
    first, second = _both_readings(wall, zone)
    if first == second:
        return (first,)
    change = _find_change(zone, first, second)
    if first < second:
        return (first, second) if change.around <= hours else (first,)
    return () if change.around <= hours else (change.turn,)


def _starting_walls(moment: datetime, zone: ZoneInfo, *, forward: bool) -> list[datetime]:
    """Wall times to search from: two, if the wall time occurs twice and the search runs into the other pass.

    02:00 ─── first pass ─── 02:59 │ 02:00 ─── second pass ─── 02:59
              moment, forward ─────►└ also from here
                    also from here ┘◄───── backward, moment
    """
    local = moment.astimezone(zone)
    wall = local.replace(tzinfo=None, fold=0)
    first, second = _both_readings(wall, zone)
    if second <= first or (local.fold == 0) != forward:
        return [wall]
    change = _find_change(zone, first, second)
    return [wall, change.begin - _SECOND if forward else change.end]


def _both_readings(wall: datetime, zone: ZoneInfo) -> tuple[datetime, datetime]:
    """The two readings of a wall time: usually equal, ascending if it exists twice, descending if it does not exist."""
    aware = wall.replace(tzinfo=zone)
    return aware.astimezone(UTC), aware.replace(fold=1).astimezone(UTC)


class _Change(NamedTuple):
    """The wall clock changes at `turn`; it skips or repeats the wall times begin ≤ wall < end."""

    turn: datetime
    begin: datetime
    end: datetime

    @property
    def around(self) -> set[int]:
        """The hours of the day that the change affects, and one more on both sides."""
        touched = (self.end - _SECOND).replace(minute=0, second=0) - self.begin.replace(minute=0, second=0)
        return {(self.begin.hour + n) % 24 for n in range(-1, touched // _HOUR + 2)}


def _find_change(zone: ZoneInfo, one: datetime, other: datetime) -> _Change:
    """The change between the two readings of a wall time, by binary search. Zones change on whole seconds."""
    low, high = (reading.replace(microsecond=0) for reading in sorted([one, other]))
    offset = high.astimezone(zone).utcoffset()
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if middle.astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    unchanged = low.astimezone(zone).replace(tzinfo=None, fold=0) + _SECOND
    changed = high.astimezone(zone).replace(tzinfo=None, fold=0)
    return _Change(high, *sorted([unchanged, changed]))
