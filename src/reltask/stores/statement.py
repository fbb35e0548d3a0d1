"""Compiles SQL files into the parameter styles of the drivers.

The files name their parameters `:like_this`, so that they are readable and any SQL tool can run them. Each driver has
its own style: asyncpg `$1`, psycopg `%(name)s`, sqlite3 takes `:name`, ODBC `?`, and Django in front of ODBC `%s`. A
small tokenizer finds the parameters and leaves alone what only looks like one: a cast (`x::text`), a string, a quoted
name, a comment, a dollar-quoted body.

    select :now::timestamptz, ':not' -- :nor this        select $1::timestamptz, ':not' -- :nor this
           ▲                                       ──►          ▲
           parameter                                            names = ("now",)
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Literal, NamedTuple

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


def read_sql(store: str, verb: str) -> str:
    """The text of `stores/<store>/sql/<verb>.sql`."""
    return (files("reltask.stores") / store / "sql" / f"{verb}.sql").read_text(encoding="utf-8")


@cache
def load(store: str, verb: str, style: Style) -> tuple[Statement, ...]:
    """The statements of a verb's file, compiled once per process."""
    return tuple(compile_statement(statement, style) for statement in split(read_sql(store, verb)))


@cache
def load_batch(store: str, verb: str, style: Style) -> Statement:
    """A verb's whole file as one text, for a server that takes several statements at once."""
    return compile_statement(read_sql(store, verb), style)
