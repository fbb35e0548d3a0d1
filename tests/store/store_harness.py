"""What the conformance tests share: a clock that tests move, and shorthands for frequent calls.

A new backend joins the suite with one `Backend`: how to make a store on the test's database, and
how to read its tables.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol
from urllib.parse import quote
from uuid import UUID, uuid4

from reltask.model.durable import NewSignal, Recording, StepKind, StepRecord, StepState, StepView, Waits
from reltask.model.job import (
    Claim,
    ClaimAnswer,
    ClaimRequest,
    Completion,
    Declared,
    Failure,
    Hold,
    NewJob,
    Outcome,
    Parent,
    Release,
    Suspension,
    WorkerRecord,
)
from reltask.model.schema_name import SCHEMA, split_schema
from reltask.model.views import JobView, RunView
from reltask.stores.sqlite.connections import SqliteOptions
from reltask.stores.sqlite.store import SqliteStore
from reltask.stores.store import Store
from tests import mssql_server

START = datetime(2025, 3, 30, 0, 59, 59, 123456, tzinfo=UTC)
"""It has microseconds, so that a store that rounds fails."""

LOCK = timedelta(minutes=2)
ALIVE = timedelta(seconds=90)
EVERY = '{"every":"10m"}'

Snapshot = dict[str, list[Any]]
DURABLE = ("steps", "signals", "child_ends", "marks")
CONTROL = ("pauses", "actions", "keys", "limits", "limit_keys")
TABLES = ("jobs", "runs", "workers", "leases", "lease_waiters", "metrics", *DURABLE, *CONTROL)


class Now:
    """The database's time, as the test sets it."""

    def __init__(self, start: datetime = START) -> None:
        self.value = start

    def __call__(self) -> datetime:
        return self.value

    def advance(self, **length: float) -> datetime:
        """Move forward, or back with negative numbers."""
        self.value += timedelta(**length)
        return self.value


class Backend(Protocol):
    """A database that the suite runs on."""

    def store(self, now: Callable[[], datetime] | None) -> Store:
        """A new, unopened store on this test's database.

        It reclaims an expired claim at the first look.
        """
        ...

    async def clear(self) -> None:
        """Remove the rows of an earlier test."""
        ...

    async def snapshot(self) -> Snapshot:
        """Every column of every row."""
        ...

    async def forge_success(self, claim: Claim) -> None:
        """Insert a success of this claim's slot under an old fence, which no verb does."""
        ...

    async def insert_by_hand(self, column: str, literal: str) -> None:
        """Insert a due job with this value, as a person would: both as this database writes them."""
        ...

    async def forget_marks(self) -> None:
        """Remove all marks, which no verb does."""
        ...


