"""Maps errors of PostgreSQL, its driver and the network to reltask's error tree.

                      before sending            while a statement was running
    refused, timeout  TransientError            read: TransientError     write: AmbiguousError
    an error answer   by SQLSTATE, below        by SQLSTATE, below
    of the driver     PermanentError            read: PermanentError     write: AmbiguousError

The driver checks its state and encodes the values before it sends anything: then it raises InterfaceError, or an error
of class 22. Any other exception of its own means that it could not read the answer: the statement was applied.

An error answer means that the transaction was rolled back. The exceptions are errors that end the *connection* (08…,
57P01, 57P02): the statement may have been committed just before.

Messages name the condition and the remedy. They never contain arguments or passwords: the text of a data error (class
22) quotes the wrong value, so it is withheld.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping

from reltask.errors import (
    AccessRefused,
    AmbiguousError,
    ConflictError,
    PermanentError,
    ReltaskError,
    SchemaError,
    TransientError,
)
from reltask.stores.postgres.driver import asyncpg

_LOCKED = "55P03"
"""A lock was not available within lock_timeout."""

PATIENCE = "100ms"
"""How long a statement waits for a locked row that it cannot skip: longer than a heartbeat or a claim holds it."""
SKIP_FOR = 5.0
"""Seconds in which the statement that skips locked rows is sent at once, after that wait was in vain."""

_DYING = frozenset({"57P01", "57P02"})
"""The server ends this connection: a running statement may or may not have been committed."""

_TRANSIENT = frozenset(
    {
        "25006",  # read-only: a primary that has become a standby; the new primary will answer
        "25P03",  # idle-in-transaction timeout
        "40001",  # serialization failure
        "40P01",  # deadlock
        "57014",  # statement timeout on the server: rolled back
        "57P03",  # starting up or shutting down
        "57P05",  # idle-session timeout
        "58030",  # input/output error
    }
)

_REFUSED = frozenset({"28000", "28P01", "3D000", "42501"})
"""No login, no such database, no permission: every statement fails."""

_REMEDIES = {
    "28P01": "Check the user and the password in the URL.",
    "28000": "Check the user in the URL, and pg_hba.conf on the server.",
    "3D000": "Create the database, or correct its name in the URL.",
    "53100": "Free disk space on the server. Nothing is lost; work continues when there is space.",
    "42501": "Grant this user one of the roles in database/postgres/permissions.sql.",
}
_NO_ROLE = (
    "The user in the URL must be the role of the token's identity; an administrator creates it with "
    "pgaadauth_create_principal."
)
_TOKEN_REMEDIES = _REMEDIES | {"28P01": _NO_ROLE, "28000": _NO_ROLE}

_OTHER_NAME = frozenset({62, 64})
"""OpenSSL's codes for a valid certificate of another host or address."""

_ENDS_SESSION = frozenset({"FATAL", "PANIC"})
"""Severities after which the session is gone, whatever the SQLSTATE: a write may or may not have been applied."""

_MISSING = frozenset({"42P01", "42703", "3F000"})
"""A table, a column or the schema is missing."""

MIGRATE = "Run: reltask migrate"


class RowLocked(TransientError):
    """Another session has locked a row, and did not let go within the statement's lock_timeout."""


class EndedBefore(ConflictError):
    """The ledger knows the id of a new job."""


def missing_schema() -> SchemaError:
    """The tables are missing, or too old for the statement."""
    return SchemaError("the database has no reltask tables, or older ones than this version needs.", remedy=MIGRATE)


def connection_failed(error: BaseException, *, token: bool = False) -> ReltaskError:
    """An attempt to connect failed: certainly nothing was applied. `token`: the password was an Entra token."""
    if isinstance(error, asyncpg.PostgresError):
        return _answered(error, writes=False, remedies=_TOKEN_REMEDIES if token else _REMEDIES)
    if isinstance(error, TimeoutError | asyncio.CancelledError):
        return TransientError("the database did not answer in time while connecting.")
    if "rejected SSL upgrade" in str(error):
        return _without_tls(token=token)
    if isinstance(error, ssl.SSLCertVerificationError):
        return _unverified(error, token=token)
    if isinstance(error, OSError | asyncpg.TargetServerAttributeNotMatched):
        return TransientError(f"the database cannot be reached: {_reason(error)}.")
    return AccessRefused(f"the database cannot be reached: {type(error).__name__}.")


