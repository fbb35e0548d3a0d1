"""Maps SQLite's errors to reltask's error tree.

    BUSY, LOCKED,         another writer held the lock for too long    TransientError
    PROTOCOL
    FULL, IOERR           the disk                                     TransientError; at COMMIT an IOERR is Ambiguous
    CONSTRAINT            a constraint refused the write               ConflictError
    CANTOPEN, READONLY,   permissions of the file or directory         AccessRefused
    PERM, AUTH
    NOTADB, CORRUPT, …    waiting would not help                       PermanentError; at COMMIT Ambiguous
    OverflowError         a number that SQLite cannot hold             PermanentError

Nothing else can be ambiguous: there is no network between a statement and its answer, and whatever a verb raises before
its commit rolls it back. A row's values are read before the commit.
"""

from __future__ import annotations

import sqlite3

from reltask.errors import (
    AccessRefused,
    AmbiguousError,
    ConflictError,
    DatabaseError,
    PermanentError,
    TransientError,
)

_TRANSIENT = {
    "SQLITE_BUSY": "Another process was writing for too long; the statement will be retried.",
    "SQLITE_PROTOCOL": "Another process locked the write-ahead log for too long; the statement will be retried.",
    "SQLITE_LOCKED": "Another connection of this process was writing; the statement will be retried.",
    "SQLITE_FULL": "The disk is full: free some space. The statement will be retried.",
    "SQLITE_IOERR": "The disk failed or the file is on a network share; put it on a healthy local disk.",
    "SQLITE_NOMEM": "The machine is short of memory.",
    "SQLITE_INTERRUPT": "The statement was interrupted and will be retried.",
}

_REFUSED = {
    "SQLITE_CANTOPEN": "Check that the directory exists and that this user may read and write it.",
    "SQLITE_READONLY": "Give this user write permission on the file and on its directory.",
    "SQLITE_PERM": "Give this user read and write permission on the file and on its directory.",
    "SQLITE_AUTH": "Give this user read and write permission on the file and on its directory.",
}

_PERMANENT = {
    "SQLITE_NOTADB": "The file is not an SQLite database: use another file.",
    "SQLITE_CORRUPT": "The file is damaged: restore it from a backup, or recover it with sqlite3's .recover.",
}


def classify(error: sqlite3.Error, path: str, *, committing: bool = False) -> DatabaseError:
    """The error of reltask's tree for this one."""
    name = primary_name(error)
    message = f"SQLite file {path}: {error}."
    if name == "SQLITE_IOERR" and committing:
        return AmbiguousError(message, remedy="The disk failed during a commit, which may or may not have succeeded.")
    if name in _TRANSIENT:
        return TransientError(message, remedy=_TRANSIENT[name])
    if isinstance(error, sqlite3.IntegrityError):
        return ConflictError(message)
    if name in _REFUSED:
        return AccessRefused(message, remedy=_REFUSED[name])
    if committing:
        return AmbiguousError(message, remedy=_PERMANENT.get(name, ""))
    return PermanentError(message, remedy=_PERMANENT.get(name, ""))


def unbindable(path: str) -> DatabaseError:
    """The driver cannot bind a number; nothing was applied. Its text is withheld, as it may quote the number."""
    return PermanentError(f"SQLite file {path}: a number is too large for a column.")


def is_busy(error: sqlite3.Error) -> bool:
    """Whether another connection's lock prevented the statement; nothing was applied."""
    return primary_name(error) == "SQLITE_BUSY"


def primary_name(error: sqlite3.Error) -> str:
    """`SQLITE_BUSY` for `SQLITE_BUSY_SNAPSHOT` and the like; empty for an error of the driver itself."""
    name = str(getattr(error, "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])
