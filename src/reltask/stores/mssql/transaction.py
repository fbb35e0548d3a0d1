"""A task's own transaction: its writes, then the fenced completion, then COMMIT.

It runs on its own connection, in READ COMMITTED, with the server's default settings. An error in
the user's own SQL is raised unchanged, as the driver's. But for some errors, such as a deadlock,
SQL Server rolls the whole transaction back, and would commit each later statement by itself:

    BEGIN ── write ── error ──► is it still open? ── yes: the user may go on
                                                  └─ no:  every further statement is refused with TransientError

The user's own COMMIT or ROLLBACK would do the same. So before the completion the server is asked
whether the transaction is still open; if not, nothing is completed.

A broken connection is a TransientError, too: the server has rolled back. There is a limit for how
long a statement may take and how long it may wait for a lock. There is none for how long a
transaction may idle, because SQL Server has no such setting. Its locks end with its connection.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast
from uuid import UUID

from reltask.errors import ReltaskError, TransientError
from reltask.model.durable import NewSignal, Recording
from reltask.model.job import Completion, Hold, NewJob
from reltask.model.lease import Term
from reltask.model.schema_name import SCHEMA
from reltask.stores.mssql import durable_values, values
from reltask.stores.mssql.connections import (
    LOCK_SHARE,
    OVERTIME,
    Connections,
    ThreadedConnection,
    cause,
    execute,
    failed,
    fetch,
    limit_locks,
    reset,
    results,
)
from reltask.stores.mssql.driver import mssql_python
from reltask.stores.mssql.keys import replacement, unique_jobs
from reltask.stores.mssql.values import Row
from reltask.stores.statement import Statement, compile_statement, load_batch
from reltask.stores.store import ended_inside

T = TypeVar("T")


class Verbs(ABC):
    """The verbs of a transaction, on a connection of the store's or of the user's."""

    @abstractmethod
    async def verb(self, name: str, **columns: object) -> list[Row]:
        """One of reltask's own statements, inside this transaction."""

    async def read_now(self) -> datetime:
        (row,) = await self.verb("read_now")
        return cast("datetime", row["now"])

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        rows = await self.verb("enqueue_jobs", jobs=values.new_jobs(jobs))
        return {row["id"] for row in rows if row["inserted"]}

    async def enqueue_unique(self, jobs: Sequence[NewJob]) -> set[UUID]:
        rows = await self.verb("enqueue_unique", jobs=unique_jobs(jobs))
        return {row["id"] for row in rows if row["inserted"]}

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self.verb("read_unique", names=values.names(names)))

    async def replace_job(self, job: NewJob) -> UUID | None:
        rows = await self.verb("replace_job", **replacement(job))
        return rows[0]["id"] if rows else None

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        return values.keys(await self.verb("read_keys", names=values.names(names)))

    async def holds_job(self, worker: str, hold: Hold) -> bool:
        return bool(await self.verb("read_holds", worker=worker, holds=values.holds([hold])))

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        return bool(await self.verb("guard_job", worker=worker, **values.hold(hold)))

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        return await self._settle("complete_jobs", worker, completion.hold, values.completions([completion]))

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        return await self._settle("record_steps", worker, recording.hold, durable_values.recordings([recording]))

    async def _settle(self, verb: str, worker: str, hold: Hold, columns: values.Columns) -> bool:
        if await self.verb(verb, worker=worker, **columns):
            return True
        # lost, or locked by another session: wait for the row, and look again
        if not await self.guard_job(worker, hold):
            return False
        return bool(await self.verb(verb, worker=worker, **columns))

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        return durable_values.sent(await self.verb("send_signals", **durable_values.signals(signals)))

    async def guard_lease(self, term: Term) -> bool:
        return bool(await self.verb("guard_lease", **values.leader(term)))


