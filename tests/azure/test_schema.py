"""The scripts of database/mssql: required columns, PostgreSQL's tables, no construct that fails on some server.

Whether they run is tested on a server; whether they parse, by `make check-tsql`.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from reltask.errors import PermanentError
from reltask.stores.migration import schema_version
from reltask.stores.mssql import schema

ROOT = Path(__file__).parents[2]
MSSQL = ROOT / "database/mssql"
SCRIPTS = sorted(MSSQL.glob("*.sql"))
MAKES_TABLES = [
    "001-CreateJobsTable.sql",
    "004-CreateLeases.sql",
    "005-CreateSteps.sql",
    "006-CreateControl.sql",
]
PARSER = Path(sys.prefix) / "tsql/bin/python"

REQUIRED = {
    "Id": "uniqueidentifier NOT NULL",
    "JobName": "nvarchar(256) NOT NULL",
    "NextRunTime": "datetime2(6) NOT NULL",
    "LastRunTime": "datetime2(6) NULL",
    "LockedBy": "nvarchar(256) NULL",
    "LockedAt": "datetime2(6) NULL",
    "LockTimeoutMinutes": "int NOT NULL",
    "IntervalMinutes": "int NOT NULL",
}
DEFAULTS = {"Id": "NEWID()", "LockTimeoutMinutes": "2", "IntervalMinutes": "10", "Fence": "0"}

TYPES = {
    "uuid": "uniqueidentifier",
    "text": "nvarchar",
    "json": "nvarchar(max)",
    "timestamptz": "datetime2(6)",
    "integer": "int",
    "boolean": "bit",
    "double": "float",
}
RENAMED = {"task": "JobName", "key": "JobKey"}
MORE = {"Jobs": {"RowNo", "Recurring", "IntervalMinutes", "IntervalMs", "LockTimeoutMinutes"}}
"""Columns that only SQL Server has: the required minutes, and the order of the rows."""

_TABLE = re.compile(r"CREATE TABLE reltask\.(\w+) \((.*?)^    \);", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(
    r"^        (?!CONSTRAINT|--)\[?(?P<name>\w+)\]? +"
    r"(?P<type>AS COALESCE\(NotBefore, NextRunTime\) PERSISTED|\w+(?:\((?:\w+)\))?)"
    r"(?: COLLATE \w+)? *(?P<null>NOT NULL|NULL)",
    re.MULTILINE,
)


def read(name: str) -> str:
    return (MSSQL / name).read_text(encoding="utf-8")


def code(name: str) -> str:
    """A script without its comments."""
    return re.sub(r"--[^\n]*", "", read(name))


def tables() -> dict[str, dict[str, str]]:
    """Tables, columns and types as the scripts create them."""
    return {
        table: {column["name"]: f"{column['type']} {column['null']}" for column in _COLUMN.finditer(body)}
        for name in MAKES_TABLES
        for table, body in _TABLE.findall(read(name))
    }


OWN_NAMES = {
    "Keys": {"JobKey": "UniqueKey", "Until": "TakenUntil"},
    "Marks": {"JobName": "Task"},
    "LimitKeys": {"JobKey": "Key"},
}
"""Columns that have another name than elsewhere, by table."""


def postgres_tables() -> dict[str, dict[str, str]]:
    """PostgreSQL's tables, under the names that SQL Server gives them."""
    scripts = sorted((ROOT / "database/postgres").glob("*-create-*.sql"))
    text = "\n".join(path.read_text(encoding="utf-8") for path in scripts)
    text = re.sub(r"^    partition_days .*\n", "", text, flags=re.MULTILINE)  # the ledger is one table there
    found = re.findall(r"create table if not exists reltask\.(\w+) \(\n(.*?)^\)", text, re.MULTILINE | re.DOTALL)
    column = re.compile(r"^    (?!constraint|primary)(\w+) +(\w+)", re.MULTILINE)
    made = {pascal(table): {pascal(name): kind for name, kind in column.findall(body)} for table, body in found}
    return {
        table: {OWN_NAMES.get(table, {}).get(name, name): kind for name, kind in columns.items()}
        for table, columns in made.items()
    }


def pascal(name: str) -> str:
    return RENAMED.get(name) or "".join(part.capitalize() for part in name.split("_"))


def test_required_columns() -> None:
    """The Jobs table has the required columns, types and defaults."""
    jobs = tables()["Jobs"]
    assert REQUIRED.items() <= jobs.items()
    for column, default in DEFAULTS.items():
        assert re.search(
            rf"^ +{column} [^,]*DEFAULT {re.escape(default)}\b|^ +{column} [^,]*DEFAULT {re.escape(default)}",
            read(MAKES_TABLES[0]),
            re.MULTILINE,
        )
    assert jobs["Fence"] == "bigint NOT NULL"
    assert "PRIMARY KEY NONCLUSTERED (Id)" in read(MAKES_TABLES[0])


