"""A statement from its file, rewritten for a driver: only parameters change."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reltask.stores.statement import Statement, Style, compile_statement, split, tokens

STYLES: list[Style] = ["named", "numbered", "pyformat", "qmark", "format"]

OPAQUE = [
    "':name'",
    "'it''s :name'",
    "'-- :name'",
    "-- :name; '\n",
    "/* :name;\n ' :other */",
    '":name"',
    '"a "" :name"',
    "[a name]",
    "E'it\\'s :name'",
    "$b1$ :name $b1$",
    "a[1:name]",
    "$$ :name; ' $$",
    "$body$ :name $$ ; $body$",
    "now()::timestamptz",
]
"""Pieces in which `:name` is not a parameter, in any context."""

PLAIN = ["select ", "a", " = ", ", ", "1", "(", ")", "\n", " - ", " / ", "$1", "[1]", "* "]

pieces = st.one_of(
    st.sampled_from(OPAQUE).map(lambda text: (text, False)),
    st.sampled_from(PLAIN).map(lambda text: (text, False)),
    st.sampled_from([":name", ":other", ":_x9"]).map(lambda text: (text, True)),
)
"""A piece of SQL, and whether it is a parameter."""


@given(text=st.text(alphabet="ab:;'\"$[]-/*\n 1_é", max_size=60))
def test_tokens_are_the_text(text: str) -> None:
    """Nothing is lost or added: the joined tokens are the text, however broken it is."""
    assert "".join(piece for _, piece in tokens(text)) == text


@given(parts=st.lists(pieces, max_size=12))
def test_only_parameters_are_parameters(parts: list[tuple[str, bool]]) -> None:
    """Strings, comments, casts, quoted names and dollar quotes never become parameters; parameters always do."""
    sql = " ".join(text for text, _ in parts)
    expected = [text[1:] for text, is_parameter in parts if is_parameter]
    assert list(compile_statement(sql, "qmark").names) == expected
    assert list(compile_statement(sql, "numbered").names) == list(dict.fromkeys(expected))


@given(parts=st.lists(pieces, max_size=12))
def test_each_style_says_the_same(parts: list[tuple[str, bool]]) -> None:
    """Putting the names back into any style's text gives the file's text."""
    sql = " ".join(text for text, _ in parts)
    numbers = {name: f"${n}" for n, name in enumerate(compile_statement(sql, "numbered").names, start=1)}
    assert compile_statement(sql, "named").text == sql
    assert compile_statement(sql, "qmark").text == " ".join("?" if is_one else text for text, is_one in parts)
    assert compile_statement(sql, "numbered").text == " ".join(
        numbers[text[1:]] if is_one else text for text, is_one in parts
    )


@pytest.mark.parametrize(
    ("style", "text", "names"),
    [
        ("named", "select :a, :b::text, :a", ("a", "b")),
        ("numbered", "select $1, $2::text, $1", ("a", "b")),
        ("pyformat", "select %(a)s, %(b)s::text, %(a)s", ("a", "b")),
        ("qmark", "select ?, ?::text, ?", ("a", "b", "a")),
        ("format", "select %s, %s::text, %s", ("a", "b", "a")),
    ],
)
def test_styles(style: Style, text: str, names: tuple[str, ...]) -> None:
    """A parameter used twice is one number for asyncpg and two marks for ODBC."""
    assert compile_statement("select :a, :b::text, :a", style) == Statement(text, names)


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("piece", OPAQUE)
def test_opaque_pieces_are_left_alone(piece: str, style: Style) -> None:
    """What only looks like a parameter reaches the driver unchanged, and needs no value."""
    assert compile_statement(f"select {piece}", style) == Statement(f"select {piece}", ())


def test_percent_signs_survive_psycopg() -> None:
    """It reads each % as the start of a placeholder, in strings and comments too; a doubled one becomes one."""
    sql = "select 7 % :n, '%', :n::text -- 100 %"
    assert compile_statement(sql, "pyformat") == Statement("select 7 %% %(n)s, '%%', %(n)s::text -- 100 %%", ("n",))
    assert compile_statement(sql, "named").text == sql


def test_the_example_of_the_docstring() -> None:
    """The example at the top of the module."""
    statement = compile_statement("select :now::timestamptz, ':not' -- :nor this", "numbered")
    assert statement == Statement("select $1::timestamptz, ':not' -- :nor this", ("now",))


def test_arguments_in_order() -> None:
    """Values are given by name and passed in the driver's order; a missing one raises at once."""
    statement = compile_statement("select :b, :a, :b", "qmark")
    assert statement.arguments({"a": 1, "b": 2, "unused": 3}) == [2, 1, 2]
    with pytest.raises(KeyError, match="'b'"):
        statement.arguments({"a": 1})


def test_sqlite_agrees() -> None:
    """A real driver finds the same parameters, by name and by position."""
    sql = 'select :b, \':a\', /* :a */ ":b" from (select 3 as ":b") -- :c\n where :a = :a'
    values: dict[str, object] = {"a": 1, "b": 2}
    connection = sqlite3.connect(":memory:")
    try:
        assert connection.execute(compile_statement(sql, "named").text, values).fetchall() == [(2, ":a", 3)]
        by_place = compile_statement(sql, "qmark")
        assert connection.execute(by_place.text, by_place.arguments(values)).fetchall() == [(2, ":a", 3)]
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("script", "statements"),
    [
        ("", []),
        (" ;; \n;", []),
        ("-- only a remark; nothing else\n", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("-- why\nselect 1;\n\n/* and; */ select 2", ["-- why\nselect 1", "/* and; */ select 2"]),
        ("select ';'; select \";\" ", ["select ';'", 'select ";"']),
        ("do $$ begin; end; $$; select 1", ["do $$ begin; end; $$", "select 1"]),
        ("select 1; -- the end;", ["select 1"]),
    ],
)
def test_split(script: str, statements: list[str]) -> None:
    """A semicolon ends a statement unless it is in a string, name, comment or body; comments alone are none."""
    assert split(script) == statements


@given(bodies=st.lists(st.sampled_from(OPAQUE).map(lambda piece: f"select {piece}".strip()), max_size=6))
def test_split_undoes_joining(bodies: list[str]) -> None:
    """Statements joined by semicolons are split where they were joined."""
    closed = [f"{body}\n + 1" for body in bodies]
    assert split(";\n".join(closed)) == closed
