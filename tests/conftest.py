"""Session-wide parts: one PostgreSQL server, and a fresh, migrated database for each test that asks."""

from __future__ import annotations

import itertools
import signal
from collections.abc import Iterator

import hypothesis
import pytest

from tests.postgres_server import PostgresServer, run_in_thread

# A shared machine may take its time over an example; what counts is what it found.
hypothesis.settings.register_profile("reltask", deadline=None)
hypothesis.settings.load_profile("reltask")

# A suite started in the background inherits an ignored Ctrl+C, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TEMPLATE = "reltask_template"
_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server that belongs to this test session."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: PostgresServer) -> str:
    """The name of a migrated database that nobody uses, to copy from."""
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
    """A fresh database with nothing in it; dropped afterwards."""
    name = f"test_{next(_numbers)}"
    yield postgres_server.create_database(name)
    postgres_server.drop_database(name)
