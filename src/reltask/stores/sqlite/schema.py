"""The tables of a file: created or migrated when it is opened.

Any number of processes may open a new file at once. Each reads the version first, without a lock. If migrations are
pending, it becomes the only writer, reads the version again, and runs them in one transaction.
"""

from __future__ import annotations

import sqlite3

from reltask.stores.migration import NO_TABLES, Migration, Schema, pending
from reltask.stores.sqlite.connections import Session
from reltask.stores.sqlite.errors import classify
from reltask.stores.statement import load, split


def ensure_schema(session: Session) -> list[str]:
    """Run the pending migrations and return their names; a file that this version cannot use is refused."""
    try:
        return session.patiently(lambda: _migrate(session))
    except sqlite3.Error as error:
        raise classify(error, session.path) from error


def _migrate(session: Session) -> list[str]:
    if not _pending(session):
        return []
    connection = session.connection()
    try:
        connection.execute("begin immediate")
        done = [_run(connection, migration) for migration in _pending(session)]
        connection.execute("commit")
        return done
    finally:
        if connection.in_transaction:
            connection.rollback()


def pending_names(session: Session) -> list[str]:
    """The names of the migrations that this file still needs; nothing is changed."""
    return [migration.name for migration in _pending(session)]


def _pending(session: Session) -> list[Migration]:
    return pending("sqlite", read_schema(session), session.schema)


def read_schema(session: Session) -> Schema:
    """What the file says about its tables."""
    (statement,) = load("sqlite", "read_schema", "named", session.schema)
    try:
        row = session.connection().execute(statement.text).fetchone()
    except sqlite3.OperationalError as error:
        if "no such table" in str(error):
            return NO_TABLES
        raise
    return NO_TABLES if row is None else Schema.read(row)


def _run(connection: sqlite3.Connection, migration: Migration) -> str:
    statement = ""
    for part in split(migration.sql):
        statement += f"\n{part};" if statement else f"{part};"
        if sqlite3.complete_statement(statement):  # a trigger's body has semicolons
            connection.execute(statement)
            statement = ""
    return migration.name
