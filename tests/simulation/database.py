"""The database of the simulation: one real SQLite file, used by one history after the other.

Between two histories it is emptied, not created again. Connections stay open and statements
prepared; opening and preparing would take longer than most histories. A history cannot see what an
earlier one left.

    session        one connection for all verbs: a verb is one transaction without an await inside
    check_out()    a connection for a task's own transaction, which spans awaits and conflicts with all others
"""

from __future__ import annotations

import gc
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

from reltask.stores.sqlite.connections import Session, SqliteOptions
from reltask.stores.sqlite.schema import ensure_schema

OPTIONS = SqliteOptions(command_timeout=timedelta(0), synchronous="normal", watch=None)
START = datetime(2026, 1, 1, tzinfo=UTC)
EFFECTS = "create table effects (job_id text, slot_no integer, fence integer, kind text)"
SMALL_PAGES = "pragma page_size = 1024"
"""The tables are small: with small pages a commit writes less."""
CARELESS = ("pragma synchronous = off", "pragma secure_delete = off")
"""This file survives no power failure, and deleted content is not overwritten."""
EMPTY = """
begin immediate;
delete from reltask_jobs;
delete from reltask_runs;
delete from reltask_workers;
delete from reltask_steps;
delete from reltask_signals;
delete from reltask_child_ends;
delete from reltask_marks;
delete from reltask_pauses;
delete from reltask_keys;
delete from reltask_limits;
delete from reltask_limit_keys;
delete from reltask_leases;
delete from reltask_lease_waiters;
delete from reltask_metrics;
delete from effects;
commit;
"""


class Database:
    """One file, its shared connection, and a pool of others."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "simulation.db")
        self.now: Callable[[], datetime] = lambda: START
        """The database's clock. Each history sets its own."""
        self._make_file()
        self.session = Session(self.path, OPTIONS, self.read_clock)
        ensure_schema(self.session)
        self.session.connection().execute(EFFECTS)
        self.prepare()
        for pragma in CARELESS:
            self.session.connection().execute(pragma)
        self._histories = 0
        self._checks = True
        self._free: list[PooledSession] = []
        self._in_use: list[PooledSession] = []

    def _make_file(self) -> None:
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute(SMALL_PAGES)
            connection.execute("vacuum")

    def prepare(self) -> None:
        """Called when the tables exist. Mutants remove constraints here."""

    def check_constraints(self, wanted: bool) -> None:
        """Whether the tables refuse rows that workers could not run."""
        if wanted != self._checks:
            self._checks = wanted
            for session in (self.session, *self._free):
                self._set_checks(session)

    def _set_checks(self, session: Session) -> None:
        session.connection().execute(f"pragma ignore_check_constraints = {int(not self._checks)}")

    def read_clock(self) -> datetime:
        return self.now()

    def query(self, sql: str) -> list[sqlite3.Row]:
        """The committed rows. Called between two verbs, never inside one."""
        return self.session.connection().execute(sql).fetchall()

    def check_out(self) -> PooledSession:
        """A separate connection, until it is closed."""
        if self._free:
            session = self._free.pop()
        else:
            session = PooledSession(self)
            self._set_checks(session)
        self._in_use.append(session)
        return session

    def check_in(self, session: PooledSession) -> None:
        """Keep a connection for reuse, unless it was cut off or belongs to a history that has ended."""
        if session in self._in_use:
            self._in_use.remove(session)
            if session.roll_back():
                self._free.append(session)

    def empty(self) -> None:
        """End a history: close its connections, delete its rows, and sometimes collect garbage."""
        for session in self._in_use:
            session.connection().close()
        self._in_use.clear()
        self.check_constraints(True)
        self.now = lambda: START
        self.session.connection().executescript(EMPTY)
        self._histories += 1
        if self._histories % 10 == 0:
            gc.collect()

    def close(self) -> None:
        for session in self._free:
            session.connection().close()
        self.session.close()


class PooledSession(Session):
    """A session that returns its connection when it is closed."""

    def __init__(self, database: Database) -> None:
        super().__init__(database.path, OPTIONS, database.read_clock)
        self._database = database

    def close(self) -> None:
        self._database.check_in(self)

    def roll_back(self) -> bool:
        """End an open transaction, as closing the connection would; False: it is closed."""
        try:
            self.connection().rollback()
        except sqlite3.ProgrammingError:
            return False
        return True