def _without_tls(*, token: bool) -> AccessRefused:
    if token:
        return AccessRefused(
            "the database server does not offer TLS, and a token of Microsoft Entra ID is never sent unencrypted.",
            remedy="Turn on TLS on the server.",
        )
    return AccessRefused(
        "the database server does not offer TLS, which is required for other machines or by the URL.",
        remedy="Turn on TLS on the server, or add ?sslmode=disable to the URL to send everything in clear text.",
    )


def _unverified(error: ssl.SSLCertVerificationError, *, token: bool) -> AccessRefused:
    if error.verify_code not in _OTHER_NAME:
        remedy = "Install its CA certificate here, or name a file that contains it: sslrootcert=FILE in the URL."
    elif token:
        remedy = "Use a host name in the URL that the certificate contains."
    else:
        remedy = (
            "Use a host name in the URL that the certificate contains; or, with its CA certificate in a file "
            "(sslrootcert=…), write sslmode=verify-ca."
        )
    reason = error.verify_message.removesuffix(".")
    return AccessRefused(f"the certificate of the database server cannot be verified: {reason}.", remedy=remedy)


def statement_failed(error: BaseException, *, verb: str, writes: bool) -> ReltaskError:
    """A statement was sent and failed."""
    if isinstance(error, asyncpg.PostgresConnectionError | asyncpg.InternalClientError | TimeoutError | OSError):
        return _lost(verb, writes=writes)
    if isinstance(error, asyncpg.PostgresError):
        return _answered(error, writes=writes)
    if isinstance(error, asyncpg.InterfaceError) and "connection is closed" in str(error):
        return TransientError(f"{verb}: the connection was closed before the statement was sent.")
    withheld = f"{verb}: {type(error).__name__} from the driver; its text may quote arguments and is withheld."
    if writes and not isinstance(error, asyncpg.InterfaceError):
        return AmbiguousError(withheld)
    return PermanentError(withheld)


def uncommitted() -> PermanentError:
    """A statement was answered, but its transaction is still open: closing the connection rolls it back."""
    return PermanentError(
        "a statement was answered but not committed: a pooler in front of PostgreSQL has begun a transaction.",
        remedy="Behind Pgpool-II set backend_clustering_mode = 'streaming_replication'.",
    )


def quotable(error: BaseException) -> BaseException | None:
    """The error to chain as the cause; None if its text might carry arguments into a log."""
    answered = isinstance(error, asyncpg.PostgresError) and not (error.sqlstate or "22").startswith("22")
    return error if answered or isinstance(error, OSError | TimeoutError) else None


def _lost(verb: str, *, writes: bool) -> ReltaskError:
    if writes:
        return AmbiguousError(
            f"{verb}: the connection was lost before the answer; it may or may not have been applied."
        )
    return TransientError(f"{verb}: the connection was lost before the answer.")


def _answered(error: asyncpg.PostgresError, *, writes: bool, remedies: Mapping[str, str] = _REMEDIES) -> ReltaskError:
    state = error.sqlstate or ""
    if state in _MISSING:
        return missing_schema()
    if state.startswith("22"):
        return PermanentError(f"PostgreSQL refused a value ({type(error).__name__}, {state}).")
    text = f"PostgreSQL says: {error.args[0] if error.args else type(error).__name__} ({state})."
    if error.constraint_name == "jobs_id_is_new":
        return EndedBefore(text)
    if isinstance(error, asyncpg.InvalidCachedStatementError):
        return TransientError(text)  # outdated by a migration: it is prepared again on the next connection
    if getattr(error, "severity_en", None) in _ENDS_SESSION and writes:
        return AmbiguousError(text)
    return _kind(state, writes=writes)(text, remedy=remedies.get(state, ""))


def _kind(state: str, *, writes: bool) -> type[ReltaskError]:
    if state in _DYING or state.startswith("08"):
        return AmbiguousError if writes else TransientError
    if state == _LOCKED:
        return RowLocked
    if state in _TRANSIENT or state.startswith("53"):
        return TransientError
    if state in _REFUSED:
        return AccessRefused
    return ConflictError if state.startswith("23") else PermanentError


def _reason(error: OSError | asyncpg.TargetServerAttributeNotMatched) -> str:
    """The operating system's message, without the addresses that asyncio appends; or a message for a failover."""
    if not isinstance(error, OSError):
        return "no server in the URL accepts writes now, as target_session_attrs demands"
    return error.strerror or type(error).__name__
