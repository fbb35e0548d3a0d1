"""Fixtures of the session: one PostgreSQL server, and a fresh, migrated database for each test that needs one.

If `RELTASK_TEST_MSSQL` names a TDS server, suites run on it too, and the run says how many tests
did.
"""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections import Counter
from collections.abc import Iterator

import hypothesis
import pytest

from tests import babelfish, mssql_server
from tests.mssql_server import MssqlServer
from tests.postgres_server import PostgresServer, run_in_thread

# A shared machine may be slow: examples have no deadline.
hypothesis.settings.register_profile("reltask", deadline=None)
hypothesis.settings.load_profile("reltask")

# A suite started in the background inherits an ignored SIGINT; tests that interrupt a process need
# it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_configure() -> None:
    """Before any statement is read: what Babelfish does not take is rewritten."""
    if mssql_server.is_babelfish():
        babelfish.install()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the simulations first: they need a core for a minute, while other tests wait for processes."""
    items.sort(key=lambda item: "simulation" not in item.nodeid)
    mssql_server.allow_time(items)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what could not be run here, and what the simulations covered."""
    mssql_server.summarise(terminalreporter)
    missing = Counter(reason for report in terminalreporter.getreports("skipped") if (reason := not_run(report)))
    if missing:
        terminalreporter.section("NOT RUN", sep="!", red=True)
    for reason, tests in sorted(missing.items()):
        terminalreporter.write_line(f"{tests} × {reason}")
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    coverages = [
        (report.nodeid, text)
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == "coverage"
    ]
    if coverages:
        terminalreporter.section("what the simulations covered")
    for nodeid, text in sorted(coverages):
        terminalreporter.line(nodeid)
        for line in str(text).splitlines():
            terminalreporter.line(f"  {line}")


def not_run(report: pytest.TestReport) -> str | None:
    """What a skipped test lacks on this machine; None if it is left out for another reason."""
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple | list) else ""
    return reason.partition("NOT RUN: ")[2] or None


TEMPLATE = "reltask_template"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server for this test session."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a migrated database to copy from. It has no connections."""
    from reltask.stores.postgres.schema import migrate_postgres  # noqa: PLC0415 - tests without PostgreSQL need no driver

    url = postgres_server.create_database(TEMPLATE)
    run_in_thread(lambda: migrate_postgres(url))
    return TEMPLATE


@pytest.fixture
def postgres_url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """A fresh database with reltask's tables; dropped afterwards."""
    name = f"test_{next(_numbers)}"
    yield postgres_server.create_database(name, template=postgres_template)
    postgres_server.drop_database(name)


@pytest.fixture
def empty_postgres_url(postgres_server: PostgresServer) -> Iterator[str]:
    """A fresh, empty database; dropped afterwards."""
    name = f"test_{next(_numbers)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def tds_server() -> Iterator[MssqlServer]:
    """The server that the environment names."""
    with mssql_server.mssql_server() as server:
        yield server


@pytest.fixture(scope="session")
def mssql_database(tds_server: MssqlServer) -> str:
    """A migrated database for the whole session: on some servers a new one takes longer than all the tests."""
    from reltask.stores.mssql.schema import migrate_mssql  # noqa: PLC0415 - tests without SQL Server need no driver

    url = tds_server.create_database()
    run_in_thread(lambda: migrate_mssql(url))
    return url


@pytest.fixture
def mssql_url(mssql_database: str) -> str:
    """The session's database with reltask's tables, empty."""
    with contextlib.closing(mssql_server.open_connection(mssql_database)) as connection:
        mssql_server.clear(connection)
    return mssql_database
