"""One database and its sessions for the whole suite; the number of interleavings is printed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.interleaving.explore import Suite, ran
from tests.interleaving.postgres import postgres_driver
from tests.postgres_server import PostgresServer


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def suite(postgres_server: PostgresServer, postgres_template: str) -> AsyncIterator[Suite]:
    """The suite on PostgreSQL."""
    url = postgres_server.create_database("interleaving", template=postgres_template)
    async with postgres_driver(url) as driver:
        yield Suite(driver)
    postgres_server.drop_database("interleaving")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ran:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(ran.items()))
        terminalreporter.write_line(f"interleavings: {ran.total()} ({kinds})")
