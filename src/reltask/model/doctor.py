"""The checks of `reltask doctor`: facts about a database, and the findings that follow from them.

    the store's verb `examine` ──► Facts ──► diagnose ──► Finding, Finding, …

A store only reports facts. Which of them are good or bad, and what to do about it, is decided here for all databases. A
finding is ok, a note (it works, but you should know), or a problem (something will not work, or a promise would not
hold). A fact that the user is not allowed to see is None and leads to no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum

from msgspec import Struct

from reltask.model.control import PauseView
from reltask.model.schema_name import SCHEMA

LONG = timedelta(minutes=10)
"""A transaction that is open for longer than this is reported."""
SKEW = timedelta(seconds=2)
"""A larger difference between the clocks is reported."""
CROWDED, FULL = 0.8, 0.95
"""From these shares of a limit on, its use is a note or a problem."""


class Level(StrEnum):
    """How bad it is."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


class Finding(Struct, frozen=True):
    """The result of one check."""

    check: str
    level: Level
    text: str
    remedy: str = ""


class Facts(Struct, frozen=True, kw_only=True):
    """Facts about a database, read without opening a store: the tables may be missing."""

    database: str
    """sqlite, postgres or mssql."""
    server: str
    user: str | None
    now: datetime
    primary: bool = True
    writable: bool = True
    schema_version: int
    """0: there are no tables."""
    oldest_version: int
    """The oldest schema version whose code may run on these tables."""
    spoken_version: int
    """The schema version that this reltask needs."""
    may: frozenset[str]
    """Which of run, operate, enqueue and read this user is allowed to do."""
    connections: int | None = None
    connection_limit: int | None = None
    oldest_transaction: timedelta | None = None
    """The age of the oldest open transaction of any other connection."""
    oldest_owner: str | None = None
    settings: dict[str, str] = {}
    """Further facts, by the database's own names for them."""
    schema: str = SCHEMA
    """The schema of the tables."""

    @property
    def roles(self) -> str:
        """What to do about missing permissions."""
        names = [f"{self.schema}_{role}" for role in ("run", "operate", "enqueue", "read")]
        return f"Grant it a role of permissions.sql: {', '.join(names[:-1])} or {names[-1]}."


Check = Callable[[Facts], Iterator[Finding]]


def diagnose(facts: Facts, *, skew: timedelta, pauses: Sequence[PauseView] = ()) -> list[Finding]:
    """All findings. `skew`: how far the database's clock is ahead of this machine's, at least."""
    checks: list[Check] = [_server, _writable, _schema, _permissions]
    after: list[Check] = [_transactions, _connections, *_BY_DATABASE.get(facts.database, [])]
    found = [finding for check in checks for finding in check(facts)]
    found += [*_clock(skew), *(finding for check in after for finding in check(facts))]
    return [*found, *map(_paused, pauses)]


def is_sound(findings: list[Finding]) -> bool:
    """Whether nothing is a problem."""
    return all(finding.level is not Level.PROBLEM for finding in findings)


def unreachable(text: str, remedy: str) -> Finding:
    """The database did not answer, or refused to."""
    return Finding("server", Level.PROBLEM, text, remedy)


# On every database


def _server(facts: Facts) -> Iterator[Finding]:
    yield _ok("server", f"{facts.server}{f', as user {facts.user}' if facts.user else ''}")


def _writable(facts: Facts) -> Iterator[Finding]:
    if not facts.primary:
        yield _problem("primary", "this is a read-only replica.", "Use the primary's name in the URL.")
    elif not facts.writable:
        yield _problem("primary", "this user cannot write to this database.", _WRITABLE[facts.database])
    else:
        yield _ok("primary", "accepts writes")


_WRITABLE = {
    "postgres": "Check default_transaction_read_only of the user and of the database.",
    "mssql": "Run SELECT DATABASEPROPERTYEX(DB_NAME(), 'Updateability'); remove application_intent from the URL.",
    "sqlite": "Give this user write permission on the file and on its directory.",
}


