"""How a mutant is made: a statement's text or a method is replaced while its block is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from reltask.stores import statement

Broken = Callable[[], Any]
"""Opens the block in which the worker is broken."""


class Mutant(NamedTuple):
    """One deliberate mistake."""

    name: str
    broken: Broken


@contextmanager
def sql(verb: str, *changes: tuple[str, str]) -> Iterator[None]:
    """The verb's file with some text replaced. If the text is not there, the mutant is wrong."""
    original = statement.read_sql

    def read(store: str, asked: str, *schema: str) -> str:
        text = original(store, asked, *schema)
        if asked == verb:
            for old, new in changes:
                if old not in text:
                    raise LookupError(f"{verb}.sql has no {old!r}")
                text = text.replace(old, new)
        return text

    statement.load.cache_clear()
    try:
        with mock.patch.object(statement, "read_sql", read):
            yield
    finally:
        statement.load.cache_clear()


def method(owner: type, name: str, replacement: Any) -> Broken:
    return lambda: mock.patch.object(owner, name, replacement)
