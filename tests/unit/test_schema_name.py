"""The name of the schema: what is accepted, and where it is put."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask import App
from reltask.errors import SettingsError
from reltask.model.schema_name import SCHEMA, check_schema, split_schema, with_schema
from reltask.stores.migration import schema_scripts
from reltask.stores.statement import in_schema, read_sql, tokens

SOURCE = Path(__file__).parents[2] / "src" / "reltask"
DIALECTS = ("postgres", "sqlite", "mssql")
FILES = [
    (dialect, path) for dialect in DIALECTS for path in sorted((SOURCE / "stores" / dialect / "sql").glob("*.sql"))
]
REFUSED = [
    "", "Billing", "1st", "_x", "a-b", "a b", 'a"b', "a;b", "a.b", "é", "x" * 49, "select", "user", "public", "dbo",
    "pg_temp", "sqlite_x", "information_schema", "reltask_leases", "reltask_ended", "jobs\n", "a'--",
]  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_name_that_would_need_quotes_is_refused(name: str) -> None:
    """With an error that says what to write."""
    with pytest.raises(SettingsError, match="cannot be the schema") as error:
        check_schema(name)
    assert "plain name" in str(error.value)
    with pytest.raises(SettingsError):
        in_schema("select * from reltask.jobs", name)


def test_two_installs_share_no_name() -> None:
    """Whatever another install is called: no table, index, trigger, role or channel of both has the same name."""
    own = {
        name
        for dialect in DIALECTS
        for _, sql in schema_scripts(dialect, "x")
        for kind, text in tokens(sql)
        if kind != "comment"
        for name in re.findall(r"\bx_(\w+)", text)
    }
    listening = (SOURCE / "stores" / "postgres" / "listening.py").read_text(encoding="utf-8")
    channels = set(re.findall(r"\{self\._schema\}_(\w+)", listening))
    assert {"jobs", "limit_keys", "run"} < own
    assert "ended" in channels
    refused = {name.removesuffix(f"_{other}") for name in own for other in own if name.endswith(f"_{other}")} | channels
    for ending in refused:
        with pytest.raises(SettingsError):
            check_schema(f"x_{ending}")


@given(st.text())
def test_what_is_accepted_is_a_plain_name(name: str) -> None:
    """Whatever the text is: it is refused, or has only characters that no database interprets."""
    try:
        check_schema(name)
    except SettingsError:
        return
    assert re.fullmatch(r"[a-z][a-z0-9_]{0,47}", name)


@pytest.mark.parametrize(
    ("url", "plain", "schema"),
    [
        ("postgresql://h/d", "postgresql://h/d", SCHEMA),
        ("postgresql://h/d?schema=billing", "postgresql://h/d", "billing"),
        ("postgresql://h/d?sslmode=require&schema=billing&x=1", "postgresql://h/d?sslmode=require&x=1", "billing"),
        ("mssql://h/d?Schema=billing", "mssql://h/d", "billing"),
        ("sqlite:///f.db?schema=billing", "sqlite:///f.db", "billing"),
    ],
)
def test_the_url_names_the_schema(url: str, plain: str, schema: str) -> None:
    assert split_schema(url) == (plain, schema)


def test_setting_and_url_must_agree() -> None:
    """The setting is the same as the option of the URL; two different names are an error."""
    assert with_schema("postgresql://h/d?a=1", "x") == "postgresql://h/d?a=1&schema=x"
    assert with_schema("postgresql://h/d?schema=x", "x") == "postgresql://h/d?schema=x"
    assert App("sqlite:///f.db", settings={"database.schema": "x"}).url == "sqlite:///f.db?schema=x"
    with pytest.raises(SettingsError, match=r"database\.schema is y"):
        with_schema("postgresql://h/d?schema=x", "y")
    with pytest.raises(SettingsError, match="two schemas"):
        split_schema("postgresql://h/d?schema=x&schema=y")


@pytest.mark.parametrize(("dialect", "path"), FILES, ids=lambda value: getattr(value, "stem", value))
def test_every_statement_moves_to_the_schema(dialect: str, path: Path) -> None:
    """Outside comments no word of reltask's own is left, and the default text is the file itself."""
    assert read_sql(dialect, path.stem) == path.read_text(encoding="utf-8")
    _check_moved(read_sql(dialect, path.stem, "billing"))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_script_moves_to_the_schema(dialect: str) -> None:
    for _, sql in schema_scripts(dialect, "billing"):
        _check_moved(sql)


def _check_moved(sql: str) -> None:
    for kind, text in tokens(sql):
        if kind != "comment":
            assert not re.search(r"\breltask(?!:maintenance)", text.replace("reltask:maintenance", "")), text


def test_names_in_comments_move_and_prose_stays() -> None:
    sql = "-- reltask's role reltask_run reads reltask.jobs; run reltask worker reltask.sample:app\nselect 1"
    moved = in_schema(sql, "x")
    assert moved == "-- reltask's role x_run reads x.jobs; run reltask worker reltask.sample:app\nselect 1"


def test_a_function_body_moves() -> None:
    assert in_schema("do $f$ begin perform 1 from reltask.jobs; end $f$", "x") == (
        "do $f$ begin perform 1 from x.jobs; end $f$"
    )


SCHEMALESS = {"begin_transaction", "commit_transaction", "rollback_transaction", "read_transaction", "reset_session"}
"""Files that name no table, or are sent before the schema is known."""


def test_every_store_names_its_schema() -> None:
    """In the stores no statement is loaded for the default schema by omission."""
    wants = {"load": 4, "load_batch": 4, "read_sql": 3, "migrations": 2, "pending": 3}
    found = 0
    for path in (SOURCE / "stores").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""
            if path.name not in ("statement.py", "migration.py") and called in wants:
                assert isinstance(node, ast.Call)
                named = {argument.value for argument in node.args if isinstance(argument, ast.Constant)}
                found += 1
                assert named & SCHEMALESS or len(node.args) == wants[called], f"{path}:{node.lineno}"
    assert found > 20
