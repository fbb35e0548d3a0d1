"""Times as the dashboard's pages and the commands show them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from reltask.cli.show import text
from reltask.web.words import ago, moment, since

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
SOON = NOW + timedelta(milliseconds=1500)


def test_what_has_happened_is_not_in_the_future() -> None:
    """A page's numbers are up to two seconds older than its rows: a heartbeat since then is of this moment."""
    assert ">less than 1 s ago<" in ago(SOON, NOW)
    assert ">in 2 s<" in since(SOON, NOW)
    assert ago(NOW - timedelta(minutes=3), NOW) == since(NOW - timedelta(minutes=3), NOW)
    assert "never" in ago(None, NOW)


def test_times_within_one_minute_can_be_told_apart() -> None:
    """A list of times has seconds if two of them would look the same."""
    assert ">11-18 12:00<" in moment(NOW)
    assert ">11-18 12:00:30<" in moment(NOW + timedelta(seconds=30), to_the_second=True)


def test_a_wait_without_an_end_has_no_date() -> None:
    """A function that waits for its children is stored as due at the end of 8999: nobody needs to know."""
    never = datetime(8999, 12, 31, tzinfo=UTC)
    assert text(never) == "no time limit"
    assert "no time limit" in since(never, NOW)
    assert text(NOW) == "2026-11-18 12:00:00"
