"""What the interleaving suite needs of a database.

    session 0   BEGIN ── statement ─────────────────────── COMMIT
    session 1          BEGIN ── statement · · waits · · · · · · · ── COMMIT
                                              │
                                              └─ read from the database's list of locks, never guessed from time

The cases use no SQL dialect; a new store joins the suite with one `Driver`. A session is one
connection with at most one open transaction. Its verbs are the store's own: the same statements,
parameters and row parsing, inside a transaction that stays open until the test ends it. A statement
can also be stopped between its snapshot and its first lock: there a read becomes stale.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractContextManager
from datetime import datetime
from enum import Enum
from typing import Any, NamedTuple, Protocol
from uuid import UUID

from reltask.stores.store import Store, Transaction

Row = dict[str, Any]


class Violation(AssertionError):
    """A result that no interleaving may have."""


class StatementRefused(Violation):
    """The database answered a statement with an error: a deadlock, a constraint, a timeout."""


class Waiting(Enum):
    """What a running statement is waiting for."""

    NOTHING = "nothing"
    LOCK = "a lock"
    """Another transaction."""
    PAUSE = "the scenario"
    """The statement has its snapshot and no lock yet."""


class Snapshot(NamedTuple):
    """Every column of every row, in the order of the primary keys."""

    jobs: list[Row]
    runs: list[Row]
    workers: list[Row]
    effects: list[Row]
    """What tasks wrote in their own transactions, into a table without any unique constraint."""
    leases: list[Row]
    metrics: list[Row]
    steps: list[Row] = []
    """Without a driver that reads them, these five are empty."""
    signals: list[Row] = []
    child_ends: list[Row] = []
    marks: list[Row] = []
    pauses: list[Row] = []


class Session(Protocol):
    """One connection, one transaction at a time."""

    now: datetime
    """The database's time, for the statements of this session."""
    skips: bool
    """Whether verbs that never wait skip locked rows.

    False: the server ignores the hint, and they wait.
    """

    @property
    def worker(self) -> str:
        """The worker that claims in this session."""
        ...

    @property
    def store(self) -> Store:
        """The verbs, sent inside the open transaction."""
        ...

    @property
    def transaction(self) -> Transaction:
        """The verbs that exist only in a task's transaction."""
        ...

    async def begin(self) -> None:
        """Open a transaction in READ COMMITTED."""
        ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def write_effect(self, job_id: UUID, kind: str) -> None:
        """Write a row as the task, in a chunk or together with its completion."""
        ...

    async def hold_rows(self, jobs: Collection[UUID], workers: Collection[str], leases: Collection[str] = ()) -> None:
        """Lock these rows without changing them. A lease without a row is kept from being created."""
        ...

    async def pause_next(self) -> None:
        """Stop the next statement when it has its snapshot and no lock yet."""
        ...

    async def go_on(self) -> None:
        """Let the paused statement take its locks."""
        ...

    async def waits_for(self) -> Waiting:
        """Ask the database what this session's statement is waiting for."""
        ...


class Driver(Protocol):
    """One test database."""

    @property
    def first(self) -> Session: ...

    @property
    def second(self) -> Session: ...

    @property
    def gate(self) -> Session:
        """A third session, for tests that hold a row while two others wait."""
        ...

    async def clear(self) -> None:
        """Remove every row."""
        ...

    async def save(self, name: str) -> None:
        """Keep a copy of all rows under this name."""
        ...

    async def restore(self, name: str) -> None:
        """Restore that copy."""
        ...

    async def snapshot(self) -> Snapshot:
        """The committed rows."""
        ...

    def changed(self, verb: str, *changes: tuple[str, str]) -> AbstractContextManager[None]:
        """Change the text of the verb's statement while the block is open. This makes a mutant."""
        ...
