"""The conformance suite in a schema of the user's choice: the tests that together send nearly every statement.

The tests of these modules run again here, with the database below.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mssql_server import databases
from tests.postgres_server import PostgresServer, run_in_thread
from tests.store import (
    test_cancel_children,
    test_children,
    test_forget_steps,
    test_headers,
    test_heartbeat,
    test_leases,
    test_maintenance,
    test_operators,
    test_reclaim,
    test_results,
    test_settle,
    test_signals_to_jobs,
    test_suspend,
)
from tests.store.store_harness import Backend, MssqlBackend, PostgresBackend, SqliteBackend

SCHEMA = "billing_2"
AGAIN = [
    test_cancel_children,
    test_children,
    test_forget_steps,
    test_headers,
    test_heartbeat,
    test_leases,
    test_maintenance,
    test_operators,
    test_reclaim,
    test_results,
    test_settle,
    test_signals_to_jobs,
    test_suspend,
]

for module in AGAIN:
    globals().update({name: value for name, value in vars(module).items() if name.startswith("test_")})


@pytest.fixture(scope="session")
def postgres_in_schema(postgres_server: PostgresServer) -> Iterator[str]:
    """A database whose only tables of reltask's are in another schema."""
    from reltask.stores.postgres.schema import migrate_postgres  # noqa: PLC0415 - tests without PostgreSQL need no driver

    url = f"{postgres_server.create_database('in_schema')}?schema={SCHEMA}"
    run_in_thread(lambda: migrate_postgres(url))
    yield url
    postgres_server.drop_database("in_schema")


@pytest.fixture(scope="session")
def mssql_in_schema(mssql_database: str) -> MssqlBackend:
    """Another install in the session's database."""
    from reltask.stores.mssql.schema import migrate_mssql  # noqa: PLC0415 - tests without SQL Server need no driver

    url = f"{mssql_database}{'&' if '?' in mssql_database else '?'}schema={SCHEMA}"
    run_in_thread(lambda: migrate_mssql(url))
    return MssqlBackend(url)


@pytest.fixture(params=databases())
def unclean(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """As the fixture of the suite, in another schema."""
    if request.param == "sqlite":
        return SqliteBackend(str(tmp_path / "reltask.db"), SCHEMA)
    if request.param == "mssql":
        backend: Backend = request.getfixturevalue("mssql_in_schema")
        return backend
    return PostgresBackend(request.getfixturevalue("postgres_in_schema"))
