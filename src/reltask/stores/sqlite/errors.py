"""What SQLite says, sorted once into reltask's error tree.

    BUSY, LOCKED,         somebody else was writing for too long       TransientError
    PROTOCOL
    FULL, IOERR           the disk                                     TransientError; at COMMIT an IOERR is Ambiguous
    CONSTRAINT            a rule of the schema refused the write       ConflictError
    CANTOPEN, READONLY,   somebody has to let us in                    AccessRefused
    PERM, AUTH
    NOTADB, CORRUPT, …    nothing that waiting would change            PermanentError

Nothing else here can be ambiguous: there is no network between a statement and its answer.
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
    "SQLITE_BUSY": "Another process was writing for too long; it will be tried again.",
    "SQLITE_PROTOCOL": "Another process kept the file's index of changes for too long; it will be tried again.",
    "SQLITE_LOCKED": "Another connection of this process was writing; it will be tried again.",
    "SQLITE_FULL": "The disk is full: free some space. It will be tried again.",
    "SQLITE_IOERR": "The disk failed or the file is on a network share; put it on a healthy local disk.",
    "SQLITE_NOMEM": "The machine is short of memory.",
    "SQLITE_INTERRUPT": "The statement was interrupted; it will be tried again.",
}

_REFUSED = {
    "SQLITE_CANTOPEN": "Check that the directory exists and that this user may read and write it.",
    "SQLITE_READONLY": "reltask writes to it: let this user write the file and the directory it is in.",
    "SQLITE_PERM": "Let this user read and write the file and the directory it is in.",
    "SQLITE_AUTH": "Let this user read and write the file and the directory it is in.",
}

_PERMANENT = {
    "SQLITE_NOTADB": "The file is not an SQLite database: name another one.",
    "SQLITE_CORRUPT": "The file is damaged: restore it from a backup, or recover it with sqlite3's .recover.",
}


def classify(error: sqlite3.Error, path: str, *, committing: bool = False) -> DatabaseError:
    """The error of reltask's tree that says what this one means for the caller."""
    name = primary_name(error)
    message = f"SQLite file {path}: {error}."
    if name == "SQLITE_IOERR" and committing:
        return AmbiguousError(message, remedy="The disk failed during a commit, which may or may not be on it.")
    if name in _TRANSIENT:
        return TransientError(message, remedy=_TRANSIENT[name])
    if isinstance(error, sqlite3.IntegrityError):
        return ConflictError(message)
    if name in _REFUSED:
        return AccessRefused(message, remedy=_REFUSED[name])
    return PermanentError(message, remedy=_PERMANENT.get(name, ""))


def is_busy(error: sqlite3.Error) -> bool:
    """Whether somebody else's lock was in the way, and nothing has happened."""
    return primary_name(error) == "SQLITE_BUSY"


def primary_name(error: sqlite3.Error) -> str:
    """`SQLITE_BUSY` for `SQLITE_BUSY_SNAPSHOT` and its like; empty where the driver itself complained."""
    name = str(getattr(error, "sqlite_errorname", ""))
    return "_".join(name.split("_")[:2])
