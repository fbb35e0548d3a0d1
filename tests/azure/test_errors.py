"""Every error number and error text that matters has its class, and the message says what to do."""

from __future__ import annotations

import re

import mssql_python
import pytest
from mssql_python.exceptions import sqlstate_to_exception

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
from reltask.stores.mssql.connections import failed, fetch
from reltask.stores.mssql.error_numbers import PHRASES
from reltask.stores.mssql.errors import _number_in, answered, connection_failed, quotable, read_only, statement_failed
from reltask.stores.statement import Statement
from reltask.worker.settle import AWAY

CORE = [4060, 40501, 40613, 49918, 49919, 49920, 4221, 615, 926]
RESOURCES = [10928, 10929, 10930, 10936, 10922, 11001, 17197, 18401, 42108, 42109, 40106]
RESOURCES += [45153, 45156, 45157, 45161, 45179, 45182]
LOCKS = [1203, 1204, 1205, 1222, 1221, 3960, 3935, *range(3947, 3958), 3966, 3980, 41301, 41302, 41305, 41325, 41839]
LOCKS += [41823, 41840, 8628, 8645, 8651, 617, 669, 921, 927, 941, 952, 982, 988, 1232, 1807, 2816, 40189, 40623]
LOCKS += [40642, 40648, 40671, 40675, 40890, 40903, 40918, 40938, 49510, 49802, 49977, 49983]
ENDS_THE_CONNECTION = [40197, 40020, 40143, 40166, 40540, 10053, 10054, 10060, 233, 121, 64, 20, 997, -2]
NEVER = [40615, 18456, 40531, 40544]
READ_ONLY = [3906, 978, 976]
MEMORY = [701, 802]
FULL = [1101, 1105, 40544]


def driver_error(state: str, text: str = "") -> Exception:
    """An exception as mssql-python raises it, from a SQLSTATE and the server's text."""
    error = sqlstate_to_exception(state, f"[Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{text}")
    assert isinstance(error, mssql_python.Error)
    return error


def pyodbc_error(state: str, text: str, number: int) -> Exception:
    """An exception as pyodbc raises it."""
    return Exception(
        state, f"[{state}] [Microsoft][ODBC Driver 18 for SQL Server][SQL Server]{text} ({number}) (SQLExecDirectW)"
    )


@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("number", [*CORE, *RESOURCES, *LOCKS, *READ_ONLY, *MEMORY])
def test_transient_number(number: int, *, writes: bool) -> None:
    """Refused or rolled back by the server: not applied, and worth a retry."""
    assert type(answered(number, "Words.", verb="claim_jobs", writes=writes)) is TransientError


@pytest.mark.parametrize("number", ENDS_THE_CONNECTION)
def test_number_that_ends_the_connection(number: int) -> None:
    """A write that was under way is not sent again blindly: it may have been committed."""
    assert type(answered(number, "Words.", verb="complete_jobs", writes=True)) is AmbiguousError
    assert type(answered(number, "Words.", verb="read_status", writes=False)) is TransientError


@pytest.mark.parametrize("number", NEVER)
def test_permanent_number(number: int) -> None:
    """A retry does not help. Each message says what a person can do."""
    error = answered(number, "Words.", verb="connect", writes=True)
    assert isinstance(error, PermanentError)
    assert error.remedy


@pytest.mark.parametrize("number", FULL)
def test_full_database(number: int) -> None:
    """It is not retried blindly, but no value is wrong: an outcome is kept until there is room for it."""
    error = answered(number, "Words.", verb="complete_jobs", writes=True)
    assert type(error) is AccessRefused
    assert isinstance(error, AWAY)
    assert "Words" in str(error)
    assert error.remedy


@pytest.mark.parametrize(("number", "kind"), [(2627, ConflictError), (2601, ConflictError), (547, ConflictError)])
def test_constraint(number: int, kind: type[ReltaskError]) -> None:
    """A constraint violation is not an outage."""
    assert type(answered(number, "Words.", verb="complete_jobs", writes=True)) is kind


def test_missing_table_and_unknown_number() -> None:
    """A missing table names the command that creates it. An unknown number is permanent."""
    assert type(answered(208, "Invalid object name 'reltask.Jobs'.", verb="v", writes=True)) is SchemaError
    assert type(answered(99999, "Words.", verb="v", writes=True)) is PermanentError