def test_tables_are_those_of_postgres() -> None:
    """Every table and column of the protocol exists, with an equivalent type."""
    mssql, postgres = tables(), postgres_tables()
    assert mssql.keys() == postgres.keys()
    for table, columns in postgres.items():
        assert mssql[table].keys() - MORE.get(table, set()) == columns.keys(), table
        for name, kind in columns.items():
            if name != "DueAt":
                assert mssql[table][name].startswith(TYPES.get(kind, kind)), f"{table}.{name}"


def test_column_that_came_later() -> None:
    """Workers.DeadAt is added by the second migration, on both."""
    assert "ALTER TABLE reltask.Workers ADD DeadAt datetime2(6) NULL" in read(MAKES_TABLES[1])
    leases = (ROOT / "database/postgres/004-create-leases.sql").read_text(encoding="utf-8")
    assert "add column if not exists dead_at" in leases


def test_each_slot_ends_once() -> None:
    """The constraint behind "exactly once" is the same as on PostgreSQL."""
    postgres = (ROOT / "database/postgres/001-create-tables.sql").read_text(encoding="utf-8")
    ends = re.search(r"runs_slot_ends_once.*?where outcome in \(([^)]*)\)", postgres, re.DOTALL)
    same = re.search(r"UX_Runs_SlotEndsOnce.*?WHERE Outcome IN \(([^)]*)\)", read(MAKES_TABLES[0]), re.DOTALL)
    assert ends is not None
    assert same is not None
    assert same[1].replace("N'", "'") == ends[1]
    outcomes = re.search(r"check \(outcome in \(([^)]*)\)", postgres)
    mine = re.search(r"CK_Runs_Outcome CHECK \(Outcome IN \(([^)]*)\)", read(MAKES_TABLES[0]))
    assert outcomes is not None
    assert mine is not None
    assert mine[1].replace("N'", "'").split() == outcomes[1].split()


def test_seed() -> None:
    """One row: SampleTask, due now, with the required lock timeout and interval; a second run adds none."""
    seed = code("002-SeedJobData.sql")
    assert "SELECT N'SampleTask', SYSUTCDATETIME(), 2, 10" in seed
    assert "WHERE NOT EXISTS" in seed


def test_reclamation_explains_itself_and_asks_twice() -> None:
    """The WHERE clause is documented, and the UPDATE repeats it, so that it depends on no lock hint."""
    script = read("003-ReclamationQuery.sql")
    assert script.index("LockedBy IS NOT NULL           a worker") < script.index("SET NOCOUNT")
    update = code("003-ReclamationQuery.sql").partition("UPDATE reltask.Jobs")[2].partition(";")[0]
    assert "AND LockedBy IS NOT NULL AND LockExpiresAt < @now" in update
    assert "deleted." not in update


def test_five_roles() -> None:
    """The same roles as on PostgreSQL, each created only if it is missing."""
    roles = re.findall(r"IF DATABASE_PRINCIPAL_ID\(N'(\w+)'\) IS NULL CREATE ROLE \1;", read("permissions.sql"))
    assert roles == ["reltask_migrate", "reltask_run", "reltask_operate", "reltask_enqueue", "reltask_read"]
    assert not re.search(r"GRANT[^;]*UPDATE[^;]*ON reltask\.Runs", code("permissions.sql"))


def test_grants_are_never_missing_while_permissions_are_run() -> None:
    """A change of owner drops grants: it is made only if needed, in one transaction with all grants."""
    text = code("permissions.sql")
    assert text.index("SET XACT_ABORT ON;") < text.index("BEGIN TRANSACTION;")
    assert text.rstrip().endswith("COMMIT TRANSACTION;")
    inside = text.partition("BEGIN TRANSACTION;")[2].partition("COMMIT TRANSACTION;")[0]
    assert len(re.findall("GRANT|ALTER AUTHORIZATION", text)) == len(re.findall("GRANT|ALTER AUTHORIZATION", inside))
    change = inside.index("ALTER AUTHORIZATION")
    assert change < inside.index("GRANT")
    asked = inside[:change]
    owned = "schema_id = SCHEMA_ID(N'reltask') AND principal_id = DATABASE_PRINCIPAL_ID(N'reltask_migrate')"
    assert owned in " ".join(asked.split())
    assert "IF NOT EXISTS" in asked
    assert "drops" in read("permissions.sql").partition("SET NOCOUNT")[0]


def test_the_trigger_locks_rows() -> None:
    """Its marks are written in every session that ends a claim: a page lock could not be skipped."""
    (trigger,) = re.findall(r"CREATE TRIGGER .*?^END'", code("006-CreateControl.sql"), re.DOTALL | re.MULTILINE)
    inserts = re.findall(r"INSERT INTO reltask\.\w+ (WITH \(ROWLOCK\) )?", trigger)
    assert len(inserts) == 2
    assert all(inserts)


