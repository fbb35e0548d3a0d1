"""How many ledger rows there are is costly to ask, so it is asked seldom.

`prune_runs` wants to know the time before which rows are beyond the number to keep. Finding it walks over as many index
entries as rows are kept: for a million a fifth of a second, and longer until they are vacuumed. But what is beyond the
number once stays so, because newer rows only become more; so an answer holds until the next one, which is merely a
little later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

EVERY = 600.0
"""Seconds between two questions; by so much history the number kept may be exceeded."""

Moment = TypeVar("Moment")


class PruneCutoff(Generic[Moment]):
    """The last answer, and when it is worth asking again."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._most: int | None = None
        self._before: Moment | None = None
        self._asked_at = 0.0

    async def before(self, most: int, ask: Callable[[], Awaitable[Moment | None]]) -> Moment | None:
        """The time before which rows are too many when `most` are kept; None: nothing is."""
        if self._most != most or self._monotonic() - self._asked_at >= EVERY:
            self._before = await ask()
            self._most, self._asked_at = most, self._monotonic()
        return self._before
