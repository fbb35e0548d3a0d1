"""Print the trees that Microsoft's parser makes of T-SQL files, as JSON: for tests/plans. See check_tsql.py.

    {"claim_jobs.sql": {"_": "TSqlScript", "at": 0, "Batches": [{"_": "TSqlBatch", …}]}}

A node has its type, its place in the text, and whatever of it is a node, a list of nodes, a text or a number.
"""

from __future__ import annotations

import json
import sys
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
    found: dict[str, Any] = {"_": str(fragment.GetType().Name), "at": fragment.StartOffset}
    for prop in fragment.GetType().GetProperties():
        if str(prop.Name) in LEFT_OUT or prop.GetIndexParameters().Length:
            continue
        value = plain(prop.GetValue(fragment))
        if value is not None:
            found[str(prop.Name)] = value
    return found


def plain(value: Any) -> Any:
    """A property's value: nodes and lists of nodes become dicts and lists, enumerations their names."""
    if value is None or isinstance(value, SCALARS):
        return value
    kind = value.GetType()
    if kind.IsEnum:
        return str(value.ToString())
    if hasattr(value, "StartOffset"):
        return node(value)
    if hasattr(value, "Count"):
        return [plain(item) for item in value]
    return None


if __name__ == "__main__":
    main(sys.argv[1:])
