"""Errors on the way out: a stable code, a sentence, one line of remedy, and where to read on.

error[unknown-task]: No task is called 'helo'.
  Did you mean 'hello'?
  see docs/errors.md#unknown-task
"""

from __future__ import annotations

import traceback

import click

from reltask.errors import ReltaskError
from reltask.runner import exit_code

DOCS = "docs/errors.md"


def report(error: Exception, *, debug: bool) -> int:
    """Write the error to standard error; the exit status that belongs to it."""
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    for line in _lines(error):
        click.echo(line, err=True)
    return exit_code(error)


def _lines(error: Exception) -> list[str]:
    if isinstance(error, ReltaskError):
        remedy = [f"  {error.remedy}"] if error.remedy else []
        return [f"error[{error.code}]: {error.message}", *remedy, f"  see {DOCS}#{error.code}"]
    return [
        f"error[bug]: {type(error).__name__}: {error}",
        "  This is a mistake inside reltask. Run it again with --debug and report the traceback.",
        f"  see {DOCS}#bug",
    ]
