"""The interleaving suite's driver for PostgreSQL.

The store under test is the shipped adapter, bound to one connection whose transaction the test
owns. `pg_locks` says whether a statement waits, and for which transaction. To stop a statement
between its snapshot and its first lock, a call that waits for an advisory lock is inserted where
the statement first reads its input. Nothing else in it changes.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg
import msgspec

from reltask.stores.postgres.connections import PostgresOptions, connect
from reltask.stores.postgres.store import PostgresStore
from reltask.stores.postgres.transaction import PostgresTransaction
from reltask.stores.statement import Statement, compile_statement, read_sql, split
from tests.interleaving.driver import Snapshot, StatementRefused, Waiting

TABLES = (
    "reltask.jobs",
    "reltask.runs",
    "reltask.workers",
    "interleaving.effects",
    "reltask.leases",
    "reltask.metrics",
    "reltask.steps",
    "reltask.signals",
    "reltask.child_ends",
    "reltask.marks",
    "reltask.pauses",
    "reltask.limits",
    "reltask.limit_keys",
)

SET_UP = """
create schema interleaving;
create table interleaving.effects (job_id uuid not null, kind text not null);
create function interleaving.pause(session integer) returns boolean language plpgsql volatile as $$
begin
    perform set_config('lock_timeout', '0', true);  -- a pause, and what is found after it, may last
    perform pg_advisory_xact_lock_shared(session);
    return true;
end $$;
"""

SNAPSHOT = """
select (select json_agg(job order by id) from reltask.jobs as job),
       (select json_agg(run order by job_id, fence) from reltask.runs as run),
       (select json_agg(worker order by id) from reltask.workers as worker),
       (select json_agg(effect order by job_id, kind) from interleaving.effects as effect),
       (select json_agg(lease order by name) from reltask.leases as lease),
       (select json_agg(metric order by minute, task) from reltask.metrics as metric),
       (select json_agg(step order by job_id, slot_no, name) from reltask.steps as step),
       (select json_agg(to_jsonb(signal) - 'seq' order by job_id, seq) from reltask.signals as signal),
       (select json_agg(child order by parent_id, slot_no, step, nth) from reltask.child_ends as child),
       (select json_agg(to_jsonb(mark) - 'seq' order by at, kind, job_id, name) from reltask.marks as mark),
       (select json_agg(pause order by kind, name) from reltask.pauses as pause)
