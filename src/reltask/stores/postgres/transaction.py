"""A task's own transaction: its writes, then the fenced completion, then COMMIT.

It runs on its own connection, with the server's default planner settings, in READ COMMITTED. The
server limits how long a statement may take and how long the transaction may idle, so that a frozen
worker cannot hold its rows for longer than its lock. An error in the user's own SQL is raised
unchanged, as the driver's. A broken connection is a TransientError: the server has rolled back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta
from typing import Any, cast
from uuid import UUID

from reltask.errors import ConflictError
from reltask.model.job import Completion, Hold, NewJob
from reltask.model.lease import Term
from reltask.stores.postgres import values
from reltask.stores.postgres.connections import Connections
from reltask.stores.postgres.driver import asyncpg
from reltask.stores.postgres.errors import quotable, statement_failed
from reltask.stores.statement import compile_statement, load


class Verbs(ABC):
    """The verbs of a transaction, on a connection of the store's or of the user's."""

    @abstractmethod
    async def verb(self, name: str, **columns: object) -> list[Any]:
        """One of reltask's own statements, inside this transaction."""

    async def read_now(self) -> datetime:
        ((now,),) = await self.verb("read_now")
        return cast("datetime", now)

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        verb, columns = values.enqueueing(jobs)
        rows = await self.verb(verb, **columns)
        return {values.as_uuid(job_id) for job_id, inserted in rows if inserted}

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self.verb("read_keys", **values.names(names)))

    async def holds_job(self, worker: str, hold: Hold) -> bool:
        return bool(await self.verb("read_holds", worker=worker, **values.holds([hold])))

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        return bool(await self.verb("guard_job", worker=worker, id=hold.job_id, fence=hold.fence))

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        columns = values.completions([completion])
        if await self.verb("complete_jobs", worker=worker, **columns):
            return True
        # lost, or locked by another session: wait for the row, and look again
        if not await self.guard_job(worker, completion.hold):
            return False
        return bool(await self.verb("complete_jobs", worker=worker, **columns))

    async def guard_lease(self, term: Term) -> bool:
        return bool(await self.verb("guard_lease", **values.leader(term)))


class PostgresTransaction(Verbs):
    """What happens between BEGIN and COMMIT."""

    def __init__(self, connection: asyncpg.Connection, now: Callable[[], datetime] | None) -> None:
        self.connection = connection
        self._now = now

    async def execute(self, sql: str, /, *args: object, **named: object) -> None:
        text, values_ = _bound(sql, args, named)
        with _unless_broken(self.connection):
            await self.connection.execute(text, *values_)

    async def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        text, values_ = _bound(sql, args, named)
        with _unless_broken(self.connection):
            return [dict(row) for row in await self.connection.fetch(text, *values_)]

    async def verb(self, name: str, **columns: object) -> list[Any]:
        (statement,) = load("postgres", name, "numbered")
        arguments = statement.arguments({**columns, "now": self._now() if self._now else None})
        try:
            rows: list[Any] = await self.connection.fetch(statement.text, *arguments)
        except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
            # Nothing of an open transaction is applied yet, even if the answer was lost.
            raise statement_failed(error, verb=name, writes=False) from quotable(error)
        return rows

    async def copy_jobs(self, jobs: Sequence[NewJob]) -> None:
        """Insert these jobs by COPY, whose SQL the driver writes.

        ConflictError if a job is known already.
        """
        slices = values.records(jobs, await self.read_now())
        try:
            for rows in slices:
                await self.connection.copy_records_to_table(
                    "jobs", schema_name="reltask", columns=values.COPIED, records=rows
                )
        except Exception as error:  # noqa: BLE001 - as above
            raise statement_failed(error, verb="copy_jobs", writes=False) from quotable(error)
        if await self.verb("read_ended", ids=[job.id for job in jobs]):
            raise ConflictError("copy_jobs: the ledger knows some of these jobs.")


@asynccontextmanager
async def transaction(
    connections: Connections, *, timeout: timedelta, now: Callable[[], datetime] | None
) -> AsyncIterator[PostgresTransaction]:
    """A transaction that is committed when the block ends, and rolled back when it raises."""
    async with connections.take() as connection:
        outer = connection.transaction(isolation="read_committed")
        await _begin(outer)
        inner = PostgresTransaction(connection, now)
        try:
            await inner.verb("begin_transaction", timeout_ms=patience(timeout))
            yield inner
        except BaseException:
            await _roll_back(outer)
            raise
        await _commit(outer)


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


async def _begin(outer: Any) -> None:
    try:
        await outer.start()
    except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
        raise statement_failed(error, verb="begin", writes=False) from quotable(error)


async def _commit(outer: Any) -> None:
    try:
        await outer.commit()
    except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
        raise statement_failed(error, verb="commit", writes=True) from quotable(error)


async def _roll_back(outer: Any) -> None:
    """Roll back; if the connection is gone, the server has done so already."""
    try:
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
