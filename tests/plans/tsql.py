"""What T-SQL statements read and lock, from the trees of Microsoft's own parser: no server is needed.

    tools/tsql_tree.py ──► trees ──► accesses: table, alias, hints, conditions ──► rules about plans
                              └────► locks of each verb, in order              ──► docs/sqlserver.md, and no cycle

A lock is taken on a key of one index of one row. `row` is the clustered index. What an UPDATE writes decides which
indexes it locks after the row: those that have one of the columns as key, by INCLUDE or in their filter.

    python -m tests.plans.tsql          prints the table of docs/sqlserver.md
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PARSER = Path(sys.prefix) / "tsql/bin/python"
Tree = dict[str, Any]

READS_ALL = {
    "audit_durable": "examines every row, slice by slice",
    "audit_limits": "counts every claimed job with a limit",
    "audit_losses": "counts the ledger",
    "audit_slice": "examines every row, slice by slice",
    "audit_slots": "examines every row, slice by slice",
    "audit_tasks": "counts every row",
    "audit_waiting": "examines every row",
    "list_jobs": "a list by any condition",
    "list_leases": "all of them",
    "list_limit_keys": "counts the jobs of every key",
    "list_limits": "counts the jobs of every limit",
    "list_pauses": "counts the due jobs of a queue or task",
    "list_runs": "a list by any condition",
    "page_jobs": "a list by any condition",
    "find_jobs": "a list by any condition",
    "list_dead_errors": "a list by any condition",
    "list_schedules": "all of them",
    "read_overview": "counts every row",
    "read_job_limits": "the keys of one job, and the jobs that wait there",
    "read_payload": "the rows of one job",
    "read_status": "counts every row",
    "recount_limits": "counts every claimed job with a limit, by the index of those",
    "sample_runs": "a sample of the ledger",
    "write_limit": "marks every waiting job of a limit, by the index of those",
}
"""Statements of people and dashboards, which read a whole table on purpose."""
WALKED = {
    "cancel_children": "IX_Jobs_Children",
    "claim_jobs": "IX_Jobs_Expiring",
    "read_overdue": "IX_Jobs_Polling",
    "read_surplus": "IX_Runs_Counted",
}
"""Indexes that a verb of workers walks on purpose: narrow ones, or only their first row."""


class Index(NamedTuple):
    """An index, from the scripts of database/mssql."""

    name: str
    table: str
    key: tuple[str, ...]
    included: frozenset[str]
    filtered: frozenset[tuple[str, str]]
    """The filter: columns and conditions."""
    unique: bool
    clustered: bool

    @property
    def columns(self) -> set[str]:
        return {*self.key, *self.included, *(column for column, _ in self.filtered)}

    @property
    def identifies(self) -> bool:
        """Whether its key is that of every row, so that a session which locks it has the row."""
        return self.clustered or (self.unique and not self.filtered)


class Access(NamedTuple):
    """One mention of a table in a statement."""

    table: str
    path: str | None
    """The index that it names."""
    hints: frozenset[str]
    target: str
    """`update`, `delete` or `insert` if the statement writes it; otherwise empty."""
    conditions: frozenset[tuple[str, str]]
    """Columns of this table that WHERE and ON compare, and how."""
    written: frozenset[str]
    read: frozenset[str]
    """Every column of this table that the query names."""
    ordered: bool
    """The first row by the order of the index, and no more."""
    forced: bool
    """OPTION (LOOP JOIN, FORCE ORDER), and this table is one of several: it is sought for each row of the others."""
    at: int

    @property
    def skips(self) -> bool:
        return "ReadPast" in self.hints


class Lock(NamedTuple):
    """A key that stays locked until the end of the transaction."""

    table: str
    key: str
    """The name of its index."""
    waits: bool


@cache
def trees() -> dict[str, Tree]:
    """The tree of every T-SQL file."""
    command = [str(PARSER), "-m", "tools.tsql_tree"]
    answer = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, Tree] = json.loads(answer.stdout)
    return found


def verbs() -> dict[str, Tree]:
    """The trees of the store's statements."""
    return {name.removesuffix(".sql"): tree for name, tree in trees().items() if name[0].islower() and _is_verb(name)}


