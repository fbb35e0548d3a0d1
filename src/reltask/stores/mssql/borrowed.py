"""A user's connection to SQL Server.

reltask's batches catch their errors on the server and return the error number, with every library. The user's own
statements raise the library's errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from functools import cache
from uuid import UUID

from reltask.model.durable import Recording
from reltask.model.job import Completion, Hold
from reltask.stores.borrowed.link import Link
from reltask.stores.borrowed.transaction import BorrowedConnection
from reltask.stores.mssql.errors import answered
from reltask.stores.mssql.transaction import Verbs
from reltask.stores.mssql.values import Row, aware, moment
from reltask.stores.statement import Statement, Style, compile_statement, read_sql

_READ_COMMITTED = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
"""Replaces the connection's isolation level, and stays set. A lower level would read uncommitted claims, a higher one
would block heartbeats, and with snapshot isolation the first heartbeat would make the completion fail."""


class BorrowedMssql(Verbs, BorrowedConnection):
    """reltask's verbs on it."""

    def __init__(self, link: Link, now: Callable[[], datetime] | None, schema: str) -> None:
        super().__init__(link, schema)
        self._now = now

    async def _begun(self, timeout: timedelta) -> None:  # noqa: ARG002 - how long to wait is the connection's own setting
        await self._link.run(_READ_COMMITTED, None)

    async def which_shard(self, places: Mapping[int, str]) -> int | None:  # noqa: ARG002 - the database says it
        (row,) = await self.verb("read_shard")
        number = row["shard"]
        return number if isinstance(number, int) else None

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        self._refuse_ended()
        return await super().guard_job(worker, hold)

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        self._refuse_ended()
        return await super().complete_job(worker, completion)

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        self._refuse_ended()
        return await super().record_steps(worker, recording)

    async def verb(self, name: str, **columns: object) -> list[Row]:
        given = {**columns, "now": None if self._now is None else moment(self._now())}
        nothing = frozenset(column for column, value in given.items() if value is None)
        rows = (await self._own(_batch(name, self._link.style, self._schema, nothing), given)).dicts()
        if rows and "error_number" in rows[0]:
            # The transaction is still open, so nothing has been applied.
            raise answered(rows[0]["error_number"], rows[0]["error_message"] or "", verb=name, writes=False)
        return [{column: _value(column, value) for column, value in row.items()} for row in rows]


@cache
def _batch(verb: str, style: Style, schema: str, nothing: frozenset[str]) -> Statement:
    """A verb's batch with NULL written in place of the parameters in `nothing`.

    For a parameter that is None, the driver asks the server for its type. The server may not know it, and on some
    servers that error rolls back the open transaction: the user's own writes would be lost silently.
    """
    sql = read_sql("mssql", verb, schema)
    for name in nothing:
        sql = re.sub(rf":{name}\b", "NULL", sql)
    return compile_statement(sql, style)


def _value(column: str, value: object) -> object:
    """Makes times aware, in UTC, and ids UUIDs, which pyodbc returns as text."""
    return UUID(value) if column == "id" and isinstance(value, str) else aware(value)
