"""Which version of the code may run on which schema, and that each migration says so."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.errors import SchemaError
from reltask.stores.migration import Dialect, Migration, Schema, check_version, migrations, pending, schema_version

OURS = schema_version("postgres")
DIALECTS: tuple[Dialect, ...] = ("postgres", "sqlite", "mssql")
MIGRATIONS = [(dialect, migration) for dialect in DIALECTS for migration in migrations(dialect)]

_STATED = re.compile(r"^-- Version (\d+); code of version (\d+) or newer may run on it", re.MULTILINE)
_VALUES = re.compile(r"values \((?:1, )?(\d+), (\d+)\)")
_SET = re.compile(r"SchemaVersion = (\d+), OldestVersion = (\d+)")


@given(oldest=st.integers(1, OURS), more=st.integers(0, 99))
def test_code_starts_on_a_newer_schema_that_admits_it(oldest: int, more: int) -> None:
    """Any later version, as long as the oldest that may run is not newer than ours; and it has nothing to migrate."""
    found = Schema(OURS + more, oldest)
    check_version("postgres", found)
    assert pending("postgres", found) == []


@given(oldest=st.integers(OURS + 1, 99), more=st.integers(0, 99))
def test_code_is_refused_by_a_schema_that_excludes_it(oldest: int, more: int) -> None:
    """The message names the versions; a migration is refused just as a start is."""
    found = Schema(oldest + more, oldest)
    for refuse in (check_version, pending):
        with pytest.raises(SchemaError, match=rf"version {oldest} or newer.*speaks version {OURS}.*Upgrade reltask"):
            refuse("postgres", found)


@given(version=st.integers(0, OURS - 1))
def test_code_needs_its_own_migrations(version: int) -> None:
    """An older schema lacks what the code uses, whatever may run on it."""
    with pytest.raises(SchemaError, match="Run: reltask migrate"):
        check_version("postgres", Schema(version, min(version, 1)))
    assert pending("postgres", Schema(version, min(version, 1)))


@pytest.mark.parametrize(("dialect", "migration"), MIGRATIONS, ids=[f"{d}-{m.name}" for d, m in MIGRATIONS])
def test_each_migration_states_the_oldest_version_that_may_run(dialect: Dialect, migration: Migration) -> None:
    """The header says it in words, the last statement writes it, and the three databases agree."""
    (stated,) = _STATED.findall(migration.sql)
    last = migration.sql.rpartition("-- Last, ")[2]
    (written,) = (_SET if dialect == "mssql" else _VALUES).findall(last)
    assert stated == written
    assert int(stated[0]) == migration.version >= int(stated[1])
    assert {_STATED.findall(other.sql)[0] for _, other in MIGRATIONS if other.version == migration.version} == {stated}