def test_only_reads_and_updates_are_granted_by_column() -> None:
    """SQL Server knows INSERT and DELETE for whole rows only: the script would fail (1020), and create no role."""
    by_column = re.findall(r"(?:GRANT|DENY) ([^;]*?) ON reltask\.\w+ \([^;]*?;", code("permissions.sql"))
    assert len(by_column) >= 4
    assert not [what for what in by_column if re.search("INSERT|DELETE", what)]


def test_drop_removes_every_table() -> None:
    """No object of reltask is left in the schema, so the schema can be dropped."""
    dropped = re.findall(r"DROP TABLE IF EXISTS reltask\.(\w+);", read("drop.sql"))
    assert sorted(dropped) == sorted(tables())
    assert code("drop.sql").rstrip().endswith("DROP SCHEMA IF EXISTS reltask;")


FAILS_SOMEWHERE = {
    r"^\s*GO\s*$": "a batch separator belongs to some tools alone",
    r"\bMERGE\b": "deadlocks",
    r"GETUTCDATE|GETDATE|CURRENT_TIMESTAMP": "rounds to 3.33 ms",
    r"\bdatetime\b": "rounds to 3.33 ms",
}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_construct_that_fails_on_some_server(script: Path) -> None:
    """The scripts contain nothing that fails on some SQL Server, or in some tool."""
    found = [reason for shape, reason in FAILS_SOMEWHERE.items() if re.search(shape, code(script.name), re.MULTILINE)]
    assert found == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_says_what_it_is_for(script: Path) -> None:
    """The first comment of a script says what it does."""
    assert read(script.name).startswith("-- ")


@pytest.mark.parametrize("script", MAKES_TABLES)
def test_migration_can_be_run_again(script: str) -> None:
    """A table is created only if it is missing, with its indexes, in one transaction; the version comes last."""
    text = code(script)
    made = re.findall(r"^    CREATE TABLE (reltask\.\w+)", text, re.MULTILINE)
    guarded = re.findall(r"IF OBJECT_ID\(N'(reltask\.\w+)', N'U'\) IS NULL\s+BEGIN\s+CREATE TABLE \1 ", text)
    assert made == guarded != []
    assert text.index("BEGIN TRANSACTION;") < text.index("CREATE TABLE")
    last = text.rindex("UPDATE reltask.Meta SET SchemaVersion")
    assert text.rindex("CREATE") < last < text.index("COMMIT TRANSACTION;")
    assert f"SchemaVersion = {int(script[:3])}" in text[last:]


def opened(level: int | None) -> None:
    """Check a database of that compatibility level, as an opening store does."""
    version = schema_version("mssql")
    row = {"read_only": 0, "compatibility_level": level, "schema_version": version, "oldest_version": version}
    schema.check(row)


@pytest.mark.parametrize("level", [100, 110, 120])
def test_database_of_an_older_server_is_refused(level: int) -> None:
    """Below 130 there is no OPENJSON.

    SQL Server reports a missing object, but no migration would help.
    """
    with pytest.raises(PermanentError, match=rf"level {level}.*SET COMPATIBILITY_LEVEL = 130"):
        opened(level)


@pytest.mark.parametrize("level", [None, 130, 160])
def test_database_with_json_is_accepted(level: int | None) -> None:
    """130 is enough. If the level is unknown, nothing is refused."""
    opened(level)


@pytest.mark.parametrize("path", [*SCRIPTS, *(ROOT / "src/reltask").rglob("*.*")], ids=lambda path: path.name)
def test_product_knows_no_emulator(path: Path) -> None:
    """Only the tests know Babelfish: what it does not take is rewritten there."""
    assert path.suffix not in {".py", ".sql", ".md"} or "babelfish" not in path.read_text(encoding="utf-8").lower()


needs_parser = pytest.mark.skipif(not PARSER.exists(), reason="Microsoft's parser is not installed: make check-tsql")


def check(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [PARSER, ROOT / "tools/check_tsql.py", *arguments]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)


@needs_parser
@pytest.mark.slow
def test_parser_accepts_the_tree_and_rejects_a_mistake(tmp_path: Path) -> None:
    """`make check-tsql` can fail: it names file, line and column.

    Parameters become variables first.
    """
    good, bad = tmp_path / "good.sql", tmp_path / "bad.sql"
    good.write_text("-- :comment\nSELECT TOP (:limit) ':text' AS a FROM reltask.Jobs WHERE Id = :id;", encoding="utf-8")
    bad.write_text(
        read("004-CreateLeases.sql").replace("COMMIT TRANSACTION", "COMMIT TRANSACTION FROM"), encoding="utf-8"
    )
    whole, one, other = check(), check(good), check(good, bad)
    assert (whole.returncode, one.returncode, other.returncode) == (0, 0, 1), whole.stdout + one.stdout + other.stdout
    assert re.search(r"bad\.sql:\d+:\d+: Incorrect syntax", other.stdout)
    assert "2 files parsed, 1 faults" in other.stdout
