"""The TDS server that `RELTASK_TEST_MSSQL` names: SQL Server, or a server that speaks its protocol.

    RELTASK_TEST_MSSQL=mssql://user:password@host:1433/master?encrypt=no pytest tests/store

If it is Babelfish, the statements are rewritten for it: see tests/babelfish. The login must be allowed to create
databases: each test session creates its own, and drops them at its end. If the variable is not set, none of these tests
exist, and the run says so.

    python -m tests.mssql_server        prints the server's version, or that it does not answer yet
    RELTASK_TEST_MSSQL_SNAPSHOT=on      these databases have READ_COMMITTED_SNAPSHOT on, or `off`; otherwise they are as
                                        the server makes them: on Azure on, elsewhere off
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import pytest

from reltask.errors import ReltaskError
from tests import babelfish

VARIABLE = "RELTASK_TEST_MSSQL"
SNAPSHOT = "RELTASK_TEST_MSSQL_SNAPSHOT"
TABLES = (
    "Jobs", "Runs", "Workers", "Leases", "LeaseWaiters", "Metrics", "Steps", "Signals", "ChildEnds", "Marks",
    "Pauses", "Actions", "Keys", "Limits", "LimitKeys",
)  # fmt: skip


@cache
def is_babelfish() -> bool:
    """Whether there is a server, and it is Babelfish. A server that does not answer fails its tests later."""
    if not os.environ.get(VARIABLE):
        return False
    with suppress(ReltaskError), closing(open_connection(os.environ[VARIABLE])) as connection:
        return run(connection, "SELECT CAST(SERVERPROPERTY('Babelfish') AS int)") == [(1,)]
    return False


def python_path(*folders: object) -> str:
    """PYTHONPATH for a process that a test starts."""
    first = [babelfish.SITE] if is_babelfish() else []
    return os.pathsep.join([*first, *map(str, folders)])


def databases() -> list[str]:
    """The databases that a suite runs on. SQL Server is among them only if there is one."""
    return ["sqlite", "postgres", *(["mssql"] if os.environ.get(VARIABLE) else [])]


def open_connection(url: str) -> Any:
    """A connection of the driver; each statement is committed at once."""
    from reltask.stores.mssql.connections import connect  # noqa: PLC0415 - the driver is an extra
    from reltask.stores.mssql.url import read_url  # noqa: PLC0415

    return connect(read_url(url), None, connect_timeout=30, command_timeout=120)


def run(connection: Any, sql: str, *arguments: object) -> list[Any]:
    """Run a batch, and return the rows of its answer, if it has one."""
    with closing(connection.cursor()) as cursor:
        cursor.execute(sql, list(arguments)) if arguments else cursor.execute(sql)
        rows: list[Any] = []
        while True:
            if cursor.description:
                rows = [tuple(row) for row in cursor.fetchall()]
            if not cursor.nextset():
                return rows


def spell(sql: str) -> str:
    """A statement written for the other databases' tables, with this one's column names."""
    names = {"task": "JobName", "key": "JobKey"}

    def spelt(word: re.Match[str]) -> str:
        prefix, name = word.groups()
        if not prefix and "_" not in name and name not in names:
            return name
        return ("reltask." if prefix else "") + names.get(name, name.title().replace("_", ""))

    return re.sub(r"(@?)\b([a-z][a-z_]*)\b(?!')", spelt, sql)


def clear(connection: Any, schema: str = "reltask") -> None:
    """Empty the tables."""
    run(connection, "; ".join(f"DELETE FROM {schema}.{table}" for table in TABLES))


class MssqlServer:
    """A server that is not the suite's own, and the databases that this session creates on it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._made: list[str] = []

    def create_database(self) -> str:
        """A new, empty database; its URL."""
        name = f"reltask_{uuid4().hex[:12]}"
        self._on_server(f"CREATE DATABASE {name}")
        self._made.append(name)
        if SNAPSHOT in os.environ:
            chosen = {"on": "ON", "off": "OFF"}[os.environ[SNAPSHOT]]
            self._on_server(f"ALTER DATABASE {name} SET READ_COMMITTED_SNAPSHOT {chosen} WITH ROLLBACK IMMEDIATE")
        return urlunsplit(urlsplit(self._url)._replace(path=f"/{name}"))

    def drop_databases(self) -> None:
        """Drop databases without connections; the server's owner has to remove the others."""
        for name in self._made:
            with suppress(Exception):
                self._on_server(f"DROP DATABASE {name}")

    def _on_server(self, statement: str) -> None:
        with closing(open_connection(urlunsplit(urlsplit(self._url)._replace(path="/master")))) as connection:
            run(connection, statement)


def allow_time(items: list[pytest.Item]) -> None:
    """Multiply timeouts: a TDS server may be an emulator, slow at statements it has not seen."""
    for item in items:
        if "mssql" in item.nodeid.rpartition("[")[2]:
            item.add_marker(pytest.mark.timeout(1_800))


ON_IT = re.compile("mssql|odbc", re.IGNORECASE)
"""Parts of the names of tests that use the server: of the store, and of user connections."""


LIBRARIES = "the driver of SQL Server cannot connect here"
"""How the reason of a skipped test begins, if the driver's libraries are missing."""


def summarise(reporter: pytest.TerminalReporter) -> None:
    """Print how many tests used the server, and, loudly, how many the driver could not run."""
    unable = [report for report in reporter.getreports("skipped") if LIBRARIES in str(report.longrepr)]
    if unable:
        reporter.section("SQL Server's driver", sep="!", red=True)
        reporter.write_line(
            f"{len(unable)} tests DID NOT RUN: {LIBRARIES}. On Debian: apt-get install libltdl7 libkrb5-3"
        )
    if not os.environ.get(VARIABLE):
        return
    passed, failed = (
        len([report for report in reporter.getreports(outcome) if ON_IT.search(report.nodeid)])
        for outcome in ("passed", "failed")
    )
    snapshot = os.environ.get(SNAPSHOT, "as the server has it")
    reporter.write_line(
        f"on the TDS server of {VARIABLE}, READ_COMMITTED_SNAPSHOT {snapshot}: {passed} passed, {failed} failed"
    )


def version() -> str:
    """The server's version, as it reports it."""
    with closing(open_connection(os.environ[VARIABLE])) as connection:
        return str(run(connection, "SELECT @@VERSION")[0][0]).partition("\n")[0]


@contextmanager
def mssql_server() -> Iterator[MssqlServer]:
    """The server that the environment names."""
    server = MssqlServer(os.environ[VARIABLE])
    try:
        yield server
    finally:
        server.drop_databases()


if __name__ == "__main__":
    try:
        print(version())  # noqa: T201 - for CI, which waits for a server
    except ReltaskError as error:
        sys.exit(str(error))
