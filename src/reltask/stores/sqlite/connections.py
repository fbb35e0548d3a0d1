"""One connection to an SQLite file, and whole transactions on it.

    verb ──► BEGIN IMMEDIATE ──► read_now.sql ──► the verb's statements ──► COMMIT
              │ waits here for      │ after the wait, so
              │ other writers       │ that the time is true

A transaction takes the write lock when it begins, never later: a reader that becomes a writer can
be refused at once (BUSY_SNAPSHOT), while a writer that asks first only waits. Reads see the last
committed state and never wait, because the file is in WAL mode.

Durability: with `synchronous = full`, the default, each commit is on the disk before it returns, so
that neither a killed process nor a power failure can undo a completion that was reported. `normal`
is faster and also survives a killed process, but a power failure may undo the last commits: their
slots would run again, although their effects elsewhere have happened.

A file that does not exist is created for its owner alone: it holds arguments and results.

A connection belongs to the thread and the process that opened it. It is opened at the first use.
After a fork the child opens its own, and does not touch the parent's.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Literal, TypeVar

from msgspec import Struct

from reltask.model.schema_name import SCHEMA
from reltask.stores.sqlite.errors import classify, is_busy, unbindable
from reltask.stores.sqlite.url import MEMORY
from reltask.stores.sqlite.values import micros
from reltask.stores.statement import Statement, load

T = TypeVar("T")

_BEGIN_READ = "begin"
_BEGIN_WRITE = "begin immediate"
_TURN, _NAP = 0.02, 0.001
"""SQLite waits for a lock with sleeps that grow to 100 ms: the writer that has waited longest tries
least often, and starves among busy writers. So let SQLite wait for `_TURN` seconds only, sleep for
`_NAP` seconds, and try again until the timeout."""
_SYNCHRONOUS = {"full": "pragma synchronous = full", "normal": "pragma synchronous = normal"}

_inherited: list[sqlite3.Connection] = []
"""Connections of a parent process. Closing one here could release the parent's file locks, so they are only kept."""


class SqliteOptions(Struct, frozen=True, kw_only=True):
    """How a store uses its file."""

    command_timeout: timedelta = timedelta(seconds=30)
    """How long a transaction waits for other writers."""
    synchronous: Literal["full", "normal"] = "full"
    """Whether each commit waits for the disk: see this module's docstring."""
    confirm_stale: timedelta = timedelta(milliseconds=250)
    """How long an expired claim must have been seen unchanged before it is reclaimed."""
    watch: timedelta | None = timedelta(milliseconds=25)
    """How often to check for changes of the file where the system does not notify; None: not at all."""


class FileTransaction:
    """A transaction as a verb uses it: statements, and one time for all of them."""

    def __init__(self, connection: sqlite3.Connection, now: int, schema: str) -> None:
        self._connection = connection
        self._schema = schema
        self.now = now

    @property
    def version(self) -> int:
        """Changes when another connection has committed."""
        (version,) = self._connection.execute("pragma data_version").fetchone()
        return int(version)

    def run(self, statement: Statement, **values: object) -> list[sqlite3.Row]:
        """One statement with `:now` and these values."""
        return self._connection.execute(statement.text, {"now": self.now, **values}).fetchall()

    def verb(self, name: str, /, **values: object) -> list[list[sqlite3.Row]]:
        """Run all statements of a verb's file in order; the rows of each."""
        return [self.run(statement, **values) for statement in self.statements(name)]

    def statements(self, name: str) -> tuple[Statement, ...]:
        """The statements of a verb's file."""
        return load("sqlite", name, "named", self._schema)


class Session:
    """The connection: opened at first use, in the thread and process that use it."""

    def __init__(
        self, path: str, options: SqliteOptions, now: Callable[[], datetime] | None, schema: str = SCHEMA
    ) -> None:
        self.path = path
        self.schema = schema
        self._options = options
        self._now = now
        self._connection: sqlite3.Connection | None = None
        self._pid = os.getpid()

    def read(self, work: Callable[[FileTransaction], T]) -> T:
        """Run `work` on one committed state, without a lock."""
        return self._within(_BEGIN_READ, work)

    def write(self, work: Callable[[FileTransaction], T]) -> T:
        """Run `work` as the only writer; all of it is committed, or nothing."""
        return self._within(_BEGIN_WRITE, work)

    def close(self) -> None:
        """Close the connection; a forked child leaves its parent's open."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        elif self._connection is not None:
            self._connection.close()
            self._connection = None

    def connection(self) -> sqlite3.Connection:
        """The connection of this process."""
        if self._pid != os.getpid():
            self._leave_to_parent()
        if self._connection is None:
            self._connection = connect(self.path, self._options)
        return self._connection

    def _leave_to_parent(self) -> None:
        if self._connection is not None:
            _inherited.append(self._connection)
        self._connection, self._pid = None, os.getpid()

    def patiently(self, work: Callable[[], T]) -> T:
        """Run `work`, and repeat it while another writer has the lock: a refused try has done nothing."""
        return _patiently(work, self._options.command_timeout)

    def _within(self, begin: str, work: Callable[[FileTransaction], T]) -> T:
        committing = False

        def transact() -> T:
            nonlocal committing
            connection = self.connection()
            try:
                connection.execute(begin)
                answer = work(FileTransaction(connection, self.read_now(connection), self.schema))
                committing = begin == _BEGIN_WRITE
                connection.execute("commit")
                return answer
            finally:
                if connection.in_transaction:
                    connection.rollback()

        try:
            return self.patiently(transact)
        except sqlite3.Error as error:
            raise classify(error, self.path, committing=committing) from error
        except OverflowError:  # of the driver: a number that SQLite cannot hold
            raise unbindable(self.path) from None

    def read_now(self, connection: sqlite3.Connection) -> int:
        """The time, by the host's clock or by the test's."""
        if self._now is not None:
            return micros(self._now())
        (statement,) = load("sqlite", "read_now", "named", self.schema)
        row = connection.execute(statement.text, {"now": None}).fetchone()
        return int(row["now"])


def _patiently(work: Callable[[], T], patience: timedelta) -> T:
    deadline = time.monotonic() + patience.total_seconds()
    while True:
        try:
            return work()
        except sqlite3.OperationalError as error:
            if not is_busy(error) or time.monotonic() >= deadline:
                raise
            time.sleep(_NAP)


def connect(path: str, options: SqliteOptions) -> sqlite3.Connection:
    """A new connection in WAL mode."""
    _create_private(path)
    patience = min(options.command_timeout.total_seconds(), _TURN)
    try:
        connection = sqlite3.connect(path, timeout=patience, isolation_level=None)
    except sqlite3.Error as error:
        raise classify(error, path) from error
    try:
        connection.row_factory = sqlite3.Row
        # SQLite does not wait when several processes switch a new file to WAL at once: it refuses all but one.
        _patiently(lambda: connection.execute("pragma journal_mode = wal"), options.command_timeout)
        connection.execute(_SYNCHRONOUS[options.synchronous])
    except sqlite3.Error as error:
        connection.close()
        raise classify(error, path) from error
    return connection


def _create_private(path: str) -> None:
    """Create a missing file for its owner alone; SQLite gives the files beside it the same mode.

    Only a new file is ever opened here: closing an existing one would release this process's locks on it.
    """
    if path != MEMORY:
        with contextlib.suppress(OSError, ValueError):  # it exists, or SQLite will say why it cannot
            os.close(os.open(os.path.realpath(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
