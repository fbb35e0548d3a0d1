"""A few databases with their sessions for the whole suite; the number of interleavings is printed at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest
import pytest_asyncio

from tests.interleaving.explore import Suite, ran
from tests.interleaving.postgres import postgres_driver
from tests.postgres_server import PostgresServer

STAGES = 5


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def suite(postgres_server: PostgresServer, postgres_template: str) -> AsyncIterator[Suite]:
    """The suite on PostgreSQL. Its databases go with the server: dropping them one by one would cost seconds."""
    names = [f"interleaving_{number}" for number in range(1 + STAGES)]
    urls = [postgres_server.create_database(name, template=postgres_template) for name in names]
    async with AsyncExitStack() as stack:
        oracle, *stages = [await stack.enter_async_context(postgres_driver(url)) for url in urls]
        yield Suite(oracle, list(stages))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if ran:
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(ran.items()))
        terminalreporter.write_line(f"interleavings: {ran.total()} ({kinds})")
