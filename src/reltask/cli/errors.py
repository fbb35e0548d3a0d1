"""Errors on the way out: a stable code, a sentence, one line of remedy, and where to read on.

error[unknown-task]: No task is called 'helo'.
  Did you mean 'hello'?
  see docs/errors.md#unknown-task
"""

from __future__ import annotations

import traceback

import click

from reltask.cli.runner import EXIT_ERROR, exit_code
from reltask.errors import ReltaskError

DOCS = "docs/errors.md"
REMEDIES = {
    "arguments": "Write the arguments as a JSON object by parameter name.",
    "database-transient": "Is the database running, and does the URL lead there? See: reltask config",
    "database-circuit-open": "The database has stopped answering; try again later.",
    "database-ambiguous": "The answer was lost: look whether it was done before you do it again.",
    "settings": "See: reltask config",
}
"""For errors that bring no remedy of their own."""
BUG = "This is a mistake inside reltask, or in a module of yours. Run it again with --debug to see where."


def report(error: Exception, *, debug: bool) -> int:
    """Write the error to standard error; the exit status that belongs to it."""
    if debug:
        click.echo("".join(traceback.format_exception(error)), err=True, nl=False)
    for line in _lines(error):
        click.echo(line, err=True)
    return exit_code(error)


def report_lost_output(error: OSError) -> int:
    """Write to standard error that standard output cannot be written; no mistake of anybody's, but not all is well."""
    click.echo(f"error[output]: The output could not be written: {error.strerror}.", err=True)
    click.echo("  What the command did before it wrote is done: look before you run it again.", err=True)
    click.echo(_see("output"), err=True)
    return EXIT_ERROR


def _lines(error: Exception) -> list[str]:
    if isinstance(error, ReltaskError):
        remedy = error.remedy or REMEDIES.get(error.code, "")
        return [f"error[{error.code}]: {error.message}", *([f"  {remedy}"] if remedy else []), _see(error.code)]
    return [
        f"error[bug]: {type(error).__name__}: {error}",
        f"  {BUG}",
        _see("bug"),
    ]


def _see(code: str) -> str:
    return f"  see {DOCS}#{code}"
