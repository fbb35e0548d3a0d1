"""A task's own transaction: its writes, then the fenced completion, then COMMIT.

It runs on its own connection, with the server's default planner settings, in READ COMMITTED. The
server limits how long a statement may take and how long the transaction may idle, so that a frozen
worker cannot hold its rows for longer than its lock. An error in the user's own SQL is raised
unchanged, as the driver's. A broken connection is a TransientError: the server has rolled back.

The user's own statement may end the transaction: `rollback`, `commit and chain`, `rollback; begin`.
A completion sent after that would be committed without the writes. So before it the server is asked
whether the transaction is still the one that was begun. What a task leaves in its session is removed
when the connection is given back (`connections.py`).
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from reltask.model.durable import NewSignal, Recording
from reltask.model.job import Completion, Hold, NewJob
from reltask.model.lease import Term
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import Connections
from reltask.stores.postgres.driver import asyncpg
from reltask.stores.postgres.durable import receivers, recorded, sent
from reltask.stores.postgres.errors import quotable, statement_failed
from reltask.stores.postgres.keys import replacement, unique_jobs
from reltask.stores.statement import compile_statement, load
from reltask.stores.store import ended_inside

OVERTIME = 2.0
"""Seconds by which the client waits longer for a user's statement than the server allows."""


class Verbs(ABC):
    """The verbs of a transaction, on a connection of the store's or of the user's."""

    _began: int

    @abstractmethod
    async def verb(self, name: str, **columns: object) -> list[Any]:
        """One of reltask's own statements, inside this transaction."""

    async def begun(self, timeout: timedelta) -> None:
        """Send the first statement: set the limits, and note which transaction this is."""
        ((self._began, *_),) = await self.verb("begin_transaction", timeout_ms=patience(timeout))

    async def refuse_ended(self) -> None:
        """Refuse to complete anything in another transaction than the one that was begun."""
        ((is_same,),) = await self.verb("read_transaction", began=self._began)
        if not is_same:
            raise ended_inside()

    async def read_now(self) -> datetime:
        ((now,),) = await self.verb("read_now")
        return cast("datetime", now)

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        verb, columns = values.enqueueing(jobs)
        rows = await self.verb(verb, **columns)
        return {values.as_uuid(job_id) for job_id, inserted in rows if inserted}

    async def enqueue_unique(self, jobs: Sequence[NewJob]) -> set[UUID]:
        rows = await self.verb("enqueue_unique", **unique_jobs(jobs))
        return {values.as_uuid(job_id) for job_id, inserted in rows if inserted}

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self.verb("read_unique", **values.names(names)))

    async def replace_job(self, job: NewJob) -> UUID | None:
        rows = await self.verb("replace_job", **replacement(job))
        return values.as_uuid(rows[0][0]) if rows else None

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self.verb("read_keys", **values.names(names)))

    async def holds_job(self, worker: str, hold: Hold) -> bool:
        return bool(await self.verb("read_holds", worker=worker, **values.holds([hold])))

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        await self.refuse_ended()
        return bool(await self.verb("guard_job", worker=worker, id=hold.job_id, fence=hold.fence))

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        return await self._end("complete_jobs", worker, completion.hold, values.completions([completion]))

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        return await self._end("record_steps", worker, recording.hold, recorded([recording]))

    async def _end(self, verb: str, worker: str, hold: Hold, columns: values.Columns) -> bool:
        await self.refuse_ended()
        if await self.verb(verb, worker=worker, **columns):
            return True
        # lost, or locked by another session: wait for the row, and look again
        if not await self.guard_job(worker, hold):
            return False
        return bool(await self.verb(verb, worker=worker, **columns))

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        return receivers(await self.verb("send_signals", **sent(signals))) if signals else {}

    async def guard_lease(self, term: Term) -> bool:
        return bool(await self.verb("guard_lease", **values.leader(term)))


