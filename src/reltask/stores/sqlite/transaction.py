"""A task's own transaction: its writes, then the fenced completion, then COMMIT.

SQLite has one writer at a time, and a transaction takes the write lock when it begins. Until it
ends, no other connection can write to the file: no claim, and no heartbeat. So keep such blocks
short.

It has its own connection and, unless the store is inline, its own thread, so that waiting for the
write lock does not block the store.
"""

from __future__ import annotations

import asyncio
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from reltask.model.durable import NewSignal, Recording
from reltask.model.job import Completion, Hold, NewJob
from reltask.model.lease import Term
from reltask.stores.sqlite import durable_values, values
from reltask.stores.sqlite.connections import FileTransaction, Session
from reltask.stores.sqlite.errors import classify
from reltask.stores.sqlite.keys import replacement, unique_jobs
from reltask.stores.store import ended_inside

T = TypeVar("T")
Hop = Callable[[Callable[[], T]], Awaitable[T]]


class Verbs(ABC):
    """The verbs of a transaction, on a connection of the store's or of the user's."""

    @abstractmethod
    async def verb(self, name: str, **parameters: object) -> list[Any]:
        """Run one of reltask's own files inside this transaction: the rows of each statement."""

    async def enqueue_jobs(self, jobs: Sequence[NewJob]) -> set[UUID]:
        (rows,) = await self.verb("enqueue_jobs", jobs=values.batch(map(values.job_row, jobs)))
        return {UUID(row[0]) for row in rows}

    async def enqueue_unique(self, jobs: Sequence[NewJob]) -> set[UUID]:
        _, rows = await self.verb("enqueue_unique", jobs=unique_jobs(jobs))
        return {UUID(row[0]) for row in rows}

    async def read_unique(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        (rows,) = await self.verb("read_unique", names=values.batch(names))
        return values.keys(rows)

    async def replace_job(self, job: NewJob) -> UUID | None:
        (rows,) = await self.verb("replace_job", **replacement(job))
        return UUID(rows[0][0]) if rows else None

    async def read_keys(self, names: Sequence[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
        (rows,) = await self.verb("read_keys", names=values.batch(names))
        return values.keys(rows)

    async def holds_job(self, worker: str, hold: Hold) -> bool:
        return bool((await self.verb("read_holds", worker=worker, holds=values.holds([hold])))[-1])

    async def guard_job(self, worker: str, hold: Hold) -> bool:
        return bool((await self.verb("guard_job", worker=worker, id=str(hold.job_id), fence=hold.fence))[-1])

    async def complete_job(self, worker: str, completion: Completion) -> bool:
        rows = [values.completion_row(completion)]
        accepted, *_ = await self.verb("complete_jobs", worker=worker, completions=values.batch(rows))
        return bool(accepted)

    async def record_steps(self, worker: str, recording: Recording) -> bool:
        rows = [durable_values.recording_row(recording)]
        return bool((await self.verb("record_steps", worker=worker, recordings=values.batch(rows)))[-1])

    async def send_signals(self, signals: Sequence[NewSignal]) -> dict[str, UUID]:
        rows = values.batch(map(durable_values.signal_row, signals))
        return durable_values.sent((await self.verb("send_signals", signals=rows))[-1])

    async def guard_lease(self, term: Term) -> bool:
        return bool((await self.verb("guard_lease", lease=term.lease, term=term.number))[-1])


class Opened:
    """The open transaction itself, on its own thread."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.connection = session.connection()
        self._ended = False
        self._run("begin immediate")

    def verb(self, name: str, **parameters: object) -> list[Any]:
        """Run one of reltask's own files, with the current time."""
        self.refuse_ended()
        try:
            return FileTransaction(self.connection, self.read_now(), self._session.schema).verb(name, **parameters)
        except sqlite3.Error as error:
            raise classify(error, self._session.path) from error

    def read_now(self) -> int:
        return self._session.read_now(self.connection)

    def run(self, sql: str, given: Any) -> list[Any]:
        """Run a statement of the user's. It must neither end the transaction nor come after its end."""
        self.refuse_ended()
        rows = self.connection.execute(sql, given).fetchall()
        self.refuse_ended()
        return rows

    def refuse_ended(self) -> None:
        """Once ended, always ended: each later statement would be committed by itself."""
        self._ended = self._ended or not self.connection.in_transaction
        if self._ended:
            raise ended_inside()

    def commit(self) -> None:
        self.refuse_ended()
        self._run("commit")

    def _run(self, statement: str) -> None:
        try:
            self._session.patiently(lambda: self.connection.execute(statement))
        except sqlite3.Error as error:
            raise classify(error, self._session.path, committing=statement == "commit") from error


class SqliteTransaction(Verbs):
    """What happens between BEGIN IMMEDIATE and COMMIT."""

    def __init__(self, opened: Opened, hop: Hop[Any]) -> None:
        self._opened = opened
        self._hop = hop

    @property
    def connection(self) -> sqlite3.Connection:
        """The driver's connection; it belongs to the transaction's own thread."""
        return self._opened.connection

    async def execute(self, sql: str, /, *args: object, **named: object) -> None:
        await self.fetch(sql, *args, **named)

    async def fetch(self, sql: str, /, *args: object, **named: object) -> list[dict[str, Any]]:
        if args and named:
            raise TypeError("Pass values by position (?) or by name (:name), not both.")
        given = named or args
        rows = await self._hop(lambda: self._opened.run(sql, given))
        return [dict(row) for row in rows]

    async def read_now(self) -> datetime:
        return values.moment(await self._hop(self._opened.read_now))

    async def verb(self, name: str, **parameters: object) -> list[Any]:
        answers: list[Any] = await self._hop(lambda: self._opened.verb(name, **parameters))
        return answers


@asynccontextmanager
async def transaction(session: Session, *, inline: bool) -> AsyncIterator[SqliteTransaction]:
    """A transaction that is committed when the block ends, and rolled back when it raises.

    A cancellation may come at any await, more than once. The connection is closed all the same: it
    would keep the file locked for every other writer.
    """
    pool = None if inline else ThreadPoolExecutor(max_workers=1, thread_name_prefix="reltask-transaction")

    async def hop(work: Callable[[], T]) -> T:
        return work() if pool is None else await asyncio.get_running_loop().run_in_executor(pool, work)

    try:
        opened = await hop(lambda: Opened(session))
        yield SqliteTransaction(opened, hop)
        await hop(opened.commit)
    finally:
        if pool is None:
            session.close()
        else:
            closing = pool.submit(session.close)  # not by `hop`: a cancelled one would never run; it also rolls back
            pool.shutdown(wait=False)
            await asyncio.shield(asyncio.wrap_future(closing))