"""
"""Without the numbers of identity columns, which are never the same in two runs."""

WAITS = """
select locktype from pg_locks
where pid = $1 and not granted and locktype in ('advisory', 'transactionid', 'tuple', 'spectoken', 'relation')
"""

WRITABLE = """
select string_agg(attname, ', ' order by attnum) from pg_attribute
where attrelid = $1::regclass and attnum > 0 and not attisdropped and attgenerated = ''
"""

MAKING_LEASES = """
select pg_advisory_xact_lock(hashtextextended('reltask.leases ' || name, 0)) from unnest($1::text[]) as name
"""

PAUSE = "(select interleaving.pause({}))"
_BATCH = ("        order by id\n    ) as given", "        where {pause}\n        order by id\n    ) as given")
_ROW = ("where id = :id::uuid", "where {pause} and id = :id::uuid")
_PARAMETERS = ("statement_timestamp()) as now\n)", "statement_timestamp()) as now\n    where {pause}\n)")
_LEASE = ("where lease.name = :lease::text", "where {pause} and lease.name = :lease::text")

FIRST_LOOK = {
    "claim_jobs": ("as paused_tasks\n", "as paused_tasks\n    where {pause}\n"),
    "claim_limited": ("    select key from wanted\n    union", "    select key from wanted where {pause}\n    union"),
    "heartbeat_jobs": ("as pair (id, fence)\n)", "as pair (id, fence)\n    where {pause}\n)"),
    "complete_jobs": _BATCH,
    "complete_one_offs": _BATCH,
    "complete_limited": _BATCH,
    "fail_jobs": _BATCH,
    "release_jobs": _BATCH,
    "reclaim_jobs": _PARAMETERS,
    "record_steps": _BATCH,
    "suspend_jobs": _BATCH,
    "fold_marks": ("as lock_timeout\n)", "as lock_timeout\n    where {pause}\n)"),
    "send_signals": ("    ) as job\n),\n", "    ) as job\n    where {pause}\n),\n"),
    "cancel_children": ("where job.parent_id is not null", "where {pause} and job.parent_id is not null"),
    "forget_steps": ("where seen.id = :id::uuid", "where {pause} and seen.id = :id::uuid"),
    "enqueue_jobs": ("parent_nth\n    )\n)", "parent_nth\n    )\n    where {pause}\n)"),
    "enqueue_job": ("statement_timestamp()) as now)", "statement_timestamp()) as now where {pause})"),
    **dict.fromkeys(
        ["discard_job", "cancel_job"], ("where job.id = :id::uuid", "where {pause} and job.id = :id::uuid")
    ),
    "add_pause": ("statement_timestamp())\non", "statement_timestamp())\nwhere {pause}\non"),
    "end_pause": ("where kind = :kind::text", "where {pause} and kind = :kind::text"),
    "declare_job": ("where own.task = :task::text", "where {pause} and own.task = :task::text"),
    "register_worker": ("as parameters\n", "as parameters\nwhere {pause}\n"),
    "stop_worker": ("where id = :worker::text and", "where {pause} and id = :worker::text and"),
    **dict.fromkeys(["guard_job", "record_progress", "pause_job", "resume_job", "run_job_now", "retry_job"], _ROW),
    # without a lease row, the planner decides whether the table is read at all
    "acquire_lease": ("as ttl\n)", "as ttl\n    where {pause}\n)"),
    **dict.fromkeys(["heartbeat_lease", "resign_lease", "release_lease", "guard_lease"], _LEASE),
    **dict.fromkeys(["mark_dead_workers", "prune_runs", "prune_records", "roll_up_runs"], _LEASE),
}
"""Where each statement first reads its input: after its snapshot, before its first lock."""
NOT_PAUSED = {"read_surplus"}
"""A read that prune_runs sends before its own statement, unless the store remembers the answer."""


def replaced(text: str, old: str, new: str) -> str:
    """Replace a text. If the statement does not contain it, the test is wrong."""
    if old not in text:
        raise LookupError(f"the statement has no {old!r}")
    return text.replace(old, new)


class Statements:
    """The shipped statements, or those of a mutant."""

    def __init__(self) -> None:
        self._changes: dict[str, tuple[tuple[str, str], ...]] = {}
        self._made: dict[tuple[str, int | None], Statement] = {}

    def get(self, verb: str, pause: int | None) -> Statement:
        if (verb, pause) not in self._made:
            self._made[verb, pause] = self._make(verb, pause)
        return self._made[verb, pause]

    def _make(self, verb: str, pause: int | None) -> Statement:
        text = read_sql("postgres", verb)
        if pause is not None:
            old, new = FIRST_LOOK[verb]
            text = replaced(text, old, new.format(pause=PAUSE.format(pause)))
        for old, new in self._changes.get(verb, ()):
            text = replaced(text, old, new)
        (one,) = split(text)
        return compile_statement(one, "numbered")

    @contextmanager
    def changed(self, verb: str, changes: tuple[tuple[str, str], ...]) -> Iterator[None]:
        self._changes, self._made = {verb: changes}, {}
        try:
            yield
        finally:
            self._changes, self._made = {}, {}


class PostgresSession:
    """One connection with the settings of the adapter's own connections."""

    def __init__(
        self, connection: asyncpg.Connection, monitor: asyncpg.Connection, statements: Statements, worker: str
    ) -> None:
        self.worker = worker
        self.skips = True
        self.now = datetime.min.replace(tzinfo=UTC)
        self.store = _BoundStore(self)
        self.transaction = _BoundTransaction(self, connection)
        self._connection = connection
        self._monitor = monitor
        self._statements = statements
        self._pid = connection.get_server_pid()
        self._pausing = False

    async def begin(self) -> None:
        await self._connection.execute("begin isolation level read committed")

    async def commit(self) -> None:
        await self._connection.execute("commit")

    async def rollback(self) -> None:
        await self._connection.execute("rollback")

    async def write_effect(self, job_id: UUID, kind: str) -> None:
        await self._connection.execute("insert into interleaving.effects values ($1, $2)", job_id, kind)

    async def hold_rows(self, jobs: Collection[UUID], workers: Collection[str], leases: Collection[str] = ()) -> None:
        await self._connection.execute(
            "select from reltask.jobs where id = any ($1::uuid[]) order by id for update", list(jobs)
        )
        await self._connection.execute(
            "select from reltask.workers where id = any ($1::text[]) order by id for update", list(workers)
        )
        await self._connection.execute(
            "select from reltask.leases where name = any ($1::text[]) order by name for update", list(leases)
        )
        await self._connection.execute(MAKING_LEASES, list(leases))

    async def pause_next(self) -> None:
        await self._monitor.execute("select pg_advisory_lock($1)", self._pid)
        self._pausing = True

    async def go_on(self) -> None:
        await self._monitor.execute("select pg_advisory_unlock($1)", self._pid)

    async def waits_for(self) -> Waiting:
        kind = await self._monitor.fetchval(WAITS, self._pid)
        if kind is None:
            return Waiting.NOTHING
        return Waiting.PAUSE if kind == "advisory" else Waiting.LOCK

    async def send(self, verb: str, columns: dict[str, object]) -> list[Any]:
        """One of reltask's statements, in the open transaction."""
        pause = self._pid if self._pausing and verb not in NOT_PAUSED else None
        self._pausing = self._pausing and pause is None
        statement = self._statements.get(verb, pause)
        try:
            rows: list[Any] = await self._connection.fetch(
                statement.text, *statement.arguments({**columns, "now": self.now})
            )
        except asyncpg.PostgresError as error:
            raise StatementRefused(f"{self.worker}: {verb}: {error.sqlstate} {error}") from error
        return rows


