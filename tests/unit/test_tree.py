"""Rules about the files themselves that no linter checks.

Each rule is a function from text to complaints. It is run on every file of the tree, and on a
planted mistake, so that a rule that finds nothing is noticed.
"""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from reltask.stores.store import Store

ROOT = Path(__file__).parents[2]
STORES = ROOT / "src/reltask/stores"
ITSELF = "tests/unit/test_tree.py"
"""This file contains planted mistakes."""
Rule = Callable[[str], list[str]]


@cache
def tree() -> dict[str, str]:
    """Every text file of the project, by its path; new ones count before they are added."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("these rules read the files of a git checkout")
    paths = [path for path in listed.stdout.split("\0") if path and (ROOT / path).is_file()]
    return {path: text for path in paths if path != ITSELF and (text := read(ROOT / path)) is not None}


def read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def complaints(rule: Rule, *suffixes: str, under: str = "") -> list[str]:
    """The complaints of a rule about the files with these suffixes."""
    chosen = ((path, text) for path, text in tree().items() if path.startswith(under) and path.endswith(suffixes or ""))
    return [f"{path}: {complaint}" for path, text in chosen for complaint in rule(text)]


# Nothing unfinished, nothing of one machine

UNFINISHED = re.compile(r"\b(?:TODO|FIXME|XXX|NotImplementedError)\b")
MACHINE = re.compile(r"(?<![\w.:/<}])/(?:root|work|home/\w+|Users/\w+)/|[A-Z]:\\Users\\|file:///")
REGISTRY = re.compile(r"--(?:extra-)?index-url|--find-links|trusted-host|\w/simple\b")


def unfinished(text: str) -> list[str]:
    return UNFINISHED.findall(text)


def of_one_machine(text: str) -> list[str]:
    return MACHINE.findall(text) + REGISTRY.findall(text)


def test_nothing_is_left_unfinished() -> None:
    """No markers for later, and no stubs."""
    assert complaints(unfinished) == []


def test_nothing_names_one_machine() -> None:
    """No home folders and no package registries: a clone works anywhere."""
    assert complaints(of_one_machine) == []


# The lock file

REQUIREMENT = re.compile(r"[a-z0-9-]+==[\w.]+( ; [\w.'\" !=<>()]+)? \\")
HASH = re.compile(r"    --hash=sha256:[0-9a-f]{64}( \\)?")


def unlocked(text: str) -> list[str]:
    """Lines of a lock file that are neither an exact version followed by a hash, nor a hash."""
    lines = text.splitlines()
    wrong = [line for line in lines if not REQUIREMENT.fullmatch(line) and not HASH.fullmatch(line)]
    bare = [
        line for line, after in zip(lines, [*lines[1:], ""], strict=True) if line[:1] != " " and "--hash" not in after
    ]
    return wrong + bare


def test_the_lock_file_holds_versions_and_hashes_and_nothing_else() -> None:
    """Every package is pinned and hashed; the installer chooses the source."""
    assert complaints(unlocked, "requirements-dev.txt") == []


# Actions


def unpinned(text: str) -> list[str]:
    used = re.findall(r"uses: *(.+)", text)
    return [action for action in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", action)]


def test_actions_are_pinned_by_commit() -> None:
    """A tag can be moved by its owner, a commit cannot; the version is beside it, for people."""
    assert complaints(unpinned, ".yml", under=".github/") == []


# SQL lives in .sql files

SQL = re.compile(
    r"\b(select\b.+\bfrom|insert\s+into|update\b.+\bset|delete\s+from|(create|drop|alter)\s+table)\b",
    re.IGNORECASE | re.DOTALL,
)


def glued_sql(text: str) -> list[str]:
    """SQL that is composed in Python: by f-string, `+`, `%` or format."""
    return [f"line {node.lineno}" for node in expressions(text) if glues(node) and SQL.search(literals(node))]


def expressions(source: str) -> Iterator[ast.expr]:
    return (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.expr))


def glues(node: ast.expr) -> bool:
    match node:
        case ast.JoinedStr(values=values):
            return any(isinstance(value, ast.FormattedValue) for value in values)
        case ast.BinOp(op=ast.Add() | ast.Mod()):
            return True
        case ast.Call(func=ast.Attribute(attr="format" | "format_map", value=ast.Constant())):
            return True
    return False


def literals(node: ast.expr) -> str:
    """The literal text inside an expression."""
    return " ".join(
        part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)
    )


def test_no_sql_is_glued_together() -> None:
    """A statement is a file that can be read as a whole; values are parameters."""
    assert complaints(glued_sql, ".py", under="src/") == []


# Time is an argument

WALL_CLOCKS = {("time", "time"), ("time", "time_ns"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today")}

LOOK_AT_THE_WALL = (
    "src/reltask/producer/enqueue.py",
    "src/reltask/cli/doctor.py",
    "src/reltask/cli/schedules.py",
    "src/reltask/testing/kit.py",
)
"""Exceptions: a new id sorts by it, the doctor compares it with the database's, a preview and a test begin now."""


