"""The layout of the .sql files: what `src/reltask/stores/SQL.md` promises to their readers.

Each rule is a function from text to complaints. It is run on every file, and on a planted mistake.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from reltask.stores.statement import tokens

ROOT = Path(__file__).parents[2]
STORES = ROOT / "src/reltask/stores"
STATEMENTS = sorted(STORES.glob("*/sql/*.sql"))
SCRIPTS = sorted((ROOT / "database").glob("*/*.sql"))
PAGE = (STORES / "SQL.md").read_text(encoding="utf-8")
WIDTH = 100
LABELS = ["Purpose", "Precondition", "Lock order", "Returns", "Parameters", "See"]
REQUIRED = LABELS[:4]
KEYWORD = re.compile(
    r"(?<![\w@.])(?:add|alter|and|apply|as|begin|between|by|case|catch|check|coalesce|collate|commit|constraint|create"
    r"|cross|declare|default|delete|desc|distinct|drop|else|end|exec|exists|fetch|from|group|having|in|index|insert|into"
    r"|is|join|left|next|not|null|offset|on|option|or|order|output|over|partition|primary|rollback|select|set|table|then"
    r"|throw|top|transaction|try|union|unique|update|values|when|where|while|with)\b"
)
_FIELD = re.compile(r"-- (\S[\w ]*?) {2,}(.+)")
_WRITES = re.compile(r"\b(insert into|update|delete)\b(?! @)", re.IGNORECASE)
"""To a table of the database; a variable of T-SQL is none."""
Rule = Callable[[str], list[str]]


def code(sql: str) -> str:
    """A text without comments, literals, quoted names and parameters."""
    return "".join(text for kind, text in tokens(sql) if kind in ("other", "end", "cast"))


def header(sql: str) -> dict[str, str]:
    """The fields of a file's first comment, up to its notes."""
    fields: dict[str, str] = {}
    label = ""
    for line in sql.splitlines():
        if line.startswith("-- ") and (field := _FIELD.fullmatch(line)) and not line.startswith("--  "):
            label = field[1]
            fields[label] = field[2]
        elif line.startswith("--               ") and label:
            fields[label] += " " + line[2:].strip()
        else:
            break
    return fields


def too_wide(sql: str) -> list[str]:
    """Lines over 100 columns; a long literal cannot be broken, and counts as a short one."""
    folded = "".join(re.sub(r"[^\n]{20,}", "…", text) if kind == "string" else text for kind, text in tokens(sql))
    return [line for line in folded.splitlines() if len(line) > WIDTH]


def upper_case(sql: str) -> list[str]:
    """PostgreSQL and SQLite: keywords are lower case, and so is everything else."""
    return re.findall(r"\b[A-Z]\w*\b", code(sql))


def lower_case(sql: str) -> list[str]:
    """T-SQL: keywords are upper case."""
    return KEYWORD.findall(code(sql))


def open_parenthesis(sql: str) -> list[str]:
    """A parenthesis that ends a line is closed at the beginning of one."""
    unclosed: list[bool] = []
    wrong = []
    for line in code(sql).splitlines():
        for at, character in enumerate(line):
            if character == "(":
                unclosed.append(not line[at + 1 :].strip())
            elif character == ")" and unclosed and unclosed.pop() and line[:at].strip(" )"):
                wrong.append(line.strip())
    return wrong


def unexplained(sql: str) -> list[str]:
    """A header has its fields in order, each a sentence; a statement that writes says when, and what it locks."""
    fields = header(sql)
    wrong = [f"no {label}" for label in REQUIRED if label not in fields]
    wrong += [f"unknown field or order: {list(fields)}"] if list(fields) != sorted(fields, key=place) else []
    wrong += [f"not a sentence: {text}" for text in fields.values() if not re.fullmatch(r"[A-Z:].*\.", text)]
    if _WRITES.search(code(sql)):
        wrong += ["writes without a precondition"] if fields.get("Precondition") == "None." else []
        wrong += ["writes without a lock order"] if fields.get("Lock order") == "Locks nothing." else []
    return wrong


def place(label: str) -> int:
    return LABELS.index(label) if label in LABELS else -1


