"""How a server is asked. Each store sends in its own way; what is sent again, and when, is the same for all of them.

_ask ──► policy: retry, breaker ──► _send
             ▲                        │ TransientError: again        certainly not applied
             └────────────────────────┴ AmbiguousError: by its kind  perhaps applied
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeVar

from reltask.errors import AmbiguousError, ConflictError, ReltaskError
from reltask.model.job import Settled
from reltask.resilience import Policy
from reltask.stores.store import SENT_ONCE

A = TypeVar("A")
T = TypeVar("T")
Rows = list[Any]
Columns = dict[str, object]
Kind = Literal["read", "repeatable", "once"]
"""What a lost answer means: nothing; send it again; or only the caller can tell."""


class Asking(ABC):
    """A store that sends verbs to a server."""

    _policy: Policy | None

    @abstractmethod
    async def _send(self, verb: str, columns: Columns, *, writes: bool) -> Rows:
        """Send once."""

    async def _ask(self, kind: Kind, verb: str, **columns: object) -> Rows:
        """Send a verb, through the policy if there is one."""
        writes = kind != "read"
        if self._policy is None:
            return await self._send(verb, columns, writes=writes)
        return await self._policy.call(
            verb,
            lambda: self._send(verb, columns, writes=writes),
            resend_ambiguous=kind != "once",
            retry=verb not in SENT_ONCE,
        )

    async def _insert(
        self, verb: str, first: Callable[[], Awaitable[Rows]], again: Callable[[], Awaitable[Rows]], *, doubtful: bool
    ) -> tuple[Rows, bool]:
        """The rows, and whether an earlier sending may have inserted what they show: then `again` has sent the last."""

        async def insert() -> Rows:
            nonlocal doubtful
            try:
                return await (again() if doubtful else first())
            except AmbiguousError:
                doubtful = True
                raise

        if self._policy is None:
            return await insert(), doubtful
        rows = await self._policy.call(verb, insert, resend_ambiguous=True)
        return rows, doubtful

    async def _settle(
        self,
        verb: str,
        worker: str,
        batch: Sequence[T],
        columns: Callable[[Sequence[T]], Columns],
        read: Callable[[Sequence[T], Rows], list[Settled]],
    ) -> list[Settled]:
        """Settle a batch whole. If a constraint refuses it, row by row, so that one bad row harms no other."""
        if not batch:
            return []
        try:
            return read(batch, await self._ask("once", verb, worker=worker, **columns(batch)))
        except ConflictError:
            if len(batch) == 1:
                return []
        return await one_by_one(batch, lambda one: self._settle(verb, worker, [one], columns, read))


async def one_by_one(batch: Sequence[T], settle: Callable[[T], Awaitable[list[A]]]) -> list[A]:
    """Settle each in a transaction of its own. Once one has landed, an error is doubt: it says nothing of that one."""
    settled: list[A] = []
    for one in batch:
        try:
            settled += await settle(one)
        except ReltaskError as error:
            if not settled:
                raise
            raise AmbiguousError(f"{len(settled)} of {len(batch)} outcomes were written. {error}") from error
    return settled