@pytest.mark.parametrize("number", [2627, 2601, 245, 2628, 8152, 99999])
def test_text_that_may_quote_values_is_withheld(number: int) -> None:
    """Arguments and keys never reach a log through an error of the database."""
    text = "Violation of PRIMARY KEY constraint. The duplicate key value is (geheim)."
    error = answered(number, text, verb="enqueue_jobs", writes=True)
    assert "geheim" not in str(error)
    assert str(number) in str(error)
    assert quotable(pyodbc_error("23000", text, number)) is None


CONNECTING = [
    (
        "42000",
        "Cannot open server 's' requested by the login. Client with IP address '203.0.113.7' is not allowed to access.",
        AccessRefused,
        "203.0.113.7.*firewall rule",
    ),
    ("28000", "Login failed for user '<token-identified principal>'. Token is expired.", AccessRefused, "az login"),
    ("28000", "Login failed for user 'sa'.", AccessRefused, "CREATE USER.*password"),
    ("28000", "", AccessRefused, "az login"),
    (
        "42000",
        'Cannot open database "Nope" requested by the login. The login failed.',
        TransientError,
        "Nope.*correct its name in the URL",
    ),
    (
        "42000",
        'Cannot open server "nope" requested by the login. The login failed.',
        AccessRefused,
        "name of the server",
    ),
    (
        "42000",
        "Reason: An instance-specific error. Deny Public Network Access is set to Yes.",
        AccessRefused,
        "private",
    ),
    (
        "42000",
        "Database 'D' on server 'S' is not currently available. Please retry later.",
        TransientError,
        "available",
    ),
    (
        "42000",
        "Resource ID: 1. The session limit for the database is 300 and has been reached.",
        TransientError,
        "pool_size",
    ),
    (
        "42000",
        "('D') is currently accessible for connections when the application intent is set to read only.",
        TransientError,
        "primary",
    ),
    ("08001", "TCP Provider: Error code 0x2AF9", TransientError, "name of the server"),
    ("08001", "TCP Provider: Error code 0x2749", TransientError, "no SQL Server answers on this port.*that port"),
    ("08001", "TCP Provider: Timeout error [258]. ", TransientError, "no answer in time"),
    ("HYT00", "Login timeout expired", TransientError, "no answer in time"),
    ("08001", "SSL Provider: [error:0A000086:SSL routines::certificate verify failed]", AccessRefused, "certificate"),
    ("08001", "Encryption not supported on the server.", AccessRefused, "TLS.*encrypt=no"),
    ("IM003", "Can't open lib 'x': libltdl.so.7: cannot open shared object file", MissingExtra, "apt-get install"),
    ("IM003", "Failed to load the driver. Please read the documentation", MissingExtra, "apt-get install"),
]


@pytest.mark.parametrize(("state", "text", "kind", "advice"), CONNECTING)
def test_failure_to_connect(state: str, text: str, kind: type[ReltaskError], advice: str) -> None:
    """While connecting the driver reports no number, so the server's text decides.

    Each message says what to do.
    """
    error = connection_failed(driver_error(state, text))
    assert type(error) is kind
    assert re.search(advice, str(error)), str(error)


