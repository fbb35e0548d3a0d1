"""A user's connection to an SQLite file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from reltask.model.durable import Recording
from reltask.model.job import Completion, Hold
from reltask.stores.borrowed.link import Link
from reltask.stores.borrowed.transaction import BorrowedConnection
from reltask.stores.sqlite.transaction import Verbs
from reltask.stores.sqlite.url import database_path
from reltask.stores.sqlite.values import moment, optional_micros
from reltask.stores.statement import load
from reltask.stores.store import ended_inside

_FILES = "pragma database_list"


class BorrowedSqlite(Verbs, BorrowedConnection):
    """reltask's verbs on it."""

    if_open = (
        f"{BorrowedConnection.if_open} With autocommit=False sqlite3 always has one open: remove that, or use True."
    )

    def __init__(self, link: Link, now: Callable[[], datetime] | None, schema: str) -> None:
        super().__init__(link, schema)
        self._given_now = now

    async def _begun(self, timeout: timedelta) -> None:
        """Nothing to set: the connection's own timeout decides how long to wait for other writers."""

    async def holds_job(self, worker: str, hold: Hold) -> bool:
        # A write, because a transaction that begins with a read may be refused when it writes later.
        return await super().guard_job(worker, hold)

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        self._refuse_ended()
        return await super().guard_job(worker, hold)

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        self._refuse_ended()
        return await super().complete_job(worker, completion)

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        self._refuse_ended()
        return await super().record_steps(worker, recording)

    def _refuse_ended(self) -> None:
        """SQLAlchemy and Django say what they have begun; SQLite itself knows what a statement has ended."""
        super()._refuse_ended()
        if not _driver(self.connection).in_transaction:
            raise ended_inside()

    async def which_shard(self, places: Mapping[int, str]) -> int | None:
        # By its file: a transaction that begins with a read may be refused when it writes later.
        rows = (await self._link.run(_FILES, None)).dicts()
        here = next((Path(row["file"]) for row in rows if row["name"] == "main" and row["file"]), None)
        return next((number for number, place in places.items() if here and _is_file(here, place)), None)

    async def read_now(self) -> datetime:
        return moment(await self._micros())

    async def verb(self, name: str, **parameters: object) -> list[Any]:
        values = {"now": await self._micros(), **parameters}
        statements = load("sqlite", name, self._link.style, self._schema)
        return [(await self._own(statement, values)).rows for statement in statements]

    async def _micros(self) -> int:
        (statement,) = load("sqlite", "read_now", self._link.style, self._schema)
        given = None if self._given_now is None else self._given_now()
        ((now,),) = (await self._own(statement, {"now": optional_micros(given)})).rows
        return int(now)


def _is_file(here: Path, url: str) -> bool:
    path = Path(database_path(url))
    return path.exists() and here.samefile(path)


def _driver(connection: Any) -> Any:
    """The connection of sqlite3, or of aiosqlite, below the user's."""
    connection = getattr(connection, "sync_session", None) or getattr(connection, "sync_connection", connection)
    if hasattr(connection, "vendor"):  # Django's
        return connection.connection
    if hasattr(connection, "flush"):  # a session's
        connection = connection.connection()
    return connection.connection.driver_connection if hasattr(connection, "dialect") else connection
