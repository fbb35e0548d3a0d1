"""SQL Server's error numbers, and what each of them means to reltask.

    LOST        the connection ends: a write in progress may or may not have been committed
    STALE       the database behind the connection is not the one to use, or not any more: connect again
    TRANSIENT   refused or rolled back; the same statement may succeed later
    REFUSED     no login, no permission or no space: every statement fails until an administrator fixes it
    CONFLICT    a constraint
    MISSING     no such table or column
    REMEDIES    what a user can do about it; most of these are permanent

A number in none of these sets is permanent, if the server has caught the error and rolled back; otherwise the outcome
of a write is unknown. The Python driver hides the numbers of errors during the connect; `PHRASES`
finds them by the server's messages.
"""

from __future__ import annotations

LOST = frozenset(
    {
        -2,  # timeout on the client
        20,  # the server does not support encryption, or the connection was lost while it was negotiated
        64,  # the connection was lost while logging in
        121,  # semaphore timeout
        233,  # no process at the other end
        596,  # the session is being killed
        997,  # overlapped input/output
        10053,  # aborted by this host
        10054,  # reset by the other
        10060,  # no answer
        40197,  # reconfiguration; carries 40020, 40143, 40166 or 40540
        40020,
        40143,
        40166,
        40540,
        40549,  # the session was ended: its transaction ran too long
        40550,  # … had too many locks
        40551,  # … took too much of tempdb
        40552,  # … of the log
        40553,  # … of memory
    }
)

_AZURE = frozenset(
    {
        4060,  # database not open, or not for this user
        4221,  # no login to a secondary: row versions are missing
        615,  # database not found: its id has changed
        926,  # marked suspect
        40106,
        40189,
        40501,  # busy
        40613,  # not available
        40623,
        40642,
        40648,
        40671,
        40675,
        40890,
        40903,
        40918,
        40938,
        42108,  # paused; waking up
        42109,
        45153,
        45156,
        45157,
        45161,
        45179,
        45182,
        49510,
        49802,
        49918,  # not enough resources
        49919,
        49920,
        49977,
        49983,
    }
)

_LIMITS = frozenset(
    {
        10922,
        10928,  # limit of workers or sessions
        10929,
        10930,
        10936,
        11001,  # no such host, or no name server
        17197,  # login timed out
        18401,  # script upgrade mode
        701,  # no memory for the statement
        802,  # no memory for its pages
        8628,  # no resources to optimise
        8645,  # no memory grant in time
        8651,
        41823,  # in-memory quota
        41840,
        1807,
        9002,  # transaction log full: it is truncated automatically, or by an administrator
    }
)

_LOCKS = frozenset(
    {
        1203,
        1204,  # out of locks
        1205,  # deadlock
        1221,
        1222,  # lock timeout
        1232,
        3935,
        *range(3947, 3958),
        3960,  # snapshot update conflict
        3966,
        3980,
        3902,  # COMMIT without a transaction: the server has ended it
        3930,  # the transaction can only be rolled back
        3998,  # … and has been, at the end of the batch
        41301,
        41302,
        41305,
        41325,
        41839,
        617,
        669,
        921,
        927,
        941,
        952,
        982,
        988,
        2816,
        51222,  # reltask's own: a statement could not reach what its transaction has locked
    }
)

_READ_ONLY = frozenset({976, 978, 983, 3906, 3908})
"""A secondary, or a primary that has become one: the new primary will answer."""

STALE = _READ_ONLY | {615, 921, 926, 927, 941, 952, 982, 988, 4060, 4221, 40613, 42108, 42109}
"""After a failover the old primary may answer for as long as the connection lives."""

TRANSIENT = _AZURE | _LIMITS | _LOCKS | _READ_ONLY
REFUSED = frozenset(
    {229, 230, 262, 300, 916, 15247}  # no permission, no user in this database
    | {18452, 18456, 18470, 18487, 18488, 37353}  # no such login, disabled or expired
    | {40531, 40532, 40607, 40615, 40914, 47073}  # no access: firewall, network, wrong server
    | {1101, 1105, 40544}  # no space: the disk, the files or the tier's limit
)
CONFLICT = frozenset({515, 547, 2601, 2627})
MISSING = frozenset({207, 208, 2760, 2812})
SILENT = frozenset({220, 241, 242, 245, 248, 295, 2601, 2627, 2628, 8114, 8115, 8152})
"""Their text quotes values, so it is withheld."""

_ROLE = "Add this user to a role of database/mssql/permissions.sql: ALTER ROLE reltask_run ADD MEMBER [user];"
_USER = "Create a user for it in this database: CREATE USER [name] FROM EXTERNAL PROVIDER; then add it to a role."
_PRIMARY = (
    "Use the primary's name in the URL (a failover group's read-write listener), without application_intent=readonly."
)
_MEMORY = (
    "The server is short of memory; the statement is retried. If this persists, run fewer workers or use a larger tier."
)
_ROOM = "Free disk space, or let the database's files grow. Nothing is lost; work continues when there is space."
_FIREWALL = (
    "Add a firewall rule for that address: az sql server firewall-rule create. For a server created by "
    "infrastructure/Create-AzureResources.ps1, run that script with -ClientIpAddress ADDRESS."
)