DOCUMENTED = [
    (207, "Invalid column name 'Headers'."),
    (208, "Invalid object name 'reltask.Jobs'."),
    (229, "The UPDATE permission was denied on the object 'Jobs', database 'D', schema 'reltask'."),
    (547, 'The INSERT statement conflicted with the CHECK constraint "CK_Jobs_Priority".'),
    (596, "Cannot continue the execution because the session is in the kill state."),
    (701, "There is insufficient system memory in resource pool 'default' to run this query."),
    (916, 'The server principal "u" is not able to access the database "D" under the current security context.'),
    (976, "The target database, 'D', is participating in an availability group and is currently not accessible."),
    (978, "('D') is currently accessible for connections when the application intent is set to read only."),
    (1105, "Could not allocate space for object 'Jobs' in database 'D' because the 'PRIMARY' filegroup is full."),
    (1105, "Could not allocate a new page for database 'D' because of insufficient disk space in filegroup 'F'."),
    (1205, "Transaction (Process ID 52) was deadlocked on lock resources with another process."),
    (1222, "Lock request time out period exceeded."),
    (2627, "Violation of PRIMARY KEY constraint 'PK_Runs'. Cannot insert duplicate key in object 'reltask.Runs'."),
    (3902, "The COMMIT TRANSACTION request has no corresponding BEGIN TRANSACTION."),
    (3906, 'Failed to update database "D" because the database is read-only.'),
    (3930, "The current transaction cannot be committed and cannot support operations that write to the log file."),
    (3960, "Snapshot isolation transaction aborted due to update conflict."),
    (3998, "Uncommittable transaction is detected at the end of the batch. The transaction is rolled back."),
    (4060, 'Cannot open database "D" requested by the login. The login failed.'),
    (9002, "The transaction log for database 'D' is full due to 'LOG_BACKUP'."),
    (10928, "Resource ID: 1. The request limit for the database is 30 and has been reached."),
    (10929, "Resource ID: 1. The request minimum guarantee is 0, maximum limit is 60 and the current usage is 60."),
    (10936, "Resource ID : 1. The request limit for the elastic pool is 30 and has been reached."),
    (10053, "TCP Provider: Error code 0x2745"),
    (10054, "TCP Provider: Error code 0x2746"),
    (10060, "TCP Provider: Error code 0x274C"),
    (11001, "TCP Provider: No such host is known."),
    (18401, "Login failed for user 'u'. Reason: Server is in script upgrade mode."),
    (18452, "Login failed. The login is from an untrusted domain and cannot be used with Integrated authentication."),
    (18456, "Login failed for user 'u'."),
    (18470, "Login failed for user 'u'. Reason: The account is disabled."),
    (18487, "Login failed for user 'u'.  Reason: The password of the account has expired."),
    (18488, "Login failed for user 'u'.  Reason: The password of the account must be changed."),
    (37353, "Login failed. The server is not currently configured to accept this token."),
    (40197, "The service has encountered an error processing your request. Please try again. Error code 40540."),
    (40501, "The service is currently busy. Retry the request after 10 seconds."),
    (40531, "Server name cannot be determined. It must appear as the first segment of the server's dns name."),
    (40532, "Cannot open server 's' requested by the login. The login failed."),
    (40544, "The database has reached its size quota. Partition or delete data, drop indexes."),
    (40544, "The database 'D' has reached its size quota."),
    (40549, "Session is terminated because you have a long-running transaction. Try shortening your transaction."),
    (40550, "The session has been terminated because it has acquired too many locks."),
    (40551, "The session has been terminated because of excessive TEMPDB usage."),
    (40552, "The session has been terminated because of excessive transaction log space usage."),
    (40553, "The session has been terminated because of excessive memory usage."),
    (40613, "Database 'D' on server 's' is not currently available. Please retry the connection later."),
    (40615, "Cannot open server 's' requested by the login. Client with IP address '203.0.113.7' is not allowed."),
    (40914, "Cannot open server 's' requested by the login. Client is not allowed to access the server."),
    (47073, "Reason: An instance-specific error. Connection was denied since Deny Public Network Access is Yes."),
    (49918, "Cannot process request. Not enough resources to process request. Please retry your request later."),
    (49919, "Cannot process create or update request. Too many create or update operations in progress."),
    (49919, "Cannot process request. Too many operations in progress for subscription."),
]
"""What Microsoft documents: one text at least for each pattern."""


@pytest.mark.parametrize(("number", "text"), DOCUMENTED, ids=[str(number) for number, _ in DOCUMENTED])
def test_documented_text_is_recognised(number: int, text: str) -> None:
    """The driver hides the number. A pattern that the server's own words miss would make the error permanent."""
    assert _number_in(text) == number


def test_every_pattern_has_a_documented_text() -> None:
    """A pattern that no text of the table matches was never tested."""
    texts = [text.lower() for _, text in DOCUMENTED]
    assert not [pattern for pattern, _ in PHRASES if not any(re.search(pattern, text) for text in texts)]


STATEMENTS = [
    ("08S01", "TCP Provider: Error code 0x2746", AmbiguousError, TransientError),
    ("08S01", "", AmbiguousError, TransientError),
    ("08007", "", AmbiguousError, TransientError),
    ("40003", "", AmbiguousError, TransientError),
    ("HYT00", "Query timeout expired", AmbiguousError, TransientError),
    ("HY008", "", AmbiguousError, TransientError),
    ("08003", "", TransientError, TransientError),
    ("40001", "", TransientError, TransientError),
    ("40001", "Transaction (Process ID 5) was deadlocked on lock resources.", TransientError, TransientError),
    ("25S03", "", TransientError, TransientError),
    ("42000", "Lock request time out period exceeded.", TransientError, TransientError),
    ("42000", "The service is currently busy. Retry the request after 10 seconds.", TransientError, TransientError),
    ("42000", "The service has encountered an error processing your request.", AmbiguousError, TransientError),
    ("42000", 'Failed to update database "D" because the database is read-only.', TransientError, TransientError),
    ("42000", "The UPDATE permission was denied on the object 'Jobs'.", AccessRefused, AccessRefused),
    ("42000", "The database 'D' has reached its size quota.", AccessRefused, AccessRefused),
    ("42000", "Could not allocate space for object 'Jobs', filegroup 'PRIMARY' is full.", AccessRefused, AccessRefused),
    ("42000", "There is insufficient system memory in resource pool 'x'.", TransientError, TransientError),
    ("42S02", "Invalid object name 'reltask.Jobs'.", SchemaError, SchemaError),
    ("42S22", "", SchemaError, SchemaError),
    ("23000", "", ConflictError, ConflictError),
    ("23000", "Violation of PRIMARY KEY constraint 'PK_Runs'.", ConflictError, ConflictError),
    ("22001", "String or binary data would be truncated: 'geheim'.", AmbiguousError, PermanentError),
    ("42000", "Incorrect syntax near 'geheim'.", AmbiguousError, PermanentError),
]