class _BoundStore(PostgresStore):
    """The adapter's verbs, sent on the session's connection."""

    def __init__(self, session: PostgresSession) -> None:
        super().__init__("postgresql://nowhere")
        self._session = session
        self._partitions_at = math.inf  # a statement of its own: here its lock on the lease would hide that of a prune

    async def _send(self, verb: str, columns: dict[str, object], *, writes: bool) -> list[Any]:  # noqa: ARG002 - as inherited
        """Without a lock timeout, which would end the open transaction."""
        return await self._session.send(verb, {**columns, "patience": None})


class _BoundTransaction(PostgresTransaction):
    """A task's transaction on the session's connection."""

    def __init__(self, session: PostgresSession, connection: asyncpg.Connection) -> None:
        super().__init__(connection, None, timeout=timedelta(minutes=1), command_timeout=60.0, schema="reltask")
        self._session = session

    async def refuse_ended(self) -> None:
        """The driver begins and ends the transactions, and no statement of a user's comes between."""

    async def verb(self, name: str, **columns: object) -> list[Any]:
        return await self._session.send(name, columns)


class PostgresDriver:
    """One migrated database, three sessions, and a connection that watches them."""

    def __init__(
        self, monitor: asyncpg.Connection, sessions: list[PostgresSession], statements: Statements, columns: list[str]
    ) -> None:
        self.first, self.second, self.gate = sessions
        self._monitor = monitor
        self._statements = statements
        self._columns = dict(zip(TABLES, columns, strict=True))

    async def clear(self) -> None:
        await self._monitor.execute("".join(f"delete from {table};" for table in TABLES))

    async def save(self, name: str) -> None:
        await self._monitor.execute(
            f'create schema "{name}";'
            + "".join(f'create table "{name}".{table.partition(".")[2]} as table {table};' for table in TABLES)
        )

    async def restore(self, name: str) -> None:
        copies = "".join(
            f"insert into {table} ({columns}) overriding system value"
            f' select {columns} from "{name}".{table.partition(".")[2]};'
            for table, columns in self._columns.items()
        )
        await self._monitor.execute("".join(f"delete from {table};" for table in TABLES) + copies)

    async def snapshot(self) -> Snapshot:
        tables = await self._monitor.fetchrow(SNAPSHOT)
        return Snapshot(*(msgspec.json.decode(rows or "[]") for rows in tables))

    def changed(self, verb: str, *changes: tuple[str, str]) -> AbstractContextManager[None]:
        return self._statements.changed(verb, changes)


@asynccontextmanager
async def postgres_driver(url: str) -> AsyncIterator[PostgresDriver]:
    """Connect, and add what the suite needs beside reltask's tables. A deadlock is found within 20 ms."""
    connections = [await connect(url, PostgresOptions(command_timeout=20.0)) for _ in range(4)]
    monitor, *others = connections
    try:
        await monitor.execute(SET_UP)
        for connection in connections:
            await connection.execute("set deadlock_timeout = '20ms'")
        statements = Statements()
        names = ["bob", "carol", "gate"]
        sessions = [PostgresSession(one, monitor, statements, name) for one, name in zip(others, names, strict=True)]
        yield PostgresDriver(monitor, sessions, statements, [await monitor.fetchval(WRITABLE, t) for t in TABLES])
    finally:
        for connection in connections:
            with suppress(OSError):  # another test of this process may have restarted the server meanwhile
                await connection.close()
