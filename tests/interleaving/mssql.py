"""The interleaving suite's driver for SQL Server.

The store under test is the shipped adapter, bound to one connection whose transaction the test
owns. The transactions of the batches are nested in it, and end with it. The server reports whether
a statement waits for a lock. A batch is stopped between its reads and its writes: there it needs a
row that the test has locked.

    read · read · needs the gate's row ─ waits ─ UPDATE · INSERT · answer          what it has read may be stale by then

Babelfish ignores lock hints: a verb that should skip a locked row waits for it there, and must give
the result of some serial order.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Collection, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from reltask.errors import ReltaskError
from reltask.stores.mssql import values
from reltask.stores.mssql.connections import Connections, MssqlOptions, ThreadedConnection, failed, fetch
from reltask.stores.mssql.store import MssqlStore
from reltask.stores.mssql.transaction import MssqlTransaction
from reltask.stores.mssql.url import read_url
from reltask.stores.statement import Statement, compile_statement, read_sql
from tests import mssql_server
from tests.interleaving.driver import Row, Snapshot, StatementRefused, Waiting

PATIENCE = 600.0
TABLES = {
    "jobs": "reltask.Jobs",
    "runs": "reltask.Runs",
    "workers": "reltask.Workers",
    "effects": "dbo.Effects",
    "leases": "reltask.Leases",
    "metrics": "reltask.Metrics",
    "steps": "reltask.Steps",
    "signals": "reltask.Signals",
    "child_ends": "reltask.ChildEnds",
    "marks": "reltask.Marks",
    "pauses": "reltask.Pauses",
}
COMPUTED = {"RowNo", "DueAt", "Seq", "LimitLane"}
NAMES = {"JobName": "task", "JobKey": "key"}
SET_UP = """
CREATE TABLE dbo.Effects (JobId uniqueidentifier NOT NULL, Kind nvarchar(32) NOT NULL);
CREATE TABLE dbo.Gates (Id int NOT NULL PRIMARY KEY, Passed int NOT NULL);
"""
PAUSE = "UPDATE dbo.Gates SET Passed = Passed + 1 WHERE Id = {};\n"
LOOK = {"claim_jobs": "    IF @room > 0 AND", "enqueue_jobs": "    SET XACT_ABORT OFF;"}
"""The first statement after the reads of a batch. Other batches read where they write."""
FIRST = "BEGIN TRY\n"
HOLD = """
UPDATE reltask.Jobs SET Progress = Progress WHERE Id IN (SELECT value FROM OPENJSON(?));
UPDATE reltask.Workers SET Host = Host WHERE Id IN (SELECT value FROM OPENJSON(?));
UPDATE reltask.Leases SET Metadata = Metadata WHERE Name IN (SELECT value FROM OPENJSON(?));
"""
GUARD = "EXEC sp_getapplock @Resource = ?, @LockMode = N'Exclusive', @LockOwner = N'Transaction', @LockTimeout = 0"
"""The lock that a change of a lease takes beside its row, or before there is one: see guard_lease.sql."""
WAITS = "SELECT COUNT(*) FROM sys.dm_exec_requests WHERE session_id = ? AND wait_type LIKE N'LCK%'"
WAITS_ON_BABELFISH = "SELECT COUNT(*) FROM pg_catalog.pg_locks WHERE pid = ? AND CAST(granted AS varchar(5)) = 'f'"


def snake(column: str) -> str:
    """A column's name as the other databases have it."""
    return NAMES.get(column) or re.sub(r"(?<!^)([A-Z])", r"_\1", column).lower()


class Statements:
    """The shipped batches, or those of a mutant."""

    def __init__(self) -> None:
        self._changes: dict[str, tuple[tuple[str, str], ...]] = {}

    def get(self, verb: str, pause: int | None) -> Statement:
        text = read_sql("mssql", verb)
        for old, new in self._changes.get(verb, ()):
            text = _replaced(text, old, new)
        if pause is not None:
            place = LOOK.get(verb, FIRST)
            text = _replaced(text, place, PAUSE.format(pause) + place if verb in LOOK else place + PAUSE.format(pause))
        return compile_statement(text, "qmark")

    @contextmanager
    def changed(self, verb: str, changes: tuple[tuple[str, str], ...]) -> Iterator[None]:
        self._changes = {verb: changes}
        try:
            yield
        finally:
            self._changes = {}


def _replaced(text: str, old: str, new: str) -> str:
    if old not in text:
        raise LookupError(f"the batch has no {old!r}")
    return text.replace(old, new, 1)


