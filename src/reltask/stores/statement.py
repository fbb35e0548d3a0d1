"""Compiles SQL files into the parameter styles of the drivers.

The files name their parameters `:like_this`, so that they are readable and any SQL tool can run them. Each driver has
its own style: asyncpg `$1`, psycopg `%(name)s`, sqlite3 takes `:name`, ODBC `?`, and Django in front of ODBC `%s`. A
small tokenizer finds the parameters and leaves alone what only looks like one: a cast (`x::text`), a string, a quoted
name, a comment, a dollar-quoted body.

    select :now::timestamptz, ':not' -- :nor this        select $1::timestamptz, ':not' -- :nor this
           ▲                                       ──►          ▲
           parameter                                            names = ("now",)

The files name the schema `reltask`, so that a DBA can run them as they are. `in_schema` writes another name in its
place, and nothing else does: a word `reltask`, or one that begins with `reltask_`, in code and in strings.

    reltask.jobs   reltask_run   'reltask'   'reltask.migrate'       'reltask:maintenance'   -- reltask on PostgreSQL
    ▼              ▼             ▼           ▼                       a lease's name and prose stay as they are
    billing.jobs   billing_run   'billing'   'billing.migrate'
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

from reltask.model.schema_name import SCHEMA, check_schema

Style = Literal["named", "numbered", "pyformat", "qmark", "format"]
BY_POSITION = frozenset({"numbered", "qmark", "format"})
"""Styles whose values are passed as a list."""

_TOKEN = re.compile(
    r"""
      (?P<comment>    --[^\n]* | /\*.*?\*/ )
    | (?P<string>     (?<!\w)[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' )
    | (?P<quoted>     "(?:[^"]|"")*" | \[[A-Za-z_][\w .]*\] )
    | (?P<dollar>     \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<cast>       :: )
    | (?P<parameter>  (?<!\w):[A-Za-z_]\w* )
    | (?P<end>        ; )
    | (?P<other>      \w+ | [^\w\-/'"\[$:;]+ | . )
    """,
    re.VERBOSE | re.DOTALL,
)


_OURS = re.compile(r"\breltask(?=_\w|\b(?!:))")
_OURS_IN_COMMENT = re.compile(r"\breltask(?=_\w|\.\w+(?![\w:]))")
"""In a comment only what is certainly a name: `reltask.jobs`, `reltask_run`."""


class Statement(NamedTuple):
    """One statement, ready for one driver."""

    text: str
    names: tuple[str, ...]
    """The parameters in the driver's order."""

    def arguments(self, values: dict[str, object]) -> list[object]:
        """The values in the driver's order. A missing one is a bug in the store and raises KeyError."""
        return [values[name] for name in self.names]


def tokens(sql: str) -> Iterator[tuple[str, str]]:
    """The tokens of a text, each with its kind; joined they are the text again."""
    for match in _TOKEN.finditer(sql):
        yield str(match.lastgroup), match.group()


def split(script: str) -> list[str]:
    """The statements of a script without the semicolons, each with the comments above it."""
    statements, current, empty = [], [], True
    for kind, text in [*tokens(script), ("end", ";")]:
        if kind != "end":
            current.append(text)
            empty = empty and (kind == "comment" or not text.strip())
        elif empty:
            current = []
        else:
            statements.append("".join(current).strip())
            current, empty = [], True
    return statements


def compile_statement(sql: str, style: Style) -> Statement:
    """Rewrite `:name` parameters for a driver."""
    names: list[str] = []
    pieces: list[str] = []
    for kind, text in tokens(sql):
        if kind != "parameter":
            # psycopg and Django look for placeholders everywhere, also in strings and comments.
            pieces.append(text.replace("%", "%%") if style in ("pyformat", "format") else text)
            continue
        name = text[1:]
        if style in ("qmark", "format") or name not in names:
            names.append(name)
        pieces.append(_placeholder(name, names.index(name) + 1, style))
    return Statement("".join(pieces), tuple(names))


def _placeholder(name: str, number: int, style: Style) -> str:
    placeholders: dict[Style, str] = {
        "named": f":{name}",
        "numbered": f"${number}",
        "pyformat": f"%({name})s",
        "qmark": "?",
        "format": "%s",
    }
    return placeholders[style]


def in_schema(sql: str, schema: str) -> str:
    """The text of one of reltask's files for another schema than `reltask`."""
    if schema == SCHEMA:
        return sql
    return "".join(_renamed(kind, text, check_schema(schema)) for kind, text in tokens(sql))


def _renamed(kind: str, text: str, schema: str) -> str:
    if kind == "dollar":  # the body of a function
        tag = text[: text.index("$", 1) + 1]
        return f"{tag}{in_schema(text[len(tag) : -len(tag)], schema)}{tag}"
    return (_OURS_IN_COMMENT if kind == "comment" else _OURS).sub(schema, text)


def read_sql(store: str, verb: str, schema: str = SCHEMA) -> str:
    """The text of `stores/<store>/sql/<verb>.sql`, for this schema."""
    sql = (files("reltask.stores") / store / "sql" / f"{verb}.sql").read_text(encoding="utf-8")
    return in_schema(sql, schema)


@cache
def load(store: str, verb: str, style: Style, schema: str = SCHEMA) -> tuple[Statement, ...]:
    """The statements of a verb's file, compiled once per process and schema."""
    return tuple(compile_statement(statement, style) for statement in split(read_sql(store, verb, schema)))


@cache
def load_batch(store: str, verb: str, style: Style, schema: str = SCHEMA) -> Statement:
    """A verb's whole file as one text, for a server that takes several statements at once."""
    return compile_statement(read_sql(store, verb, schema), style)
