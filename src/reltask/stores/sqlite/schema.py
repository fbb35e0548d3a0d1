"""The tables of a file: made or brought up to date when it is opened.

Any number of processes may open a new file at once. Each looks first, without a lock; who finds something to do becomes
the only writer, looks again, and does it in one transaction.
"""

from __future__ import annotations

import sqlite3

from reltask.stores.migration import Migration, pending
from reltask.stores.sqlite.connections import Session
from reltask.stores.sqlite.errors import classify
from reltask.stores.statement import load, split


def ensure_schema(session: Session) -> list[str]:
    """Bring the file's tables to this version, and name the scripts that did; a newer file is refused."""
    try:
        return session.patiently(lambda: _bring_up_to_date(session.connection()))
    except sqlite3.Error as error:
        raise classify(error, session.path) from error


def _bring_up_to_date(connection: sqlite3.Connection) -> list[str]:
    if not _pending(connection):
        return []
    try:
        connection.execute("begin immediate")
        done = [_run(connection, migration) for migration in _pending(connection)]
        connection.execute("commit")
        return done
    finally:
        if connection.in_transaction:
            connection.rollback()


def pending_names(session: Session) -> list[str]:
    """The names of the scripts that this file still needs; it is only looked at."""
    return [migration.name for migration in _pending(session.connection())]


def _pending(connection: sqlite3.Connection) -> list[Migration]:
    return pending("sqlite", read_version(connection))


def read_version(connection: sqlite3.Connection) -> int:
    """The version that the file says it has; 0 where there are no tables."""
    (statement,) = load("sqlite", "read_schema", "named")
    try:
        row = connection.execute(statement.text).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return 0
        raise
    return 0 if row is None else int(row["schema_version"])


def _run(connection: sqlite3.Connection, migration: Migration) -> str:
    for statement in split(migration.sql):
        connection.execute(statement)
    return migration.name