class MssqlSession:
    """One connection whose transaction the test owns."""

    def __init__(
        self,
        line: ThreadedConnection,
        monitor: ThreadedConnection,
        gate: ThreadedConnection,
        statements: Statements,
        worker: str,
        *,
        spid: int,
        skips: bool,
    ) -> None:
        self.worker = worker
        self.skips = skips
        self.now = datetime.min.replace(tzinfo=UTC)
        self.store = _BoundStore(self)
        self.transaction = _BoundTransaction(self, line)
        self._line = line
        self._monitor = monitor
        self._gate = gate
        self._statements = statements
        self._spid = spid
        self._pausing = False
        self._blocked = False

    async def begin(self) -> None:
        await _run(self._line, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; BEGIN TRANSACTION")

    async def commit(self) -> None:
        await _run(self._line, "COMMIT TRANSACTION")

    async def rollback(self) -> None:
        await _run(self._line, "IF @@TRANCOUNT > 0 ROLLBACK TRANSACTION")

    async def write_effect(self, job_id: UUID, kind: str) -> None:
        await _run(self._line, "INSERT INTO dbo.Effects (JobId, Kind) VALUES (?, ?)", str(job_id), kind)

    async def hold_rows(self, jobs: Collection[UUID], workers: Collection[str], leases: Collection[str] = ()) -> None:
        for lease in leases:
            await _run(self._line, GUARD, f"reltask.lease {lease}")
        given = [values.batch(map(str, jobs)), values.batch(workers), values.batch(leases)]
        await _run(self._line, HOLD, *given)

    async def pause_next(self) -> None:
        await _run(self._gate, "BEGIN TRANSACTION; " + PAUSE.format(self._spid))
        self._pausing = self._blocked = True

    async def go_on(self) -> None:
        if self._blocked:
            await _run(self._gate, "ROLLBACK TRANSACTION")
        self._blocked = False

    async def waits_for(self) -> Waiting:
        ((locks,),) = await _run(self._monitor, WAITS if self.skips else WAITS_ON_BABELFISH, self._spid)
        if not locks:
            return Waiting.NOTHING
        return Waiting.PAUSE if self._blocked else Waiting.LOCK

    async def send(self, verb: str, columns: dict[str, object]) -> list[Row]:
        """One of reltask's batches, in the open transaction."""
        pause, self._pausing = (self._spid if self._pausing else None), False
        statement = self._statements.get(verb, pause)
        given = {**columns, "now": values.moment(self.now)}
        try:
            return await self._line.call(lambda connection: fetch(connection, statement, given), PATIENCE)
        except Exception as error:
            raise StatementRefused(f"{self.worker}: {verb}: {_refusal(error, verb)}") from error


def _refusal(error: Exception, verb: str) -> ReltaskError:
    return failed(error, verb=verb, writes=True)


async def _run(line: ThreadedConnection, sql: str, *arguments: object) -> list[Any]:
    return await line.call(lambda connection: mssql_server.run(connection, sql, *arguments), PATIENCE)


class _BoundStore(MssqlStore):
    """The adapter's verbs, sent on the session's connection."""

    def __init__(self, session: MssqlSession) -> None:
        super().__init__("mssql://user:password@nowhere/nothing")
        self._session = session

    async def _send(self, verb: str, columns: dict[str, object], *, writes: bool) -> list[Row]:  # noqa: ARG002 - as inherited
        return await self._session.send(verb, columns)


class _BoundTransaction(MssqlTransaction):
    """A task's transaction on the session's connection."""

    def __init__(self, session: MssqlSession, line: ThreadedConnection) -> None:
        super().__init__(line, None, PATIENCE, None, "reltask")
        self._session = session

    async def verb(self, name: str, **columns: object) -> list[Row]:
        return await self._session.send(name, columns)


class MssqlDriver:
    """One migrated database, three sessions, and a connection that watches them."""

    def __init__(self, monitor: ThreadedConnection, sessions: list[MssqlSession], statements: Statements) -> None:
        self.first, self.second, self.gate = sessions
        self._monitor = monitor
        self._statements = statements

    async def clear(self) -> None:
        await _run(self._monitor, "; ".join(f"DELETE FROM {table}" for table in TABLES.values()))

    async def save(self, name: str) -> None:
        copies = [f"SELECT * INTO dbo.[{part} of {name}] FROM {table}" for part, table in TABLES.items()]
        await _run(self._monitor, "; ".join(copies))

    async def restore(self, name: str) -> None:
        await self.clear()
        for part, table in TABLES.items():
            columns = ", ".join(sorted(await self._columns(table) - COMPUTED | self._own(part)))
            await _run(self._monitor, f"INSERT INTO {table} ({columns}) SELECT {columns} FROM dbo.[{part} of {name}]")

    @staticmethod
    def _own(part: str) -> set[str]:
        """DueAt is computed in the jobs, and a column of its own in the ledger."""
        return {"DueAt"} if part == "runs" else set()

    async def _columns(self, table: str) -> set[str]:
        schema, _, name = table.partition(".")
        found = await _run(
            self._monitor,
            "SELECT COLUMN_NAME FROM INFORMATION_SCHEMA.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?",
            schema,
            name,
        )
        return {str(column) for (column,) in found}

    async def snapshot(self) -> Snapshot:
        return await self._monitor.call(_snapshot, PATIENCE)

    def changed(self, verb: str, *changes: tuple[str, str]) -> AbstractContextManager[None]:
        return self._statements.changed(verb, changes)


def _snapshot(connection: Any) -> Snapshot:
    return Snapshot(*(_rows(connection, table) for table in TABLES.values()))


def _rows(connection: Any, table: str) -> list[Row]:
    cursor = connection.cursor()
    cursor.execute(f"SELECT * FROM {table}")
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(map(snake, names), row, strict=True)) for row in cursor.fetchall()]
    cursor.close()
    for row in rows:
        row.pop("row_no", None)
        row.pop("seq", None)
    return sorted(rows, key=lambda row: [str(value) for value in row.values()])


@asynccontextmanager
async def mssql_driver(url: str) -> AsyncIterator[MssqlDriver]:
    """Connect, and add what the suite needs beside reltask's tables."""
    connections = Connections(read_url(url), None, MssqlOptions(command_timeout=PATIENCE))
    lines = [await connections._connect() for _ in range(7)]
    monitor, *others = lines
    await _run(monitor, SET_UP)
    statements = Statements()
    sessions = []
    for line, gate, name in zip(others[:3], others[3:], ["bob", "carol", "gate"], strict=True):
        ((spid,),) = await _run(line, "SELECT @@SPID")
        await _run(monitor, "INSERT INTO dbo.Gates VALUES (?, 0)", spid)
        sessions.append(
            MssqlSession(line, monitor, gate, statements, name, spid=spid, skips=not mssql_server.is_babelfish())
        )
    try:
        yield MssqlDriver(monitor, sessions, statements)
    finally:
        for line in lines:
            line.end()