class PostgresTransaction(Verbs):
    """What happens between BEGIN and COMMIT."""

    def __init__(
        self,
        connection: asyncpg.Connection,
        now: Callable[[], datetime] | None,
        *,
        timeout: timedelta,
        command_timeout: float,
        schema: str,
    ) -> None:
        """`timeout` limits the user's statements, `command_timeout` reltask's own."""
        self.connection = connection
        self._now = now
        self._schema = schema
        self._patience = timeout.total_seconds() + OVERTIME
        self._command_timeout = command_timeout

    async def execute(self, sql: str, /, *args: object, **named: object) -> None:
        text, values_ = _bound(sql, args, named)
        with self._of_user():
            await self.connection.execute(text, *values_, timeout=self._patience)

    async def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        text, values_ = _bound(sql, args, named)
        with self._of_user():
            return [dict(row) for row in await self.connection.fetch(text, *values_, timeout=self._patience)]

    @contextmanager
    def _of_user(self) -> Iterator[None]:
        """Around a statement of the user's: it must not be sent outside the transaction, nor end it."""
        self._refuse_closed()
        with _unless_broken(self.connection):
            yield
        self._refuse_closed()

    def _refuse_closed(self) -> None:
        """Refuse to go on if the last answer said that no transaction is open."""
        if not self.connection.is_closed() and not self.connection.is_in_transaction():
            raise ended_inside()

    async def verb(self, name: str, **columns: object) -> list[Any]:
        self._refuse_closed()
        (statement,) = load("postgres", name, "numbered", self._schema)
        arguments = statement.arguments({**columns, "now": self._now() if self._now else None})
        try:
            rows: list[Any] = await self.connection.fetch(statement.text, *arguments, timeout=self._command_timeout)
        except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
            # Nothing of an open transaction is applied yet, even if the answer was lost.
            raise statement_failed(error, verb=name, writes=False) from quotable(error)
        return rows

    async def copy_jobs(self, jobs: Sequence[NewJob]) -> None:
        """Insert these jobs by COPY, whose SQL the driver writes.

        ConflictError if a job is known already, to the table or to the ledger.
        """
        slices = values.records(jobs, await self.read_now())
        try:
            for rows in slices:
                await self.connection.copy_records_to_table(
                    "jobs", schema_name=self._schema, columns=values.COPIED, records=rows
                )
        except Exception as error:  # noqa: BLE001 - as above
            raise statement_failed(error, verb="copy_jobs", writes=False) from quotable(error)


@asynccontextmanager
async def transaction(
    connections: Connections, *, timeout: timedelta, now: Callable[[], datetime] | None
) -> AsyncIterator[PostgresTransaction]:
    """A transaction that is committed when the block ends, and rolled back when it raises."""
    limit = connections.command_timeout
    async with connections.take() as connection:
        outer = connection.transaction(isolation="read_committed")
        await _end_or_begin(outer.start, "begin", limit)
        inner = PostgresTransaction(connection, now, timeout=timeout, command_timeout=limit, schema=connections.schema)
        try:
            await inner.begun(timeout)
            yield inner
        except BaseException:
            await _roll_back(outer, limit)
            raise
        await _end_or_begin(outer.commit, "commit", limit)


def patience(timeout: timedelta) -> str:
    """A timeout for the server's settings, in milliseconds; at least 1, because 0 means none."""
    return str(max(1, round(timeout.total_seconds() * 1000)))


@contextmanager
def _unless_broken(connection: asyncpg.Connection) -> Iterator[None]:
    """Turn the driver's various errors about a closed connection into one of reltask's errors."""
    try:
        yield
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        if not connection.is_closed():
            raise
        raise statement_failed(error, verb="transaction", writes=False) from quotable(error)


async def _end_or_begin(send: Callable[[], Awaitable[None]], verb: str, limit: float) -> None:
    try:
        async with asyncio.timeout(limit):
            await send()
    except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
        raise statement_failed(error, verb=verb, writes=verb == "commit") from quotable(error)


async def _roll_back(outer: Any, limit: float) -> None:
    """Roll back; if the connection is gone, the server has done so already."""
    try:
        async with asyncio.timeout(limit):
            await outer.rollback()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, TimeoutError):
        return


def _bound(sql: str, args: tuple[object, ...], named: dict[str, object]) -> tuple[str, Sequence[object]]:
    """The driver's own `$1` style as it is; `:name` style compiled for it."""
    if not named:
        return sql, args
    if args:
        raise TypeError("Pass values by position ($1) or by name (:name), not both.")
    statement = compile_statement(sql, "numbered")
    return statement.text, statement.arguments(named)