REMEDIES = {
    207: "Run: reltask migrate",
    229: _ROLE,
    230: _ROLE,
    262: _ROLE,
    266: "Do not leave a transaction of your own open inside ctx.transaction(): the block already is a transaction.",
    300: _ROLE,
    701: _MEMORY,
    802: _MEMORY,
    916: _USER,
    976: _PRIMARY,
    978: _PRIMARY,
    983: _PRIMARY,
    1101: _ROOM,
    1105: _ROOM,
    3906: _PRIMARY,
    3908: _PRIMARY,
    4060: "Create the database, or correct its name in the URL; and check that this login has a user there.",
    9002: "Back up the transaction log, or let it grow. Nothing is lost; work continues when there is space.",
    10928: "The tier's limit is reached: lower database.pool_size, run fewer workers, or use a larger tier.",
    10929: "The tier's limit is reached: lower database.pool_size, run fewer workers, or use a larger tier.",
    11001: "Check the name of the server in the URL; on Azure it ends in .database.windows.net.",
    15247: _ROLE,
    18452: "This server does not accept SQL logins: remove user and password from the URL to use Microsoft Entra ID.",
    18456: (
        f"With Microsoft Entra ID: log in again (az login), and check that the database has a user for it. {_USER} "
        "With a SQL login: check the user and the password in RELTASK_DATABASE_URL."
    ),
    18470: "The login is disabled: ask the server's administrator.",
    18487: "The password has expired: ask the server's administrator, or use Microsoft Entra ID, which needs none.",
    18488: "The password must be changed: ask the server's administrator, or use Microsoft Entra ID, which needs none.",
    37353: "This server does not accept tokens of Microsoft Entra ID: set an Entra administrator for it first.",
    40531: "Check the name of the server in the URL; on Azure it ends in .database.windows.net.",
    40532: "Check the name of the server in the URL; on Azure it ends in .database.windows.net.",
    40544: "The database has reached its size limit: prune runs, delete data, or use a larger tier.",
    40607: "Logins are disabled at the moment: the database is being copied or restored.",
    40615: _FIREWALL,
    40914: "The server refuses connections from this network: add a virtual network rule, or use another network.",
    47073: "Public access to this server is off: connect through its private endpoint.",
}

PHRASES: tuple[tuple[str, int], ...] = (
    (r"client with ip address .* is not allowed", 40615),
    (r"client is not allowed to access the server", 40914),
    (r"deny public network access", 47073),
    (r"server name cannot be determined", 40531),
    (r"cannot open server .* requested by the login", 40532),
    (r"cannot open database .* requested by the login", 4060),
    (r"database .* is not currently available", 40613),
    (r"service has encountered an error processing your request", 40197),
    (r"session is in the kill state|connection may have been terminated by the server", 596),
    (r"session is terminated because you have a long-running transaction", 40549),
    (r"session has been terminated because it has acquired too many locks", 40550),
    (r"session has been terminated because of excessive tempdb usage", 40551),
    (r"session has been terminated because of excessive transaction log space usage", 40552),
    (r"session has been terminated because of excessive memory usage", 40553),
    (r"commit transaction request has no corresponding begin transaction", 3902),
    (r"current transaction cannot be committed and cannot support operations", 3930),
    (r"uncommittable transaction is detected", 3998),
    (r"service is currently busy", 40501),
    (r"limit for the database is \d+ and has been reached", 10928),
    (r"limit for the elastic pool is \d+ and has been reached", 10936),
    (r"minimum guarantee is \d+, maximum limit is", 10929),
    (r"not enough resources to process", 49918),
    (r"too many (create or update )?operations in progress", 49919),
    (r"script upgrade mode", 18401),
    (r"not currently configured to accept this token", 37353),
    (r"login is from an untrusted domain", 18452),
    (r"the account is disabled", 18470),
    (r"the password of the account has expired", 18487),
    (r"the password of the account must be changed", 18488),
    (r"login failed for user|token is expired", 18456),
    (r"is not able to access the database .* under the current security context", 916),
    (r"database .* is read-only", 3906),
    (r"accessible for connections when the application intent is set to read only", 978),
    (r"participating in an availability group and is currently not accessible", 976),
    (r"permission was denied on the object", 229),
    (r"invalid object name", 208),
    (r"invalid column name", 207),
    (r"violation of (primary key|unique key)|duplicate key|duplicate row", 2627),
    (r"conflicted with the .* constraint", 547),
    (r"deadlocked on", 1205),
    (r"lock request time ?out", 1222),
    (r"snapshot isolation transaction aborted", 3960),
    (r"transaction log for database .* is full", 9002),
    (r"could not allocate (space for object|a new page)", 1105),
    (r"database( .*)? has reached its size quota", 40544),
    (r"insufficient (system )?memory", 701),
    (r"error code 0x2af9|no such host is known", 11001),
    (r"error code 0x2746", 10054),
    (r"error code 0x2745", 10053),
    (r"error code 0x274c|timeout error \[258\]|login timeout expired", 10060),
)
"""Patterns of the server's messages, in lower case, and their numbers."""