class SqliteBackend:
    """A separate file for each test."""

    def __init__(self, path: str, schema: str = SCHEMA) -> None:
        self.path = path
        self.schema = schema

    def store(self, now: Callable[[], datetime] | None) -> Store:
        options = SqliteOptions(confirm_stale=timedelta(0), synchronous="normal")
        return SqliteStore(f"sqlite:///{quote(self.path)}?schema={self.schema}", now=now, options=options)

    async def clear(self) -> None:
        """Nothing to do: the file is new."""

    async def snapshot(self) -> Snapshot:
        with closing(sqlite3.connect(self.path)) as connection:
            return {
                table: connection.execute(f"select * from {self.schema}_{table} order by 1, 2, 3").fetchall()
                for table in TABLES
            }

    async def forge_success(self, claim: Claim) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute(
                f"insert into {self.schema}_runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at,"
                " finished_at, outcome) values (?, -1, ?, 'greet', 'default', 1, 0, 0, 0, 'succeeded')",
                [str(claim.job_id), claim.slot_no],
            )

    async def insert_by_hand(self, column: str, literal: str) -> None:
        columns = {"id": f"'{uuid4()}'", "task": "'greet'", "next_run_time": "1", column: literal}
        with closing(sqlite3.connect(self.path)) as connection, connection:
            values = ", ".join(columns.values())
            connection.execute(f"insert into {self.schema}_jobs ({', '.join(columns)}) values ({values})")

    async def forget_marks(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection, connection:
            connection.execute("delete from reltask_marks")


class PostgresBackend:
    """A migrated database, emptied before each test."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._plain_url, self.schema = split_schema(url)

    def store(self, now: Callable[[], datetime] | None) -> Store:
        from reltask.stores.postgres.store import PostgresStore  # noqa: PLC0415 - the driver is an extra

        return PostgresStore(self.url, now=now)

    async def clear(self) -> None:
        async with self._connection() as connection:
            for table in TABLES:
                await connection.execute(f"delete from {self.schema}.{table}")

    async def snapshot(self) -> Snapshot:
        async with self._connection() as connection:
            rows = {
                table: await connection.fetch(f"select * from {self.schema}.{table} order by 1, 2, 3")
                for table in TABLES
            }
        return {table: list(map(tuple, rows[table])) for table in TABLES}

    async def forge_success(self, claim: Claim) -> None:
        async with self._connection() as connection:
            await connection.execute(
                f"insert into {self.schema}.runs (job_id, fence, slot_no, task, queue, attempt, nominal_time, due_at,"
                " finished_at, outcome) values ($1, -1, $2, 'greet', 'default', 1, now(), now(), now(), 'succeeded')",
                claim.job_id,
                claim.slot_no,
            )

    async def insert_by_hand(self, column: str, literal: str) -> None:
        columns = {"id": f"'{uuid4()}'", "task": "'greet'", "next_run_time": "'2025-01-01'", column: literal}
        async with self._connection() as connection:
            await connection.execute(
                f"insert into {self.schema}.jobs ({', '.join(columns)}) values ({', '.join(columns.values())})"
            )

    async def forget_marks(self) -> None:
        async with self._connection() as connection:
            await connection.execute("delete from reltask.marks")

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Any]:
        import asyncpg  # noqa: PLC0415 - the driver is an extra

        connection = await asyncpg.connect(self._plain_url)
        try:
            yield connection
        finally:
            await connection.close()


class MssqlBackend:
    """A migrated database, emptied before each test.

    One connection runs the suite's own statements.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        _, self.schema = split_schema(url)
        self._connection: Any = None

    def store(self, now: Callable[[], datetime] | None) -> Store:
        from reltask.stores.mssql.connections import MssqlOptions  # noqa: PLC0415
        from reltask.stores.mssql.store import MssqlStore  # noqa: PLC0415 - the driver is an extra

        # Babelfish takes seconds to parse a batch that is new to a connection.
        return MssqlStore(self.url, now=now, options=MssqlOptions(command_timeout=120))

    async def clear(self) -> None:
        mssql_server.clear(self.connection, self.schema)

    async def snapshot(self) -> Snapshot:
        return {
            table: mssql_server.run(self.connection, f"SELECT * FROM {self.schema}.{name} ORDER BY 1, 2, 3")
            for table, name in zip(TABLES, mssql_server.TABLES, strict=True)
        }

    async def forge_success(self, claim: Claim) -> None:
        mssql_server.run(
            self.connection,
            f"INSERT INTO {self.schema}.Runs (JobId, Fence, SlotNo, JobName, Queue, Attempt, NominalTime, DueAt,"
            " FinishedAt, Outcome) SELECT ?, -1, ?, N'greet', N'default', 1, now, now, now, N'succeeded'"
            " FROM (SELECT SYSUTCDATETIME() AS now) AS clock",
            str(claim.job_id),
            claim.slot_no,
        )

    async def insert_by_hand(self, column: str, literal: str) -> None:
        columns = {"JobName": "N'greet'", "NextRunTime": "'2025-01-01'", column: literal}
        values = ", ".join(columns.values())
        mssql_server.run(self.connection, f"INSERT INTO {self.schema}.Jobs ({', '.join(columns)}) VALUES ({values})")

    async def forget_marks(self) -> None:
        mssql_server.run(self.connection, "DELETE FROM reltask.Marks")

    @property
    def connection(self) -> Any:
        """Opened at first use."""
        if self._connection is None:
            self._connection = mssql_server.open_connection(self.url)
        return self._connection


def new_job(**fields: Any) -> NewJob:
    """A one-off of task "greet", due at once, unless the fields say otherwise."""
    return NewJob(**{"id": uuid4(), "task": "greet", **fields})


def seen(declaration: str | None = "v1", at: datetime = START) -> Declared:
    """What a worker has read of a recurring job before it declares it again."""
    return Declared(
        id=uuid4(), task="greet", key=None, schedule=None, declaration=declaration, app_version=None,
        next_run_time=at, now=START,
    )  # fmt: skip


def recurring(**fields: Any) -> NewJob:
    """A recurring job of task "greet"."""
    return new_job(**{"schedule": EVERY, "declaration": "v1", **fields})


def request(worker: str = "alice", **fields: Any) -> ClaimRequest:
    """A claim of one job of task "greet" in the default queue, unless the fields say otherwise."""
    defaults = {
        "worker": worker,
        "token": uuid4(),
        "queues": ["default"],
        "tasks": ["greet"],
        "limit": 1,
        "lock_timeout": LOCK,
        "isolated": True,
        "alive_for": ALIVE,
    }
    return ClaimRequest(**{**defaults, **fields})


def worker_record(name: str = "alice", **fields: Any) -> WorkerRecord:
    defaults = {
        "id": name,
        "host": "host",
        "pid": 1,
        "version": "1",
        "app_version": None,
        "queues": ["default"],
        "tasks": ["greet"],
        "concurrency": 4,
        "alive_for": ALIVE,
    }
    return WorkerRecord(**{**defaults, **fields})


def step(name: str = "charge", **fields: Any) -> StepRecord:
    """A step that is done, without a value, unless the fields say otherwise."""
    defaults = {"name": name, "kind": StepKind.STEP, "state": StepState.DONE, "started_at": START}
    return StepRecord(**{**defaults, **fields})


def waiting(name: str = "approval", **fields: Any) -> StepRecord:
    """A step that waits for the signal "go", unless the fields say otherwise."""
    return step(name, **{"kind": StepKind.WAIT, "state": StepState.WAITING, "signal": "go", **fields})


def child(parent: Claim, nth: int, *, of: str = "labels", **fields: Any) -> NewJob:
    """A job of task "label", for whose end a step of the parent's current slot waits."""
    waits = Parent(job_id=parent.job_id, slot_no=parent.slot_no, step=of, nth=nth)
    return new_job(**{"task": "label", "parent": waits, **fields})


class StoreHarness:
    """One store under test, its clock, and its database."""

    def __init__(self, store: Store, now: Now, backend: Backend) -> None:
        self.store = store
        self.now = now
        self.backend = backend

    async def add(self, *jobs: NewJob) -> list[UUID]:
        """Insert these jobs. All must be new."""
        inserted = await self.store.enqueue_jobs(jobs)
        assert inserted == {job.id for job in jobs}
        return [job.id for job in jobs]

    async def claim(self, worker: str = "alice", **fields: Any) -> ClaimAnswer:
        return await self.store.claim_jobs(request(worker, **fields))

    async def claim_one(self, worker: str = "alice", **fields: Any) -> Claim:
        """The one job that this claim must find."""
        (claim,) = (await self.claim(worker, **fields)).claims
        return claim

    async def claimed(self, job: NewJob | None = None, worker: str = "alice", **fields: Any) -> Claim:
        """Insert a job and claim it."""
        job = job or new_job()
        await self.add(job)
        return await self.claim_one(worker, tasks=[job.task], queues=[job.queue], **fields)

    async def lose(self, claim: Claim) -> None:
        """Let a claim expire, and reclaim it."""
        self.now.value = max(self.now.value, claim.locked_at) + claim.lock_timeout + timedelta(microseconds=1)
        lost = await self.store.reclaim_jobs()
        assert claim.hold in [Hold(reclaimed.job_id, reclaimed.fence) for reclaimed in lost]

    async def complete(self, claim: Claim, worker: str = "alice", *, wait: bool = False, **fields: Any) -> bool:
        """Complete one claim; return whether the store accepted it."""
        ended = {"hold": claim.hold, "has_parent": claim.has_parent, **fields}
        settled = await self.store.complete_jobs(worker, [Completion(**ended)], wait=wait)
        return [accepted.hold for accepted in settled] == [claim.hold]

    async def fail(self, claim: Claim, worker: str = "alice", *, wait: bool = False, **fields: Any) -> bool:
        failure = Failure(**{"hold": claim.hold, "error": "boom", "delay": timedelta(0), **fields})
        settled = await self.store.fail_jobs(worker, [failure], wait=wait)
        return [accepted.hold for accepted in settled] == [claim.hold]

    async def release(self, claim: Claim, worker: str = "alice", *, wait: bool = False, **fields: Any) -> bool:
        release = Release(**{"hold": claim.hold, "outcome": Outcome.RELEASED, **fields})
        settled = await self.store.release_jobs(worker, [release], wait=wait)
        return [accepted.hold for accepted in settled] == [claim.hold]

    async def record(self, claim: Claim, *steps: StepRecord, worker: str = "alice", progress: bool = True) -> bool:
        """Record steps of one run; return whether the store accepted them."""
        recording = Recording(hold=claim.hold, steps=steps, progress=progress)
        return [accepted.hold for accepted in await self.store.record_steps(worker, [recording])] == [claim.hold]

    async def suspend(self, claim: Claim, worker: str = "alice", **fields: Any) -> bool:
        """Suspend one run that has seen no mark, without a wake time, unless the fields say otherwise."""
        suspension = Suspension(**{"hold": claim.hold, "seen": 0, "wake_at": None, **fields})
        return [accepted.hold for accepted in await self.store.suspend_jobs(worker, [suspension])] == [claim.hold]

    async def suspended(self, *steps: StepRecord, job: NewJob | None = None, **fields: Any) -> Claim:
        """A job that is suspended in these steps, and the claim that it had."""
        claim = await self.claimed(job)
        assert await self.record(claim, *steps)
        assert await self.suspend(claim, **fields)
        return claim

    async def parent(self, count: int, **fields: Any) -> Claim:
        """A job that is suspended until this many children have ended, and the claim that it had."""
        claim = await self.claimed()
        await self.add(*[child(claim, nth, **fields) for nth in range(count)])
        assert await self.record(claim, step("labels", kind=StepKind.RUN, state=StepState.WAITING, pending=count))
        assert await self.suspend(claim)
        return claim

    async def claim_child(self, worker: str = "alice") -> Claim:
        return await self.claim_one(worker, tasks=["label"])

    async def send(self, job_id: UUID, name: str = "go", *, sent_as: str | None = None, value: str = "1") -> bool:
        """Send a signal; return whether the job took it."""
        signal = NewSignal(id=sent_as or str(uuid4()), name=name, value=value, job_id=job_id)
        return await self.store.send_signals([signal]) == {signal.id: job_id}

    async def steps(self, job_id: UUID, slot_no: int | None = None) -> dict[str, StepView]:
        """The recorded steps by name."""
        return {view.name: view for view in await self.store.read_steps(job_id, slot_no)}

    async def waits(self, claim: Claim) -> Waits:
        """What has come for a slot that must be the job's current one."""
        waits = await self.store.read_waits(claim.job_id, claim.slot_no)
        assert waits is not None
        return waits

    async def job(self, job_id: UUID) -> JobView:
        """A job that must be there."""
        view = await self.store.read_job(job_id)
        assert view is not None
        return view

    async def runs(self, job_id: UUID) -> list[RunView]:
        """A job's ledger rows by fence."""
        return sorted(await self.store.list_runs(job_id=job_id), key=lambda run: run.fence)

    async def sweep(self, **options: Any) -> int:
        """How many children of ended parents were ended."""
        return len((await self.store.cancel_children(**options)).ended)

    async def snapshot(self) -> Snapshot:
        return await self.backend.snapshot()
