"""Output: JSON for machines, aligned columns for pipes, and rich's tables for a terminal where they fit.

Every command prints through this module, which escapes what a terminal would obey: the text may be another user's.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import click
import msgspec

from reltask.logs import short_worker
from reltask.model.escape import escape, escape_lines
from reltask.model.job import EARLIEST, LATEST

Row = Sequence[object]

_CLEAR = "\r\x1b[K"
"""Go to the beginning of the terminal's line, and erase it."""


def print_line(line: str = "", *, err: bool = False) -> None:
    """Write one line, whatever the text contains."""
    click.echo(escape(line), err=err)


def print_lines(text: str, *, err: bool = False) -> None:
    """Write a text that may have several lines."""
    for line in escape_lines(text):
        click.echo(line, err=err)


def print_over(line: str = "") -> None:
    """Write on standard error, a terminal, over what the last call wrote; the cursor stays on the line."""
    click.echo(f"{_CLEAR}{escape(line)}", nl=False, err=True)


def print_json(value: object) -> None:
    """Write one JSON document."""
    print_lines(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_table(columns: Sequence[str], rows: Sequence[Row], *, nothing: str) -> None:
    """Write rows under their columns; if there are none, the sentence `nothing`."""
    texts = [[text(cell) for cell in row] for row in rows]
    if not texts:
        print_line(nothing)
    elif not (sys.stdout.isatty() and _fits(columns, texts) and _with_rich(columns, texts)):
        _plainly(columns, texts)


def print_fields(fields: Sequence[tuple[str, object]]) -> None:
    """Write names and values, one pair per line."""
    width = max(len(name) for name, _ in fields)
    for name, value in fields:
        print_line(f"{name:<{width}}  {text(value)}")


def text(value: object) -> str:
    """A value as text on one line: times in UTC to the second, no value as a dash."""
    match value:
        case None | "":
            return "-"
        case datetime():
            return _time_text(value)
        case list() | tuple():
            return ", ".join(map(text, value)) or "-"
        case UUID():
            return str(value)
        case _:
            return escape(str(value))


def _time_text(value: datetime) -> str:
    if not EARLIEST <= value < LATEST:
        return "out of range"
    return "no time limit" if value >= LATEST - timedelta(days=1) else f"{value:%Y-%m-%d %H:%M:%S}"


def worker_text(worker: str | None) -> str:
    """A worker's id, shortened."""
    return "-" if worker is None else short_worker(worker)


def first_line(error: str | None) -> str:
    """The last line of a traceback, which names the error."""
    lines = (error or "").strip().splitlines()
    return lines[-1][:100] if lines else "-"


def _widths(columns: Sequence[str], rows: list[list[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(columns, *rows, strict=True)]


def _fits(columns: Sequence[str], rows: list[list[str]]) -> bool:
    """Whether the lines fit on the terminal. rich would fold cells, and an id in pieces cannot be copied."""
    return sum(_widths(columns, rows)) + 2 * len(columns) <= shutil.get_terminal_size().columns


def _plainly(columns: Sequence[str], rows: list[list[str]]) -> None:
    widths = _widths(columns, rows)
    for row in [list(columns), *rows]:
        print_line("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def _with_rich(columns: Sequence[str], rows: list[list[str]]) -> bool:
    try:
        from rich.console import Console  # noqa: PLC0415 - an extra
        from rich.table import Table  # noqa: PLC0415
    except ImportError:
        return False
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console(markup=False, highlight=False).print(table)
    return True