def _is_verb(name: str) -> bool:
    return (ROOT / "src/reltask/stores/mssql/sql" / name).exists()


def walk(node: Any) -> Iterator[Tree]:
    """Every node, in no particular order."""
    if isinstance(node, dict):
        yield node
        for value in node.values():
            yield from walk(value)
    elif isinstance(node, list):
        for item in node:
            yield from walk(item)


def of_kind(node: Any, *kinds: str) -> list[Tree]:
    """The nodes of these types, as they stand in the text."""
    return sorted((found for found in walk(node) if found["_"] in kinds), key=lambda found: int(found["at"]))


# Indexes


@cache
def indexes() -> dict[str, Index]:
    """Every index of reltask's tables, by its name."""
    scripts = [tree for name, tree in trees().items() if name[0].isdigit()]
    made = [_made(node) for tree in scripts for node in of_kind(tree, "CreateIndexStatement")]
    return {index.name: index for index in [*made, *(_constraint for tree in scripts for _constraint in _keys(tree))]}


def _made(node: Tree) -> Index:
    return Index(
        name=node["Name"]["Value"],
        table=node["OnName"]["BaseIdentifier"]["Value"],
        key=tuple(_column(column["Column"])[1] for column in node["Columns"]),
        included=frozenset(_column(column)[1] for column in node.get("IncludeColumns", [])),
        filtered=frozenset((column, how) for _, column, how in _compared(node.get("FilterPredicate"))),
        unique=bool(node.get("Unique")),
        clustered=bool(node.get("Clustered")),
    )


def _keys(tree: Tree) -> Iterator[Index]:
    """Primary keys and unique constraints. A primary key is clustered, unless it says otherwise."""
    for table in of_kind(tree, "CreateTableStatement"):
        for key in of_kind(table, "UniqueConstraintDefinition"):
            clustered = key.get("Clustered", key["IsPrimaryKey"])
            yield Index(
                name=key["ConstraintIdentifier"]["Value"],
                table=table["SchemaObjectName"]["BaseIdentifier"]["Value"],
                key=tuple(_column(column["Column"])[1] for column in key["Columns"]),
                included=frozenset(),
                filtered=frozenset(),
                unique=True,
                clustered=bool(clustered),
            )


@cache
def computed() -> dict[str, frozenset[str]]:
    """The columns that the server computes, with the columns that they are computed from."""
    scripts = [tree for name, tree in trees().items() if name[0].isdigit()]
    return {
        column["ColumnIdentifier"]["Value"]: frozenset(
            _column(source)[1] for source in of_kind(column["ComputedColumnExpression"], "ColumnReferenceExpression")
        )
        for tree in scripts
        for column in of_kind(tree, "ColumnDefinition")
        if "ComputedColumnExpression" in column
    }


_BYTES = {"bigint": 8, "bit": 1, "datetime2": 8, "float": 8, "int": 4, "smallint": 2, "uniqueidentifier": 16}


@cache
def _widths() -> dict[tuple[str, str], float]:
    """The most bytes that a column takes; a computed one has its CAST, or is as wide as what it is computed from."""
    found: dict[tuple[str, str], float] = {}
    for table in (table for tree in trees().values() for table in of_kind(tree, "CreateTableStatement")):
        whose = table["SchemaObjectName"]["BaseIdentifier"]["Value"]
        for column in of_kind(table, "ColumnDefinition"):
            name = column["ColumnIdentifier"]["Value"]
            types = [_bytes(kind) for kind in of_kind(column, "SqlDataTypeReference")]
            found[whose, name] = max(types or [found[whose, source] for source in computed()[name]])
    return found


