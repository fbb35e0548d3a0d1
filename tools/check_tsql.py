"""Parse every T-SQL file with Microsoft's own parser, without a SQL Server: `make check-tsql`.

The parser (ScriptDom, the one behind SQL Server's own tools) is a .NET library. A .NET runtime and the library both
come from PyPI, in wheels for x86-64 Linux, so they have an environment of their own, and this script runs there:

    dotnetcore2   the .NET runtime              pythonnet   calls .NET from Python
    mssql-cli     has the parser's DLL in it; nothing else of it is used

It proves syntax, not behaviour: a misspelt column passes. The statements of the store name their parameters `:name`.
They are turned into `@name` by the store's own tokenizer before they are parsed, and a file is parsed as one batch.
Before it parses the files it checks the parser with two statements, a good and a bad one.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[1]
PLACES = ("database/mssql", "src/reltask/stores/mssql/sql")
DLL = "Microsoft.SqlServer.TransactSql.ScriptDom"

Parser = Callable[[str], list[str]]
"""From a batch to what is wrong with it."""


def main(arguments: list[str]) -> int:
    """Check the named files, or all; returns the exit status."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        print("T-SQL: not checked here; the parser runs on x86-64 Linux.")
        return 0
    parse = microsoft_parser()
    if blind := blindness(parse):
        print(f"T-SQL: the parser cannot be trusted: {blind}")
        return 2
    files = [Path(argument) for argument in arguments] or every_file()
    faults = [f"{shown(path)}:{fault}" for path in files for fault in parse(as_batch(path))]
    print(*faults, f"T-SQL: {len(files)} files parsed, {len(faults)} faults.", sep="\n")
    return 1 if faults or not files else 0


def every_file() -> list[Path]:
    """The T-SQL files of this tree."""
    return [path for place in PLACES for path in sorted((ROOT / place).glob("*.sql"))]


def shown(path: Path) -> str:
    """A path, relative to the root if it is inside."""
    full = path.resolve()
    return str(full.relative_to(ROOT)) if full.is_relative_to(ROOT) else str(path)


def as_batch(path: Path) -> str:
    """The text of a file, its `:name` parameters written as T-SQL variables."""
    pieces = _statement_module().tokens(path.read_text(encoding="utf-8"))
    return "".join(f"@{text[1:]}" if kind == "parameter" else text for kind, text in pieces)


def _statement_module() -> Any:
    """The store's tokenizer. reltask's packages are not installed here, so its own `__init__` is not run."""
    if "reltask" not in sys.modules:
        package = ModuleType("reltask")
        package.__path__ = [str(ROOT / "src/reltask")]
        sys.modules["reltask"] = package
    return importlib.import_module("reltask.stores.statement")


def blindness(parse: Parser) -> str:
    """What is wrong with the parser itself; empty if it distinguishes good from bad."""
    if faults := parse("UPDATE t SET x = @x OUTPUT inserted.x WHERE y IN (SELECT TOP (@n) y FROM t WITH (READPAST));"):
        return f"it refuses a good statement: {faults[0]}"
    if not parse("UPDATE t SET x = @x OUTPUT WHERE y IN (SELECT TOP @n y FROM t);"):
        return "it accepts a bad statement"
    return ""


def script_dom() -> Callable[[str], tuple[Any, Any]]:
    """Start .NET inside this process and load the parser of SQL Server 2019: from text to tree and errors."""
    packages = Path(importlib.util.find_spec("mssqlcli").origin or "").parents[1]  # type: ignore[union-attr] # installed
    runtime = packages / "dotnetcore2/bin"
    (runtime / "dotnet").chmod(0o755)
    os.environ |= {"DOTNET_ROOT": str(runtime), "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"}
    importlib.import_module("pythonnet").load("coreclr")
    importlib.import_module("clr").AddReference(str(packages / "mssqlcli/mssqltoolsservice/bin" / DLL))
    dom = importlib.import_module(DLL)
    reader = importlib.import_module("System.IO").StringReader
    parser = dom.TSql150Parser(True)  # quoted identifiers are on
    return lambda batch: parser.Parse(reader(batch), None)


def microsoft_parser() -> Parser:
    """The parser, asked for faults only."""
    parse = script_dom()
    return lambda batch: [f"{fault.Line}:{fault.Column}: {fault.Message}" for fault in parse(batch)[1]]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
