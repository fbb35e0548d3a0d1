"""The time before which ledger rows exceed the number to keep, cached because it is costly to find.

To find this time for `prune_runs`, the database reads as many index entries as rows are kept: a fifth of a second for a
million, and more until they are vacuumed. A row that exceeds the number once always will, because rows are only added
at the newer end. So an old answer stays valid; a new one is only a little later.

On a small tier the query may time out. Then rows are pruned by their age and by the last answer: a ledger that is not
pruned at all would grow until the database is full.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Generic, TypeVar

from reltask.errors import DatabaseError

EVERY = 600.0
"""Seconds between two queries; the number of rows kept may be exceeded by what is added in this time."""

Moment = TypeVar("Moment")


class PruneCutoff(Generic[Moment]):
    """The last answer, and when to query again."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._most: int | None = None
        self._before: Moment | None = None
        self._asked_at = 0.0

    async def before(self, most: int, ask: Callable[[], Awaitable[Moment | None]]) -> Moment | None:
        """The time before which rows exceed the `most` that are kept; None: there are not that many."""
        if self._most != most or self._monotonic() - self._asked_at >= EVERY:
            if self._most != most:
                self._before = None
            with suppress(DatabaseError):  # if the database is down, the prune itself says so
                self._before = await ask()
            self._most, self._asked_at = most, self._monotonic()
        return self._before
