"""Maps errors of SQL Server, its driver and the network to reltask's error tree.

                      before sending            while a statement was running
    refused, timeout  TransientError            read: TransientError     write: AmbiguousError
    an error answer   by its number             by its number; one that ends the connection: like a lost answer
    anything else     PermanentError            read: PermanentError     write: AmbiguousError

mssql-python reports neither the number nor the SQLSTATE of an error. So statements catch their own errors on the server
and return ERROR_NUMBER() with ERROR_MESSAGE(): `answered`. An error that cannot be caught there, because the connection
or the login failed, is recognised by the driver's name for the SQLSTATE and by the server's message:
`statement_failed`, `connection_failed`. pyodbc, which reports both, is supported as well.

Messages name the condition and the remedy. They contain no arguments, passwords or tokens: a text that may quote values
is withheld.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from reltask.errors import (
    AccessRefused,
    AmbiguousError,
    ConflictError,
    MissingExtra,
    PermanentError,
    ReltaskError,
    SchemaError,
    TransientError,
)
from reltask.stores.mssql.driver import LIBRARIES
from reltask.stores.mssql.error_numbers import (
    CONFLICT,
    LOST,
    MISSING,
    PHRASES,
    REFUSED,
    REMEDIES,
    SILENT,
    TRANSIENT,
)

MIGRATE = "Run: reltask migrate"

_STATES = {
    "Client unable to establish connection": "08001",
    "Connection not open": "08003",
    "Server rejected the connection": "08004",
    "Connection failure during transaction": "08007",
    "Communication link failure": "08S01",
    "Integrity constraint violation": "23000",
    "Transaction is rolled back": "25S03",
    "Invalid authorization specification": "28000",
    "Serialization failure": "40001",
    "Statement completion unknown": "40003",
    "Base table or view not found": "42S02",
    "Column not found": "42S22",
    "Operation canceled": "HY008",
    "Timeout expired": "HYT00",
    "Connection timeout expired": "HYT01",
}
"""The SQLSTATE behind mssql-python's own messages, for those that matter here."""

_LATE_STATES = frozenset({"HY008", "HYT00", "HYT01"})
_LATE_NUMBERS = frozenset({-2, 121, 10060})
_LOST_STATES = frozenset({"08007", "08S01", "40003"}) | _LATE_STATES
_UNLOADED = r"lib(?:ltdl|krb5|gssapi_krb5)|Failed to load the driver"
_NUMBER = re.compile(r"\((-?\d+)\) \(SQL\w+\)")
"""The end of a pyodbc message: the native number and the function that failed."""
_PREFIXES = re.compile(r"^(?:\[[^\]]*\]\s*)+")


class _Said(NamedTuple):
    """The contents of a driver's exception."""

    state: str
    number: int | None
    text: str


def answered(number: int, text: str, *, verb: str, writes: bool) -> ReltaskError:
    """An error that the server has answered with its number."""
    if number in MISSING:
        return missing_schema()
    if number in LOST:
        return _lost(verb, writes=writes, late=number in _LATE_NUMBERS)
    message = f"SQL Server says: {_clean(text)} ({number})." if _quotable(number) else _refusal(number)
    return _kind(number)(message, remedy=REMEDIES.get(number, ""))


def connection_failed(error: BaseException) -> ReltaskError:
    """An attempt to connect failed: certainly nothing was applied."""
    said = _read(error)
    if re.search(_UNLOADED, said.text):
        return MissingExtra(
            "the SQL Server driver needs system libraries that are not installed.",
            remedy=f"On Debian and Ubuntu run: {LIBRARIES}",
        )
    if re.search("certificate verify failed|certificate.*not trusted", said.text, re.IGNORECASE):
        return AccessRefused(
            "the certificate of the database server cannot be verified.",
            remedy="Install its CA certificate here. Or, only with a SQL login: trust_server_certificate=true.",
        )
    if re.search("not support encryption|encryption (is )?not supported", said.text, re.IGNORECASE):
        return AccessRefused(
            "the database server does not offer TLS.",
            remedy="Turn TLS on at the server. With a SQL login, encrypt=no in the URL sends everything in clear text.",
        )
    number = said.number if said.number is not None else _number_in(said.text)
    if number is not None and number not in LOST:
        return answered(number, said.text, verb="connect", writes=False)
    if said.state == "28000":
        return answered(18456, said.text, verb="connect", writes=False)
    return TransientError(
        f"the database server cannot be reached: {_unreached(said, number)}.",
        remedy="Check the server's name and port in the URL, that it runs, and that no firewall blocks that port.",
    )