def unknown_name(sql: str) -> list[str]:
    """Each technique that a file cites has a section in SQL.md."""
    sections = re.findall(r"^### (.+)$", PAGE, re.MULTILINE)
    cited = re.findall(r"SQL\.md: ([\w, -]+)", header(sql).get("See", "") + "\n" + sql.partition("\n\n")[2])
    return [name for names in cited for name in names.split(", ") if name not in sections]


def complaints(rule: Rule, files: list[Path]) -> list[str]:
    found = [(path.relative_to(ROOT), wrong) for path in files for wrong in rule(path.read_text(encoding="utf-8"))]
    return [f"{path}: {wrong}" for path, wrong in found]


def test_lines_fit() -> None:
    """A DBA reads these files in any tool, beside another one."""
    assert complaints(too_wide, STATEMENTS + SCRIPTS) == []


def test_keywords_have_the_case_of_their_dialect() -> None:
    """Upper case in T-SQL, lower case elsewhere."""
    tsql = [path for path in STATEMENTS + SCRIPTS if "mssql" in path.relative_to(ROOT).parts]
    assert complaints(lower_case, tsql) == []
    assert complaints(upper_case, [path for path in STATEMENTS + SCRIPTS if path not in tsql]) == []


def test_parentheses_close_on_their_own_lines() -> None:
    """One layout for the three dialects."""
    assert complaints(open_parenthesis, STATEMENTS + SCRIPTS) == []


def test_headers_say_purpose_precondition_locks_and_result() -> None:
    """What to know before one reads, or runs, a statement."""
    assert complaints(unexplained, STATEMENTS) == []


def test_cited_techniques_are_explained() -> None:
    """And SQL.md explains nothing that no file uses."""
    assert complaints(unknown_name, STATEMENTS) == []
    used = "\n".join(header(path.read_text(encoding="utf-8")).get("See", "") for path in STATEMENTS)
    assert [name for name in re.findall(r"^### (.+)$", PAGE, re.MULTILINE) if name not in used] == []


GOOD = """-- Purpose       Write a run's progress.
-- Precondition  The row still has this id,
--               owner and fence.
-- Lock order    One row.
-- Returns       One row with the id.
-- See           SQL.md: fence.
--
-- fields  of a note are no fields

update reltask.jobs
set progress = ':Progress, which is quite a long literal and goes on and on and on and on and on and on and on'
where id in (
    select id from held
)
returning id;
"""

PLANTED: list[tuple[Rule, str]] = [
    (too_wide, "select " + "a, " * 40 + "b"),
    (too_wide, "-- " + "so " * 40),
    (upper_case, "SELECT a from b"),
    (lower_case, "SELECT Id from reltask.Jobs"),
    (open_parenthesis, "select (\n    a)"),
    (unexplained, GOOD.replace("Lock order", "Locks     ")),
    (unexplained, GOOD.replace("-- Returns       One row with the id.\n", "")),
    (unexplained, GOOD.replace("One row.", "Locks nothing.")),
    (unexplained, GOOD.replace("The row still has this id,\n--               owner and fence.", "None.")),
    (unexplained, GOOD.replace("Write a run's progress.", "write a run's progress")),
    (unknown_name, GOOD.replace("SQL.md: fence.", "SQL.md: fence, fences.")),
    (unknown_name, GOOD + "-- see SQL.md: fences\n"),
]


@pytest.mark.parametrize(("rule", "text"), PLANTED)
def test_a_rule_sees_a_planted_mistake(rule: Rule, text: str) -> None:
    """A rule that cannot fail guards nothing."""
    assert rule(text) != []


@pytest.mark.parametrize("rule", [too_wide, upper_case, open_parenthesis, unexplained, unknown_name])
def test_a_rule_leaves_a_good_file_alone(rule: Rule) -> None:
    """A rule with false alarms gets switched off."""
    assert rule(GOOD) == []


def test_tsql_in_upper_case_is_left_alone() -> None:
    """Names and types are no keywords."""
    assert lower_case("SELECT job.[key] AS task, @top int FROM reltask.Jobs AS job -- select") == []