def wall_clock(text: str) -> list[str]:
    """Calls that read this machine's wall clock."""
    return [f"line {node.lineno}" for node in expressions(text) if reads_wall_clock(node)]


def reads_wall_clock(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(attr=attribute, value=ast.Name(id=owner) | ast.Attribute(attr=owner)):
            return (owner, attribute) in WALL_CLOCKS
    return False


def test_no_wall_clock() -> None:
    """The database owns the clock; a worker's wall clock decides nothing."""
    found = complaints(wall_clock, ".py", under="src/")
    assert [complaint for complaint in found if not complaint.startswith(LOOK_AT_THE_WALL)] == []


# Prose

MANNERED = re.compile(r"\b(nobody|somebody|whoever|so many|told|mended|takes its leave)\b", re.IGNORECASE)
"""Words of CONTRIBUTING.md's table, "Plain English", that have a plain substitute wherever they stand."""
SPEAKS_OF_THEM = ("CONTRIBUTING.md",)
NOT_PROSE = re.compile(r"^```.*?^```|<!-- [\w ]+: begin.*?: end -->", re.DOTALL | re.MULTILINE)


def wide(text: str) -> list[str]:
    """Lines of Markdown over 120 columns, outside of tables, code and generated parts."""
    prose = NOT_PROSE.sub(lambda part: "\n" * part[0].count("\n"), text)
    lines = enumerate(prose.splitlines(), 1)
    return [f"line {number}" for number, line in lines if len(line) > 120 and not line.startswith(("|", "    "))]


def mannered(text: str) -> list[str]:
    return MANNERED.findall(text)


def test_markdown_is_wrapped() -> None:
    """At most 120 columns: a diff shows what has changed."""
    assert complaints(wide, ".md") == []


def test_prose_is_plain() -> None:
    """The actor is named: readers read their second language."""
    found = complaints(mannered, ".md", ".sql") + complaints(mannered, under="src/")
    assert [complaint for complaint in found if not complaint.startswith(SPEAKS_OF_THEM)] == []


# Each rule finds its mistake

PLANTED: list[tuple[Rule, str]] = [
    (unfinished, "# TODO: later"),
    (unfinished, "raise NotImplementedError"),
    (of_one_machine, "cd /root/project"),
    (of_one_machine, "see /home/ada/notes.txt"),
    (of_one_machine, "--index-url https://packages.example"),
    (of_one_machine, "https://packages.example/simple/"),
    (unlocked, "click>=8 \\\n    --hash=sha256:" + "0" * 64),
    (unlocked, "click==8.1 \\"),
    (unlocked, "click==8.1 \\\n    --hash=sha256:12"),
    (unpinned, "- uses: actions/checkout@v7"),
    (unpinned, "- uses: actions/checkout@" + "0" * 40),
    (glued_sql, "f'select * from {table}'"),
    (glued_sql, "'delete from ' + table"),
    (glued_sql, "'update %s set x = 1' % table"),
    (glued_sql, "'insert into {}'.format(table)"),
    (wall_clock, "import time\ntime.time()"),
    (wall_clock, "import datetime\ndatetime.datetime.now()"),
    (wall_clock, "from datetime import datetime\ndatetime.now(UTC)"),
    (wide, "word " * 25),
    (mannered, "The row belongs to whoever holds it."),
]
CORRECT: list[tuple[Rule, str]] = [
    (of_one_machine, "https://packages.example/project/reltask/ and src/work/home/ada/"),
    (unlocked, "click==8.1 ; sys_platform == 'win32' \\\n    --hash=sha256:" + "0" * 64),
    (unpinned, "- uses: actions/checkout@" + "0" * 40 + " # v7.0.1"),
    (glued_sql, "'select a from b'; f'{n} rows'; 'insert into t values (:x)'"),
    (wall_clock, "import time\ntime.monotonic(); row.now"),
    (wide, "| cell " * 25 + "\n```text\n" + "x" * 130 + "\n```\n"),
    (mannered, "The row belongs to its holder."),
]


@pytest.mark.parametrize(("rule", "text"), PLANTED)
def test_a_rule_sees_a_planted_mistake(rule: Rule, text: str) -> None:
    """A rule that finds no mistake is broken."""
    assert rule(text) != []


@pytest.mark.parametrize(("rule", "text"), CORRECT)
def test_a_rule_accepts_correct_text(rule: Rule, text: str) -> None:
    """A rule with false alarms would be switched off."""
    assert rule(text) == []


# One verb, one file

NOT_STATEMENTS = {"open", "close"}
"""Verbs that manage connections."""
HOUSEKEEPING = {
    "read_schema",
    "lock_schema",
    "begin_transaction",
    "guard_job",
    "guard_lease",
    "read_ended",
    "read_surplus",
    "advisory_lock",
}
"""Statements that migration, start-up, pruning and a task's own transaction need, below the seam."""
OF_POSTGRES = {
    "enqueue_job",
    "enqueue_limited",
    "schedule_jobs",
    "complete_one_offs",
    "complete_limited",
    "read_transaction",
    "reset_session",
    "partition_ledger",
    "renew_partitions",
}
"""Simpler statements for one job, and for one-offs, which are the most frequent, and which need fewer rights; those
with limits; the sessions of tasks; the partitions of the ledger."""
OF_MSSQL = {
    "find_schema",
    "commit_transaction",
    "rollback_transaction",
    "read_transaction",
    "advisory_lock_held",
    "advisory_unlock",
}
"""What its driver has no function for."""
_SIGNALS = {"signal", "signal_lease", "signal_cancel", "signal_awaited", "signal_ended"}
WITHOUT = {"sqlite": _SIGNALS, "mssql": _SIGNALS}
"""Verbs without a statement in a store: SQLite and SQL Server have no notifications."""


def verbs() -> set[str]:
    return {name for name, _ in inspect.getmembers(Store, inspect.iscoroutinefunction)} - NOT_STATEMENTS


def stores() -> list[Path]:
    return [folder.parent for folder in sorted(STORES.glob("*/sql"))]


@pytest.mark.parametrize("store", stores(), ids=lambda folder: folder.name)
def test_each_verb_is_a_file_and_each_file_a_verb(store: Path) -> None:
    """The same names in the seam and in every store, so that `ls` lists the verbs."""
    files = {path.stem for path in (store / "sql").iterdir()}
    own = {"mssql": OF_MSSQL, "postgres": OF_POSTGRES}.get(store.name, set())
    assert files - HOUSEKEEPING - own == verbs() - WITHOUT.get(store.name, set())


@pytest.mark.parametrize("store", stores(), ids=lambda folder: folder.name)
def test_each_statement_says_what_it_is_for(store: Path) -> None:
    """A file begins with a comment: purpose, precondition, lock order."""
    silent = [
        path.name for path in (store / "sql").glob("*.sql") if not path.read_text(encoding="utf-8").startswith("--")
    ]
    assert silent == []
