"""The same tests on every database. They define what a store does, and each store must pass them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from reltask.stores.store import Store
from tests.mssql_server import databases
from tests.postgres_server import PostgresServer
from tests.store.store_harness import Backend, MssqlBackend, Now, PostgresBackend, SqliteBackend, StoreHarness


@pytest.fixture(scope="session")
def postgres_conformance(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    """One database for the whole suite, emptied before each test: a new one each time would be ten times slower."""
    yield postgres_server.create_database("conformance", template=postgres_template)
    postgres_server.drop_database("conformance")


@pytest.fixture(scope="session")
def mssql_conformance(mssql_database: str) -> MssqlBackend:
    """One database for the whole suite, emptied before each test."""
    return MssqlBackend(mssql_database)


@pytest.fixture(params=databases())
def unclean(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    """A database that may hold rows of the last test."""
    if request.param == "sqlite":
        return SqliteBackend(str(tmp_path / "reltask.db"))
    if request.param == "mssql":
        backend: Backend = request.getfixturevalue("mssql_conformance")
        return backend
    return PostgresBackend(request.getfixturevalue("postgres_conformance"))


@pytest.fixture
async def backend(unclean: Backend) -> Backend:
    """An empty database."""
    await unclean.clear()
    return unclean


@pytest.fixture
def now() -> Now:
    """The database's time. It stands still until a test moves it."""
    return Now()


@pytest.fixture
async def store(backend: Backend, now: Now) -> AsyncIterator[Store]:
    """An open store under test."""
    store = backend.store(now)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
async def rival(backend: Backend, now: Now) -> AsyncIterator[Store]:
    """Another store on the same database, with its own connections, as in another process."""
    store = backend.store(now)
    await store.open()
    yield store
    await store.close()


@pytest.fixture
def harness(store: Store, now: Now, backend: Backend) -> StoreHarness:
    """The store, its clock and its database."""
    return StoreHarness(store, now, backend)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory without certificates, and an environment that names none."""
    for name in ("SSLMODE", "SSLROOTCERT", "SSLCRL", "SSLCERT", "SSLKEY"):
        monkeypatch.delenv(f"PG{name}", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    return tmp_path
