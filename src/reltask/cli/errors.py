"""How errors are printed: a stable code, a message, a remedy and a link to the documentation.

error[unknown-task]: No task is called 'helo'.
  Did you mean 'hello'?
  see: reltask explain unknown-task

RELTASK_DOCS_URL names a copy of the documentation site; the last line is then the address of the error's page.
"""

from __future__ import annotations

import os
import traceback

from reltask.cli.runner import EXIT_ERROR, exit_code
from reltask.cli.show import print_line, print_lines
from reltask.errors import ReltaskError

REMEDIES = {
    "arguments": "Write the arguments as a JSON object by parameter name.",
    "database-transient": "Check that the database is running and that the URL is right. See: reltask config",
    "database-circuit-open": "The database does not answer; try again later.",
    "database-ambiguous": "The answer was lost: check whether the change was made before you repeat the command.",
    "settings": "See: reltask config",
}
"""For errors that have no remedy of their own."""
BUG = "This is a bug in reltask or in one of your modules. Run the command again with --debug for the traceback."


def report(error: Exception, *, debug: bool) -> int:
    """Write the error to standard error and return its exit status."""
    if debug:
        print_lines("".join(traceback.format_exception(error)).rstrip("\n"), err=True)
    for line in _lines(error):
        print_lines(line.replace("\n", "\n  "), err=True)
    return exit_code(error)


def report_lost_output(error: OSError) -> int:
    """Report on standard error that standard output cannot be written, and return the exit status."""
    print_line(f"error[output]: The output could not be written: {error.strerror}.", err=True)
    print_line("  The command itself may have succeeded: check before you run it again.", err=True)
    print_line(_see("output"), err=True)
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
    site = os.environ.get("RELTASK_DOCS_URL", "").rstrip("/")
    return f"  see {site}/errors/{code}.html" if site else f"  see: reltask explain {code}"