def _bytes(kind: Tree) -> float:
    sizes = [size["Value"] for size in kind.get("Parameters", [])]
    if kind["SqlDataTypeOption"] in {"NVarChar", "NChar"}:
        return 2 * float("inf" if sizes == ["max"] else sizes[0])
    return _BYTES[kind["Name"]["BaseIdentifier"]["Value"]]


def width(index: Index) -> float:
    """The most bytes that a key of this index takes."""
    return sum(_widths()[index.table, column] for column in index.key)


def clustered(table: str) -> Index:
    """The index that is the table itself."""
    return next(index for index in indexes().values() if index.table == table and index.clustered)


# Accesses


def accesses(tree: Tree) -> list[Access]:
    """Every access to reltask's tables, in the order of the text."""
    found = [
        access
        for statement in of_kind(
            tree, "SelectStatement", "UpdateStatement", "DeleteStatement", "InsertStatement", "IfStatement"
        )
        for access in _in_statement(statement)
    ]
    return sorted(set(found), key=lambda access: access.at)


def _in_statement(statement: Tree) -> Iterator[Access]:
    """The accesses of one statement, not of those inside an IF's branches."""
    if statement["_"] == "IfStatement":
        yield from _in_scopes(statement["Predicate"], forced=False)
        return
    forced = {"LoopJoin", "ForceOrder"} <= {hint["HintKind"] for hint in statement.get("OptimizerHints", [])}
    yield from _in_scopes(statement, forced=forced)


def _in_scopes(node: Any, *, forced: bool) -> Iterator[Access]:
    for scope in of_kind(
        node, "QuerySpecification", "UpdateSpecification", "DeleteSpecification", "InsertSpecification"
    ):
        yield from _in_scope(scope, forced=forced)


def _in_scope(scope: Tree, *, forced: bool) -> Iterator[Access]:
    kind = scope["_"].removesuffix("Specification").lower()
    sources = scope.get("FromClause", {}).get("TableReferences", [])
    named = list(_own_tables(sources))
    target = scope.get("Target", {"_": ""})
    alias = target["SchemaObject"]["BaseIdentifier"]["Value"] if _is_table(target) else ""
    written = _written(scope)
    compared = set(_compared([scope.get("WhereClause"), *_joins(scope)]))
    tables = [*named]
    if _is_table(target) and not any(_alias(table) == alias for table in named):
        tables.append(target)
    ours = [table for table in tables if table["SchemaObject"].get("SchemaIdentifier")]
    for table in ours:
        name = _alias(table)
        alone = len(tables) == 1
        is_target = name == alias or table is target
        yield Access(
            table=table["SchemaObject"]["BaseIdentifier"]["Value"],
            path=_index(table),
            hints=frozenset(hint["HintKind"] for hint in table.get("TableHints", [])),
            target=kind if is_target and kind != "query" else "",
            conditions=frozenset(
                (column, how) for whose, column, how in compared if whose == name or (alone and not whose)
            ),
            written=written if is_target else frozenset(),
            read=_read(scope, name),
            ordered="TopRowFilter" in scope and "OrderByClause" in scope,
            forced=forced and any("FirstTableReference" in one for one in sources),
            at=table["at"],
        )


def _written(scope: Tree) -> frozenset[str]:
    """The columns that SET names, and those that are computed from them."""
    columns = {_column(clause["Column"])[1] for clause in scope.get("SetClauses", []) if "Column" in clause}
    return frozenset(columns | {name for name, sources in computed().items() if sources & columns})


def _read(scope: Tree, alias: str) -> frozenset[str]:
    names = [_column(node) for node in walk(scope) if node["_"] == "ColumnReferenceExpression"]
    return frozenset(column for whose, column in names if whose == alias)


def _own_tables(references: Any) -> Iterator[Tree]:
    """The tables of a FROM clause, not those of derived tables."""
    for reference in references if isinstance(references, list) else [references]:
        if reference["_"] == "NamedTableReference":
            yield reference
        for part in ("FirstTableReference", "SecondTableReference", "Join"):
            if part in reference:
                yield from _own_tables(reference[part])