def _schema(facts: Facts) -> Iterator[Finding]:
    found, spoken = facts.schema_version, facts.spoken_version
    if found == spoken:
        yield _ok("schema", f"version {found}")
    elif found == 0:
        yield _problem("schema", "there are no reltask tables, or this user cannot see them.", "Run: reltask migrate")
    elif found < spoken:
        yield _problem("schema", f"version {found}; this reltask needs {spoken}.", "Run: reltask migrate")
    elif facts.oldest_version <= spoken:
        yield _ok("schema", f"version {found}; this reltask speaks {spoken}, and may still run on it")
    else:
        yield _problem("schema", f"version {found}; this reltask knows {spoken}.", "Upgrade reltask here.")


def _permissions(facts: Facts) -> Iterator[Finding]:
    if facts.schema_version == 0:
        return
    if "run" in facts.may:
        yield _ok("permissions", "workers can run as this user")
    elif facts.may:
        only = " and ".join(sorted(facts.may))
        yield Finding("permissions", Level.NOTE, f"this user may only {only}; a worker needs more.", facts.roles)
    else:
        yield _problem("permissions", "this user has no permissions on reltask's tables.", facts.roles)


def _clock(skew: timedelta) -> Iterator[Finding]:
    if abs(skew) <= SKEW:
        yield _ok("clock", "the database's clock and this machine's agree")
        return
    where = "ahead of" if skew > timedelta(0) else "behind"
    text = (
        f"the database's clock is {abs(skew).total_seconds():,.0f} s {where} this machine's; reltask uses the former."
    )
    yield Finding("clock", Level.NOTE, text, "Synchronize both with NTP, so that their logs can be compared.")


def _transactions(facts: Facts) -> Iterator[Finding]:
    oldest = facts.oldest_transaction
    if oldest is None:
        return
    if oldest < LONG:
        yield _ok("transactions", f"none has been open for longer than {_minutes(LONG)}")
        return
    owner = facts.oldest_owner or "another user"
    text = f"a transaction of {owner} has been open for {_minutes(oldest)}; it holds locks and prevents cleanup."
    yield Finding("transactions", Level.NOTE, text, "Find out what it waits for, and end it.")


def _paused(pause: PauseView) -> Finding:
    reason = f": {pause.reason}" if pause.reason else ""
    text = f"{pause.kind} {pause.name} since {pause.paused_at:%Y-%m-%d %H:%M} UTC by {pause.paused_by}{reason}."
    return Finding("paused", Level.NOTE, text, f"To let its jobs run again: reltask {pause.kind}s resume {pause.name}")


def _connections(facts: Facts) -> Iterator[Finding]:
    if facts.connections is not None and facts.connection_limit:
        share = facts.connections / facts.connection_limit
        yield _of_limit("connections", f"{facts.connections} of {facts.connection_limit}", share)


def _of_limit(check: str, text: str, share: float) -> Finding:
    level = Level.PROBLEM if share >= FULL else Level.NOTE if share >= CROWDED else Level.OK
    remedy = "Lower database.pool_size, run fewer workers, or raise the limit." if level is not Level.OK else ""
    return Finding(check, level, text, remedy)


# On one kind


def _sqlite_journal(facts: Facts) -> Iterator[Finding]:
    if facts.settings["journal_mode"] == "wal":
        yield _ok("journal", "write-ahead log")
    else:
        text = f"the file is in journal mode {facts.settings['journal_mode']}: readers and writers block each other."
        yield _problem("journal", text, "Put the file on a local disk that supports shared memory.")


def _sqlite_place(facts: Facts) -> Iterator[Finding]:
    place = facts.settings.get("filesystem")
    if place in _NETWORK:
        text = f"the file is on a network filesystem ({place}), where SQLite's locks are unreliable."
        yield _problem("filesystem", text, "Move it to a local disk, or use PostgreSQL or SQL Server.")


_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "glusterfs", "ceph", "afs"})


def _postgres_durability(facts: Facts) -> Iterator[Finding]:
    if facts.settings["fsync"] != "on":
        text = "fsync is off: a power failure can corrupt the whole database."
        yield _problem("durability", text, "Set fsync = on, unless the data may be lost.")
    elif facts.settings["synchronous_commit"] == "off":
        text = "synchronous_commit is off: a crash may lose the last completions, and their slots run again."
        yield Finding("durability", Level.NOTE, text, "Set synchronous_commit = on for reltask's user.")
    else:
        yield _ok("durability", "commits are written to disk before they are acknowledged")


