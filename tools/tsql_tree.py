"""Print the trees that Microsoft's parser makes of T-SQL files, as JSON: for tests/plans. See check_tsql.py.

    {"claim_jobs.sql": {"_": "TSqlScript", "at": 0, "Batches": [{"_": "TSqlBatch", …}]}}

A node has its type, its place in the text, and whatever of it is a node, a list of nodes, a text or a number.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from tools.check_tsql import as_batch, every_file, script_dom

SCALARS = (str, int, bool)
LEFT_OUT = {"ScriptTokenStream", "FirstTokenIndex", "LastTokenIndex", "StartLine", "StartColumn", "FragmentLength"}


def main(arguments: list[str]) -> None:
    """Print the trees of these files, or of all."""
    parse = script_dom()
    files = [Path(argument) for argument in arguments] or every_file()
    found = {}
    for path in files:
        fragment, faults = parse(as_batch(path))
        if len(faults):  # the tree would lack what was not understood
            sys.exit(f"{path}: {faults[0].Message}")
        found[path.name] = node(fragment)
    print(json.dumps(found))


def node(fragment: Any) -> dict[str, Any]:
    """A fragment of the parser's tree as plain values."""
    kind: Any = type(fragment)
    found: dict[str, Any] = {"_": kind.__name__, "at": fragment.StartOffset}
    for name in properties(kind):
        value = plain(getattr(fragment, name))
        if value is not None:
            found[name] = value
    return found


@cache
def properties(kind: Any) -> list[str]:
    """The names of a type's properties. To ask .NET for each node would take most of the time."""
    found = [prop for prop in clr_type(kind).GetProperties() if not prop.GetIndexParameters().Length]
    return [str(prop.Name) for prop in found if str(prop.Name) not in LEFT_OUT]


def plain(value: Any) -> Any:
    """A property's value: nodes and lists of nodes become dicts and lists, enumerations their names."""
    kind: Any = type(value)
    return value if value is None or isinstance(value, SCALARS) else reader(kind)(value)


@cache
def reader(kind: Any) -> Callable[[Any], Any]:
    """How a property's value of this type is read."""
    if clr_type(kind).IsEnum:
        return lambda value: str(value.ToString())
    if hasattr(kind, "StartOffset"):
        return node
    if hasattr(kind, "Count"):
        return lambda value: [plain(item) for item in value]
    return lambda _: None


def clr_type(kind: Any) -> Any:
    """The type as .NET describes it."""
    import clr  # type: ignore[import-not-found] # noqa: PLC0415 - there when .NET runs

    return clr.GetClrType(kind)


if __name__ == "__main__":
    main(sys.argv[1:])