@pytest.mark.parametrize(("state", "text", "writing", "reading"), STATEMENTS)
def test_statement_that_failed(state: str, text: str, writing: type[ReltaskError], reading: type[ReltaskError]) -> None:
    """Errors that SQL cannot catch on the server are recognised by the driver's and the server's text."""
    error = driver_error(state, text)
    assert type(statement_failed(error, verb="claim_jobs", writes=True)) is writing
    assert type(statement_failed(error, verb="read_status", writes=False)) is reading
    assert "geheim" not in str(statement_failed(error, verb="claim_jobs", writes=True))


class Unreadable:
    """A connection, and its cursor: a batch is executed, and its answer cannot be read."""

    description = (("now",),)

    def __init__(self, error: Exception) -> None:
        self._error = error

    def cursor(self) -> Unreadable:
        return self

    def execute(self, text: str) -> None: ...

    def close(self) -> None: ...

    def fetchall(self) -> None:
        raise self._error


UNREADABLE = [
    (OverflowError("geheim"), AmbiguousError, PermanentError),
    (driver_error("22007", "geheim"), AmbiguousError, PermanentError),
    (driver_error("08S01"), AmbiguousError, TransientError),
    (driver_error("40001"), TransientError, TransientError),
]


@pytest.mark.parametrize(("error", "writing", "reading"), UNREADABLE)
def test_answer_that_cannot_be_read(error: Exception, writing: type[ReltaskError], reading: type[ReltaskError]) -> None:
    """The batch was executed: unless the server says otherwise, a write may have been applied."""
    with pytest.raises(Exception) as raised:  # noqa: PT011 - an error of the adapter's own
        fetch(Unreadable(error), Statement("SELECT 1", ()), {})
    assert type(failed(raised.value, verb="claim_jobs", writes=True)) is writing
    assert type(failed(raised.value, verb="read_status", writes=False)) is reading
    assert "geheim" not in str(failed(raised.value, verb="claim_jobs", writes=True))


@pytest.mark.parametrize("number", [1205, 40501, 40615, 2627, 10054])
def test_pyodbc_reports_the_number(number: int) -> None:
    """The driver pyodbc has the number at the end of its text. It is used before the words."""
    error = statement_failed(pyodbc_error("42000", "Whatever.", number), verb="v", writes=True)
    assert type(error) is type(answered(number, "Whatever.", verb="v", writes=True))


@pytest.mark.parametrize("error", [OSError(104, "Connection reset by peer"), TimeoutError(), BrokenPipeError()])
def test_operating_system(error: OSError) -> None:
    """Errors of the network itself, before and after sending."""
    assert type(statement_failed(error, verb="v", writes=True)) is AmbiguousError
    assert type(connection_failed(error)) is TransientError
    assert quotable(error) is error


@pytest.mark.parametrize(
    ("number", "advice"),
    [
        (229, "permissions.sql"),
        (916, "CREATE USER"),
        (3906, "primary"),
        (18456, "az login"),
        (40615, "Create-AzureResources.ps1"),
        (37353, "Entra administrator"),
    ],
)
def test_remedy(number: int, advice: str) -> None:
    """A missing role, a read-only replica, a login, a firewall: the message says what to do."""
    assert advice in answered(number, "Words.", verb="v", writes=True).remedy


def test_replica_found_at_the_start() -> None:
    """A store that opens on a read-only database raises."""
    assert "primary" in str(read_only())


def test_words_of_the_server_are_clean() -> None:
    """No driver prefixes, no line breaks, no native number twice."""
    error = connection_failed(pyodbc_error("42000", "The service\n is currently busy.", 40501))
    assert str(error) == "SQL Server says: The service is currently busy (40501)."
