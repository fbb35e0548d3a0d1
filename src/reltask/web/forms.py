"""The address of a list: filters and cursors that can be sent to a colleague."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import UUID

from msgspec import Struct
from starlette.datastructures import QueryParams

from reltask.model.screens import Cursor, ListedState

LONGEST = 300
"""Characters of a filter."""


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs a list shows."""

    state: ListedState = ListedState.DUE
    task: str | None = None
    queue: str | None = None
    q: str | None = None
    """A job's id or key."""

    def address(self, **changes: object) -> str:
        """The list's URL, with these changes."""
        fields = {"state": self.state.value, "task": self.task, "queue": self.queue, "q": self.q, **changes}
        return "jobs?" + urlencode({name: value for name, value in fields.items() if value})

    @property
    def words(self) -> str:
        """The filter in words, for the log of actions."""
        parts = [f"state {self.state}"]
        parts += [f"task {self.task}"] if self.task else []
        parts += [f"queue {self.queue}"] if self.queue else []
        return ", ".join(parts)


def read_filter(query: QueryParams | dict[str, str]) -> JobFilter:
    """From an address; what does not make sense counts as not given."""
    state = str(query.get("state") or "")
    known = state in ListedState._value2member_map_
    return JobFilter(
        state=ListedState(state) if known else ListedState.DUE,
        task=_text(query.get("task")),
        queue=_text(query.get("queue")),
        q=_text(query.get("q")),
    )


def read_cursor(text: str | None) -> Cursor | None:
    """Where a page begins; a text that is none is the first page."""
    moment, _, identity = (text or "").partition("~")
    try:
        at = datetime.fromisoformat(moment)
        return Cursor(at if at.tzinfo else at.replace(tzinfo=UTC), UUID(identity))
    except (ValueError, OverflowError):
        return None


def write_cursor(cursor: Cursor | None) -> str | None:
    """As it stands in an address."""
    return None if cursor is None else f"{cursor.at.isoformat()}~{cursor.id}"


def read_id(text: str) -> UUID | None:
    """A job's id, or None."""
    try:
        return UUID(text.strip())
    except ValueError:
        return None


def _text(value: str | None) -> str | None:
    text = (value or "").strip()[:LONGEST]
    return text if text and text.isprintable() else None