def statement_failed(error: BaseException, *, verb: str, writes: bool) -> ReltaskError:
    """A statement that was sent, and whose error could not be caught on the server."""
    said = _read(error)
    number = said.number or _number_in(said.text)
    if number is not None:
        known = answered(number, said.text, verb=verb, writes=writes)
        return _unrecognized(known, writes=writes)
    if said.state in _LOST_STATES or isinstance(error, OSError):
        late = said.state in _LATE_STATES or isinstance(error, TimeoutError)
        return _lost(verb, writes=writes, late=late)
    if said.state == "08003":
        return TransientError(f"{verb}: the connection was closed before the statement was sent.")
    if said.state.startswith("42S"):
        return missing_schema()
    known = _by_state(said.state)(
        f"{verb}: {type(error).__name__} from the driver; its text may quote arguments and is withheld."
    )
    return _unrecognized(known, writes=writes)


def _unrecognized(error: ReltaskError, *, writes: bool) -> ReltaskError:
    """What is not known to mean "not applied" is ambiguous: a killed session, for example, has many messages."""
    return AmbiguousError(str(error)) if writes and type(error) is PermanentError else error


def missing_schema() -> SchemaError:
    """The tables are missing, or too old for the statement."""
    return SchemaError("the database has no reltask tables, or older ones than this version needs.", remedy=MIGRATE)


def read_only() -> PermanentError:
    """The database is read-only: found when a store opens."""
    return PermanentError("this database is read-only; workers need the primary.", remedy=REMEDIES[3906])


def low_compatibility_level(level: int, *, needed: int) -> PermanentError:
    """The database's compatibility level is too low: found when a store opens."""
    return PermanentError(
        f"this database has compatibility level {level}, but OPENJSON needs {needed}.",
        remedy=f"As its owner, run: ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = {needed};",
    )


def quotable(error: BaseException) -> BaseException | None:
    """The error to chain as the cause; None if its text might carry arguments into a log."""
    said = _read(error)
    number = said.number if said.number is not None else _number_in(said.text)
    known = number is not None and _quotable(number)
    return error if known or isinstance(error, OSError) else None


def _read(error: BaseException) -> _Said:
    """State, number and text of an error of mssql-python or pyodbc."""
    sentence = getattr(error, "driver_error", None)
    if sentence is not None:
        return _Said(_STATES.get(sentence, ""), None, f"{getattr(error, 'ddbc_error', '')}")
    if isinstance(error, OSError):  # TimeoutError is one
        return _Said("", None, error.strerror or "")
    state, text = (*error.args, "", "")[:2]
    native = _NUMBER.search(f"{text}")
    return _Said(f"{state}", int(native[1]) if native else None, f"{text or state}")


def _number_in(text: str) -> int | None:
    """The error number for the server's message."""
    folded = text.lower()
    return next((number for phrase, number in PHRASES if re.search(phrase, folded)), None)


def _lost(verb: str, *, writes: bool, late: bool) -> ReltaskError:
    what = "the database did not answer in time" if late else "the connection was lost before the answer"
    if writes:
        return AmbiguousError(f"{verb}: {what}; it may or may not have been applied.")
    return TransientError(f"{verb}: {what}.")


def _kind(number: int) -> type[ReltaskError]:
    if number in TRANSIENT:
        return TransientError
    if number in REFUSED:
        return AccessRefused
    return ConflictError if number in CONFLICT else PermanentError


def _by_state(state: str) -> type[ReltaskError]:
    if state in {"40001", "25S03"}:
        return TransientError
    return ConflictError if state.startswith("23") else PermanentError


def _quotable(number: int) -> bool:
    return (number in TRANSIENT or number in REMEDIES or number in CONFLICT) and number not in SILENT


def _refusal(number: int) -> str:
    what = "a row that breaks a constraint" if number in CONFLICT else "the statement"
    return f"SQL Server refused {what} (error {number}; its text may quote values and is withheld)."


def _clean(text: str) -> str:
    """The server's own message, without the driver's prefixes, on one line."""
    plain = _NUMBER.sub("", _PREFIXES.sub("", text))
    return " ".join(plain.split()).rstrip(".")


def _unreached(said: _Said, number: int | None) -> str:
    if number in _LATE_NUMBERS or said.state in _LATE_STATES:
        return "no answer in time"
    if re.search("error code 0x2749|10057", said.text, re.IGNORECASE):
        return "no SQL Server answers on this port"
    return _clean(said.text) or "the connection was refused"
