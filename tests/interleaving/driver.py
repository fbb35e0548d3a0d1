"""What the interleaving suite asks of a database. The scenarios know no dialect; a new store joins with one `Driver`.

    session 0   BEGIN ── statement ─────────────────────── COMMIT
    session 1          BEGIN ── statement · · waits · · · · · · · ── COMMIT
                                              │
                                              └─ seen in the database's own list of locks, never guessed from time

A session is one connection with at most one open transaction. Its verbs are the store's own: the same statements, the
same parameters, the same reading of rows, only inside a transaction that stays open until the scenario ends it. A
statement can also be stopped between its snapshot and its first lock, which is where stale reads are born.
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
    """An interleaving did what no interleaving may."""


class StatementRefused(Violation):
    """The database answered a statement with an error: a deadlock, a constraint, a timeout."""


class Waiting(Enum):
    """What a statement under way is waiting for."""

    NOTHING = "nothing"
    LOCK = "a lock"
    """Somebody else's transaction."""
    PAUSE = "the scenario"
    """Its snapshot is taken, its locks are not."""


class Snapshot(NamedTuple):
    """Every column of every row, in the order of the primary keys."""

    jobs: list[Row]
    runs: list[Row]
    workers: list[Row]
    effects: list[Row]
    """What tasks wrote in their own transactions, into a table without any unique constraint."""
    leases: list[Row]
    metrics: list[Row]


class Session(Protocol):
    """One connection, one transaction at a time."""

    now: datetime
    """The database's time, for the statements of this session."""
    skips: bool
    """Whether rows that somebody holds are skipped by what never waits; otherwise it waits for them after all."""

    @property
    def worker(self) -> str:
        """Who claims on this session."""
        ...

    @property
    def store(self) -> Store:
        """The verbs, sent inside the open transaction."""
        ...

    @property
    def transaction(self) -> Transaction:
        """The same for the verbs that only a task's transaction has."""
        ...

    async def begin(self) -> None:
        """Open a transaction in READ COMMITTED."""
        ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def write_effect(self, job_id: UUID, kind: str) -> None:
        """A write of the task's own, in a chunk or together with its completion."""
        ...

    async def hold_rows(self, jobs: Collection[UUID], workers: Collection[str], leases: Collection[str] = ()) -> None:
        """Lock these rows without changing them; a lease without a row is kept from getting one."""
        ...

    async def pause_next(self) -> None:
        """The next statement stops when it has its snapshot and no lock yet."""
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
        """A third party, for scenarios that need one."""
        ...

    async def clear(self) -> None:
        """Remove every row."""
        ...

    async def save(self, name: str) -> None:
        """Keep a copy of all rows under this name."""
        ...

    async def restore(self, name: str) -> None:
        """Bring the copy back."""
        ...

    async def snapshot(self) -> Snapshot:
        """What is committed."""
        ...

    def changed(self, verb: str, *changes: tuple[str, str]) -> AbstractContextManager[None]:
        """While the block is open, the verb's statement has other text: how mutants are made."""
        ...
