"""The databases and sessions of the whole suite. The number of interleavings is printed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
import pytest_asyncio

from tests.interleaving.explore import Suite, ran
from tests.interleaving.postgres import postgres_driver
from tests.mssql_server import MssqlServer, databases
from tests.postgres_server import PostgresServer

DATABASES = 5
MSSQL_DATABASES = 1


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=databases()[1:])
async def suite(request: pytest.FixtureRequest) -> AsyncIterator[Suite]:
    """The suite on each database that has more than one writer."""
    if request.param == "mssql":
        async with on_mssql(request.getfixturevalue("tds_server")) as made:
            yield made
        return
    async with on_postgres(
        request.getfixturevalue("postgres_server"), request.getfixturevalue("postgres_template")
    ) as made:
        yield made


@asynccontextmanager
async def on_mssql(server: MssqlServer) -> AsyncIterator[Suite]:
    """One database. An emulator is slow: there only a few orders of each kind are run."""
    from reltask.stores.mssql.schema import migrate_mssql  # noqa: PLC0415 - the driver is an extra
    from tests.interleaving.mssql import mssql_driver  # noqa: PLC0415

    urls = [server.create_database() for _ in range(1 + MSSQL_DATABASES)]
    async with AsyncExitStack() as stack:
        for url in urls:
            await migrate_mssql(url)
        oracle, *drivers = [await stack.enter_async_context(mssql_driver(url)) for url in urls]
        yield Suite(oracle, list(drivers), brief=not oracle.first.skips)


@asynccontextmanager
async def on_postgres(postgres_server: PostgresServer, postgres_template: str) -> AsyncIterator[Suite]:
    """The databases end with the server: dropping them one by one would take seconds."""
    names = [f"interleaving_{number}" for number in range(1 + DATABASES)]
    urls = [postgres_server.create_database(name, template=postgres_template) for name in names]
    async with AsyncExitStack() as stack:
        oracle, *drivers = [await stack.enter_async_context(postgres_driver(url)) for url in urls]
        yield Suite(oracle, list(drivers))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ran:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(ran.items()))
        terminalreporter.write_line(f"interleavings: {ran.total()} ({kinds})")