def _joins(scope: Tree) -> list[Tree]:
    def conditions(reference: Tree) -> Iterator[Tree]:
        if "SearchCondition" in reference:
            yield reference["SearchCondition"]
        for part in ("FirstTableReference", "SecondTableReference", "Join"):
            if part in reference:
                yield from conditions(reference[part])

    return [one for table in scope.get("FromClause", {}).get("TableReferences", []) for one in conditions(table)]


def _is_table(node: Tree) -> bool:
    return bool(node["_"] == "NamedTableReference")


def _alias(table: Tree) -> str:
    return str((table.get("Alias") or table["SchemaObject"]["BaseIdentifier"])["Value"])


def _index(table: Tree) -> str | None:
    for hint in table.get("TableHints", []):
        if hint["_"] == "IndexTableHint":
            return str(hint["IndexValues"][0]["Identifier"]["Value"])
    return None


def _column(node: Tree) -> tuple[str, str]:
    """Table, or nothing, and column."""
    names = [name["Value"] for name in node.get("MultiPartIdentifier", node).get("Identifiers", [])]
    return (names[-2] if len(names) > 1 else "", names[-1] if names else "")


def _compared(node: Any) -> Iterator[tuple[str, str, str]]:
    """Table, column and kind of each comparison; also in subqueries, which may refer to this table."""
    for found in walk(node):
        if found["_"] == "BooleanIsNullExpression" and found["Expression"]["_"] == "ColumnReferenceExpression":
            yield (*_column(found["Expression"]), "IS NOT NULL" if found["IsNot"] else "IS NULL")
        elif found["_"] == "InPredicate" and found["Expression"]["_"] == "ColumnReferenceExpression":
            yield (*_column(found["Expression"]), "IN")
        elif found["_"] == "BooleanComparisonExpression":
            how = "=" if found["ComparisonType"] == "Equals" else "<>"
            for side in ("FirstExpression", "SecondExpression"):
                if found[side]["_"] == "ColumnReferenceExpression":
                    yield (*_column(found[side]), how)


# Locks


def locks(tree: Tree) -> list[Lock]:
    """What a verb locks until its end, in order, each key once. Rows that it inserts are new, and no session waits."""
    order: list[Lock] = []
    for access in accesses(tree):
        for lock in _locks(access):
            if (lock.table, lock.key) not in {(known.table, known.key) for known in order}:
                order.append(lock)
    return order


def _locks(access: Access) -> Iterator[Lock]:
    if access.target == "insert" or not (access.target or "UpdLock" in access.hints):
        return
    row = clustered(access.table)
    first = access.path or row.name
    yield Lock(access.table, first, waits=not access.skips)
    if not access.target:
        # A column that the index lacks is looked up in the row, which is then locked in the same way.
        if first != row.name and access.read - indexes()[first].columns - set(row.key):
            yield Lock(access.table, row.name, waits=not access.skips)
        return
    yield Lock(access.table, row.name, waits=not access.skips)
    for index in sorted(indexes().values()):
        changed = access.target == "delete" or index.columns & access.written
        if index.table == access.table and not index.clustered and changed:
            yield Lock(access.table, index.name, waits=True)


def shown(order: list[Lock]) -> str:
    """The order as docs/sqlserver.md has it."""
    return " → ".join(f"{lock.key}{'' if lock.waits else ' (skips)'}" for lock in order)


def table() -> list[str]:
    """The rows of the table in docs/sqlserver.md: the verbs that lock more than one key."""
    orders = {verb: locks(tree) for verb, tree in sorted(verbs().items())}
    return [f"| `{verb}` | {shown(order)} |" for verb, order in orders.items() if len(order) > 1]


if __name__ == "__main__":
    print("\n".join(["| verb | keys, in the order in which it locks them |", "|---|---|", *table()]))  # noqa: T201