class MssqlTransaction(Verbs):
    """What happens between BEGIN and COMMIT."""

    def __init__(
        self,
        threaded: ThreadedConnection,
        connection: Any,
        patience: float,
        now: Callable[[], datetime] | None,
        schema: str,
    ) -> None:
        self.connection = connection
        self._schema = schema
        self._threaded = threaded
        self._patience = patience
        self._now = now
        self._ended = False

    async def execute(self, sql: str, /, *args: object, **named: object) -> None:
        await self.fetch(sql, *args, **named)

    async def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        statement, given = _bound(sql, args, named)
        self._refuse_ended()
        try:
            return await self._threaded.call(lambda connection: _run(connection, statement, given), self._patience)
        except TimeoutError as error:
            self._ended = True
            raise failed(error, verb="transaction", writes=False) from error
        except (mssql_python.Error, RuntimeError) as error:
            if await self._answers():
                raise
            raise failed(error, verb="transaction", writes=False) from cause(error)

    async def verb(self, name: str, **columns: object) -> list[Row]:
        self._refuse_ended()
        statement = load_batch("mssql", name, "qmark", self._schema)
        given = {**columns, "now": values.moment(self._now()) if self._now else None}
        try:
            return await self._threaded.call(lambda connection: fetch(connection, statement, given), self._patience)
        except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
            self._ended = True
            # Nothing of an open transaction is applied yet, even if the answer was lost.
            raise failed(error, verb=name, writes=False) from cause(error)

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        await self._refuse_ended_inside()
        return await super().guard_job(worker, hold)

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        await self._refuse_ended_inside()
        return await super().complete_job(worker, completion)

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        await self._refuse_ended_inside()
        return await super().record_steps(worker, recording)

    async def _refuse_ended_inside(self) -> None:
        """Complete nothing after a COMMIT or ROLLBACK of the user's: the completion would be committed alone."""
        self._refuse_ended()
        if not await self._answers():
            raise TransientError("transaction: the connection was lost; nothing of it was applied.")
        if self._ended:
            raise ended_inside()

    async def commit(self) -> None:
        self._refuse_ended()
        await send(self._threaded, "commit_transaction", self._patience, writes=True)

    async def roll_back(self) -> None:
        """Roll back; if the connection is gone, the server has done so already."""
        with suppress(ReltaskError):
            await send(self._threaded, "rollback_transaction", self._patience, writes=False)

    def _refuse_ended(self) -> None:
        if self._ended:
            raise TransientError("the transaction was rolled back by the server; nothing of it was applied.")

    async def _answers(self) -> bool:
        """Whether the connection works: asked after an error, and before the completion.

        Also records whether the transaction has ended.
        """
        self._ended = True
        question = load_batch("mssql", "read_transaction", "qmark")
        try:
            (row,) = await self._threaded.call(lambda connection: fetch(connection, question, {}), self._patience)
        except (mssql_python.Error, RuntimeError, OSError):
            return False
        self._ended = row["state"] != 1
        return True


@asynccontextmanager
async def transaction(
    connections: Connections, *, timeout: timedelta, now: Callable[[], datetime] | None
) -> AsyncIterator[MssqlTransaction]:
    """A transaction that is committed when the block ends, and rolled back when it raises."""
    seconds = timeout.total_seconds()
    async with connections.take(in_transaction=True) as threaded:
        connection = await _begin(threaded, seconds)
        inner = MssqlTransaction(threaded, connection, seconds + OVERTIME, now, connections.schema)
        try:
            yield inner
        except BaseException:
            await inner.roll_back()
            raise
        await inner.commit()


async def send(threaded: ThreadedConnection, verb: str, patience: float, *, writes: bool) -> None:
    """Run a file that is one batch without parameters and names no table."""
    batch = load_batch("mssql", verb, "qmark", SCHEMA)
    try:
        await threaded.call(lambda connection: fetch(connection, batch, {}), patience)
    except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
        raise failed(error, verb=verb, writes=writes) from cause(error)


async def _begin(threaded: ThreadedConnection, seconds: float) -> Any:
    """Begin in a session without settings of an earlier task, with this transaction's own timeouts."""

    def begin(connection: Any) -> Any:
        reset(connection)
        connection.timeout = max(1, round(seconds))
        limit_locks(connection, seconds * LOCK_SHARE)
        execute(connection, load_batch("mssql", "begin_transaction", "qmark").text)
        return connection

    try:
        return await threaded.call(begin, seconds + OVERTIME)
    except Exception as error:  # noqa: BLE001 - whatever the driver raises becomes one of reltask's errors, here
        raise failed(error, verb="begin", writes=False) from cause(error)


def _run(connection: Any, statement: str, given: Sequence[object]) -> list[dict[str, Any]]:
    """Run a statement of the user's: values as the driver returns them."""
    cursor = connection.cursor()
    try:
        if given:
            cursor.execute(statement, list(given))
        else:
            cursor.execute(statement)
        answers = list(results(cursor))
        return answers[-1] if answers else []
    finally:
        with suppress(mssql_python.Error, RuntimeError):
            cursor.close()


def _bound(sql: str, args: tuple[object, ...], named: dict[str, object]) -> tuple[str, Sequence[object]]:
    """The driver's own `?` style as it is; `:name` style compiled for it."""
    if not named:
        return sql, args
    if args:
        raise TypeError("Pass values by position (?) or by name (:name), not both.")
    statement: Statement = compile_statement(sql, "qmark")
    return statement.text, statement.arguments(named)