def _postgres_isolation(facts: Facts) -> Iterator[Finding]:
    level = facts.settings["transaction_isolation"]
    if level == "read committed":
        yield _ok("isolation", "read committed")
    else:  # behind PgBouncer a session cannot set its own level
        text = f"statements run at {level}: concurrent claims and heartbeats fail instead of waiting."
        remedy = "For reltask's user: alter role … set default_transaction_isolation = 'read committed';"
        yield _problem("isolation", text, remedy)


def _postgres_schemas(facts: Facts) -> Iterator[Finding]:
    """Functions of other users: reltask's statements do not call them, but the users' own may."""
    path = [name.strip(' "') for name in facts.settings["search_path"].split(",")]
    if "pg_catalog" in path[1:]:  # behind PgBouncer a session cannot set its own path
        text = f"the search path is {facts.settings['search_path']}: functions in {path[0]} replace PostgreSQL's own."
        yield _problem("schemas", text, "For reltask's user: alter role … set search_path = pg_catalog;")
    elif open_to_all := facts.settings["open_schemas"]:
        text = f"every user may create functions in: {open_to_all}. A statement of your tasks may call one by mistake."
        remedy = f"revoke create on schema {open_to_all} from public;"
        yield Finding("schemas", Level.NOTE, text, remedy)
    else:
        yield _ok("schemas", "no schema is open to every user")


def _mssql_snapshot(facts: Facts) -> Iterator[Finding]:
    if facts.settings.get("read_committed_snapshot") == "1":
        yield _ok("snapshot", "READ_COMMITTED_SNAPSHOT is on")
    else:
        text = "READ_COMMITTED_SNAPSHOT is off: reads wait for writes, and an audit may see a job half changed."
        remedy = "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON WITH ROLLBACK IMMEDIATE;"
        yield Finding("snapshot", Level.NOTE, text, remedy)


def _mssql_locking(facts: Facts) -> Iterator[Finding]:
    if optimized := facts.settings.get("optimized_locking"):
        yield _ok("locking", f"optimized locking is {'on' if optimized == '1' else 'off'}")
    if facts.settings.get("lock_escalation", "DISABLE") != "DISABLE":
        table = f"{facts.schema}.Jobs"
        text = f"the row locks of a batch can escalate to a lock on the whole table {table}."
        remedy = "ALTER TABLE reltask.Jobs SET (LOCK_ESCALATION = DISABLE);"
        yield Finding("escalation", Level.NOTE, text, remedy.replace("reltask.Jobs", table))


def _mssql_tier(facts: Facts) -> Iterator[Finding]:
    if tier := facts.settings.get("service_objective"):
        yield _ok("tier", f"{tier}{_TIERS.get(tier, '')}")
    for name, noun in _USAGE.items():
        if (percent := facts.settings.get(name)) is not None:
            yield _of_limit("tier", f"{noun}: at most {float(percent):.0f} % in the last hour", float(percent) / 100)


_TIERS = {
    "Basic": ": 30 concurrent requests and 300 sessions for all processes; keep database.pool_size at 2",
    "S0": ": 60 concurrent requests and 600 sessions for all processes; keep database.pool_size low",
}
_USAGE = {"worker_percent": "concurrent requests", "session_percent": "sessions", "cpu_percent": "CPU"}

_BY_DATABASE: dict[str, list[Check]] = {
    "sqlite": [_sqlite_journal, _sqlite_place],
    "postgres": [_postgres_durability, _postgres_isolation, _postgres_schemas],
    "mssql": [_mssql_snapshot, _mssql_locking, _mssql_tier],
}


def _ok(check: str, text: str) -> Finding:
    return Finding(check, Level.OK, text)


def _problem(check: str, text: str, remedy: str) -> Finding:
    return Finding(check, Level.PROBLEM, text, remedy)


def _minutes(length: timedelta) -> str:
    return f"{length.total_seconds() / 60:,.0f} min"
