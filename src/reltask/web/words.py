"""Times, lengths and numbers as people read them; and values that are not shown."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec
from markupsafe import Markup

from reltask.logs import short_worker
from reltask.model.escape import escape, escape_lines
from reltask.model.job import EARLIEST, LATEST
from reltask.model.overview import Count
from reltask.model.problems import duration

MASK = "•••"


def shown(value: object) -> object:
    """What a template prints: text from a database without characters that hide or reorder it."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return value if value.isprintable() else "\n".join(escape_lines(value))


def clock(value: datetime | None) -> Markup:
    """A time; the browser shows it in the zone that its user has chosen."""
    if value is None:
        return Markup('<span class="none">–</span>')
    if not EARLIEST <= value < LATEST - timedelta(days=1):
        return Markup('<span class="none">no time limit</span>')
    machine, text = value.isoformat(timespec="milliseconds"), f"{value:%Y-%m-%d %H:%M:%S}"
    return Markup('<time datetime="{}" data-time>{}</time>').format(machine, text)


def moment(value: datetime, *, to_the_second: bool = False) -> Markup:
    """A time without its year, for lists of times; the browser shows it in its user's zone."""
    machine = value.isoformat(timespec="milliseconds")
    kind, text = ("second", f"{value:%m-%d %H:%M:%S}") if to_the_second else ("minute", f"{value:%m-%d %H:%M}")
    return Markup('<time datetime="{}" data-time="{}">{}</time>').format(machine, kind, text)


def ago(value: datetime | None, now: datetime) -> Markup:
    """How long ago something happened. `now` may be older than it: a page reads its numbers before its rows."""
    if value is None or not now < value < LATEST - timedelta(days=1):
        return since(value, now)
    machine = value.isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">less than 1 s ago</time>').format(
        machine, value
    )


def since(value: datetime | None, now: datetime) -> Markup:
    """How long ago, or in how long, with the exact time beside it for those who point at it."""
    if value is None:
        return Markup('<span class="none">never</span>')
    if not EARLIEST <= value < LATEST - timedelta(days=1):
        return Markup('<span class="none">no time limit</span>')
    length = now - value
    text = f"{duration(length)} ago" if length >= timedelta(0) else f"in {duration(-length)}"
    machine = value.isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(machine, value, text)


def seconds(value: float | None) -> str:
    """A length of time that was measured."""
    if value is None:
        return "–"
    if value < 1:
        return f"{value * 1000:.0f} ms" if value >= 0.0005 else "0 ms"  # noqa: PLR2004 - half a millisecond
    return f"{value:.1f} s" if value < 10 else duration(timedelta(seconds=value))  # noqa: PLR2004 - one digit is enough


def number(value: float | Count) -> str:
    """With thousands separated by a thin space; a count that was stopped says so."""
    if isinstance(value, Count):
        return ("> " if value.more else "") + number(value.jobs)
    return f"{value:,}".replace(",", "\u202f")


def worker(value: str | None) -> str:
    """A worker's id without its random part."""
    return "–" if value is None else short_worker(value)


def masked(text: str | None, *, shown_in_full: bool) -> str:
    """JSON for people: names of parameters stay, values are hidden unless the app says otherwise."""
    if text is None:
        return "not kept"
    if shown_in_full:
        try:
            return msgspec.json.format(text, indent=2)
        except msgspec.DecodeError:
            return escape(text)
    try:
        value = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return MASK
    return msgspec.json.format(msgspec.json.encode(_mask(value)).decode(), indent=2)


def _mask(value: Any) -> Any:
    if isinstance(value, dict):
        return {escape(str(name)): MASK for name in value}
    return None if value is None else MASK


def plural(count: int | Count, noun: str) -> str:
    """A number with its noun."""
    jobs = count.jobs if isinstance(count, Count) else count
    return (
        f"{number(count)} {noun}"
        if jobs == 1 and not (isinstance(count, Count) and count.more)
        else f"{number(count)} {noun}s"
    )
