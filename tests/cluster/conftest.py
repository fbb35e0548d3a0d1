"""Each cluster test runs on every database, with separate tables and a separate directory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, running
from tests.mssql_server import databases


@pytest.fixture(params=databases())
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database with reltask's tables, or a file that does not exist yet: SQLite creates its tables."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'cluster.db'}"
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


@pytest.fixture
def cluster(url: str, tmp_path: Path) -> Iterator[Cluster]:
    """No workers yet. Workers that the test starts are stopped at the end."""
    with running(url, tmp_path) as made:
        yield made
