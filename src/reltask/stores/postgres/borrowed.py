"""A user's connection to PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from reltask.errors import UsageError
from reltask.stores.borrowed.link import Link
from reltask.stores.borrowed.transaction import BorrowedConnection
from reltask.stores.postgres.transaction import Verbs
from reltask.stores.statement import load

_READ_COMMITTED = "set transaction isolation level read committed"
"""Replaces the connection's default: at a higher level the first heartbeat would make the completion fail."""


class BorrowedPostgres(Verbs, BorrowedConnection):
    """reltask's verbs on it."""

    def __init__(self, link: Link, now: Callable[[], datetime] | None, schema: str) -> None:
        super().__init__(link, schema)
        self._now = now

    async def _begun(self, timeout: timedelta) -> None:
        await self._link.run(_READ_COMMITTED, None)
        await self.begun(timeout)

    async def which_shard(self, places: Mapping[int, str]) -> int | None:  # noqa: ARG002 - the database says it
        ((number, _),) = await self.verb("read_shard")
        return None if number is None else int(number)

    async def read_now(self) -> datetime:
        now = await super().read_now()
        if now.tzinfo is None:
            raise UsageError(
                "connection= returns times without a time zone, so a schedule's first slot cannot be computed.",
                remedy="With Django set USE_TZ = True.",
            )
        return now

    async def refuse_ended(self) -> None:
        self._refuse_ended()
        await super().refuse_ended()

    async def verb(self, name: str, **columns: object) -> list[Any]:
        (statement,) = load("postgres", name, self._link.style, self._schema)
        return (await self._own(statement, {**columns, "now": self._now() if self._now else None})).rows
