"""ARCHITECTURE.md says what is there: the rooms and their order, the files, and the tables with their columns."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.docs.pages import ROOT, mermaid

PAGE = ROOT / "ARCHITECTURE.md"
PACKAGE = ROOT / "src" / "reltask"
DDL = ROOT / "database" / "postgres"


class Column(NamedTuple):
    """One column of a table."""

    name: str
    kind: str
    is_key: bool


Tables = dict[str, list[Column]]


# The rooms


def room_cells(text: str) -> list[str]:
    """The first column of the table of rooms."""
    _, _, section = text.partition("\n## Rooms\n")
    return re.findall(r"^\| `([^`]+)` \|", section.partition("\n## ")[0], re.MULTILINE)


def contract_rooms() -> list[str]:
    """The rooms in the order of the import contract."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = [one for one in settings["tool"]["importlinter"]["contracts"] if one["type"] == "layers"]
    return [room for layer in contract["layers"] for room in re.findall(r"\w+", layer)]


def test_table_of_rooms_is_the_import_contract() -> None:
    """Every room that the contract orders has a row, in the same order, and each row names what exists."""
    cells = room_cells(PAGE.read_text(encoding="utf-8"))
    assert [cell.rstrip("/").removesuffix(".py") for cell in cells] == contract_rooms()
    assert [cell for cell in cells if (PACKAGE / cell).is_dir() != cell.endswith("/")] == []
    assert [cell for cell in cells if not (PACKAGE / cell).exists()] == []


def test_every_room_of_the_package_is_in_the_table() -> None:
    """A folder or module that `ls src/reltask` shows is explained."""
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    cells = room_cells(PAGE.read_text(encoding="utf-8"))
    assert there - {"__init__"} == {cell.rstrip("/").removesuffix(".py") for cell in cells}


ROOMS = ("leases", "model", "producer", "stores", "worker")
"""The rooms whose docstring is a table of contents; in the others the file names are enough."""


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_its_modules(room: str) -> None:
    """The docstring of a room has a line for each of its modules, and for no other."""
    docstring = ast.get_docstring(ast.parse((PACKAGE / room / "__init__.py").read_text(encoding="utf-8")))
    assert docstring is not None
    named = set(re.findall(r"^(\w+)  +\S", docstring, re.MULTILINE))
    assert named == {path.stem for path in (PACKAGE / room).glob("*.py")} - {"__init__"}


# The paths


def named_paths(text: str) -> Iterator[str]:
    """What is written between backticks and has the form of a path; `<verb>` stands for any name."""
    for quoted in re.findall(r"`([^`\n]+)`", text):
        if re.fullmatch(r"[\w.-]+/[\w./-]*", quoted):
            yield quoted


def test_every_path_exists() -> None:
    """A path leads to a file or a folder, from the root or from the package."""
    paths = set(named_paths(PAGE.read_text(encoding="utf-8")))
    assert {"model/backoff.py", "worker/poller.py", "stores/store.py", "worker/heartbeat.py"} <= paths
    assert {path for path in paths if not (PACKAGE / path).exists() and not (ROOT / path).exists()} == set()


# The tables

_TABLE = re.compile(r"^create table if not exists reltask\.(\w+) \(\n(.*?)^\)", re.MULTILINE | re.DOTALL)
_COLUMN = re.compile(r"^    (?!constraint|primary)(\w+) +(\w+)(.*)$", re.MULTILINE)
_KEY = re.compile(r"^    primary key \(([\w, ]+)\)", re.MULTILINE)
_ADDED = re.compile(r"^alter table reltask\.(\w+) add column if not exists (\w+) (\w+)", re.MULTILINE)


def declared_tables() -> Tables:
    """Tables and columns as the numbered scripts leave them."""
    tables: Tables = {}
    for script in sorted(DDL.glob("0*.sql")):
        ddl = script.read_text(encoding="utf-8")
        for table, body in _TABLE.findall(ddl):
            key = ", ".join(_KEY.findall(body)).split(", ")
            tables[table] = [
                Column(name, kind, name in key or "primary key" in rest) for name, kind, rest in _COLUMN.findall(body)
            ]
        for table, name, kind in _ADDED.findall(ddl):
            tables[table].append(Column(name, kind, is_key=False))
    return tables


def drawn_tables(diagram: str) -> Tables:
    """Tables and columns of an entity-relationship diagram."""
    tables = re.findall(r"^ +([A-Z_]+) \{\n(.*?)^ +\}", diagram, re.MULTILINE | re.DOTALL)
    column = re.compile(r"^ +(\w+) (\w+)( PK)?", re.MULTILINE)
    return {
        table.lower(): [Column(name, kind, bool(key)) for kind, name, key in column.findall(body)]
        for table, body in tables
    }


def test_schema_diagram_is_the_schema() -> None:
    """The drawn tables have the columns, types and primary keys of the PostgreSQL DDL, in its order."""
    declared = declared_tables()
    first = {"meta", "jobs", "runs", "workers", "leases", "lease_waiters", "metrics"}
    durable = {"steps", "signals", "child_ends", "marks"}
    control = {"pauses", "actions", "keys", "limits", "limit_keys"}
    assert set(declared) == first | durable | control
    assert drawn_tables(mermaid(PAGE, "erDiagram")) == declared


def test_every_relation_joins_drawn_tables() -> None:
    """Both ends of each relation are tables of the diagram."""
    diagram = mermaid(PAGE, "erDiagram")
    ends = re.findall(r"^ +([A-Z_]+) \S+--\S+ ([A-Z_]+) :", diagram, re.MULTILINE)
    assert ends
    assert {end.lower() for pair in ends for end in pair} <= set(drawn_tables(diagram))
