"""The command line. `reltask --help` answers at once: a command's module is imported when the command is called."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from typing import NoReturn

import click

from reltask import __version__

COMMANDS = {
    "worker": ("worker", "Run a worker until SIGTERM or Ctrl+C."),
    "demo": ("demo", "Three workers on one file: kill one, stop one, and see that no slot is lost or doubled."),
    "enqueue": ("enqueue", "Have a task run, now or later."),
    "status": ("status", "The whole system on one screen."),
    "jobs": ("jobs", "List and show jobs; pause, resume, run or discard one."),
    "runs": ("runs", "List the runs that have ended, newest first."),
    "workers": ("workers", "List the workers that the database has seen."),
    "leases": ("leases", "Who leads what, and is it getting on; take a lease away."),
    "stats": ("stats", "How each task has been doing: runs, failures, durations, lateness."),
    "audit": ("audit", "Check the ledger: each slot once, none lost."),
    "doctor": ("doctor", "Look at the database: can it be reached, is it the right one, what stands in the way."),
    "dead": ("dead", "List and show dead letters; retry or discard them."),
    "migrate": ("migrate", "Bring the database's tables to this version."),
    "sql": ("sql", "Print the SQL that reltask runs."),
    "config": ("config", "Show each setting, and where it came from."),
}
"""Each command with its module in this package and its line in the help."""

HELP = """Scheduled and background tasks, exactly once across any number of workers.

An app is named MODULE:app or MODULE:create_app(), or by RELTASK_APP. Exit status: 0 done, 1 not done, 2 wrong command
line, 69 database not available, 70 a mistake inside reltask or runs left behind, 78 configuration or schema.
"""

EXIT_INTERRUPTED = 130
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a full disk answers to our output: whatever else we write goes through a database, which has its own errors."""


class LazyGroup(click.Group):
    """Knows its commands by name; imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = import_module(f"reltask.cli.{COMMANDS[cmd_name][0]}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches  # noqa: PLC0415 - the good case does not pay for it

            near = get_close_matches(args[0], COMMANDS, n=1)
            ctx.fail(f"No such command {args[0]!r}.{f' Did you mean {near[0]}?' if near else ''}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in COMMANDS.items()])


@click.group(cls=LazyGroup, help=HELP)
@click.version_option(__version__, prog_name="reltask")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def cli() -> None:
    """All commands; HELP is what people see."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """The program `reltask`."""
    _prepare_streams()
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _prepare_streams() -> None:
    """Make output that cannot be written cost neither the work nor its exit status.

    A stream that was closed leads nowhere, under its own number, which else would go to the next file that is opened:
    the database, perhaps. What a narrow encoding cannot show is escaped.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            nowhere = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - stays; the lowest number is free
            os.set_inheritable(nowhere.fileno(), True)  # so that child processes are spared the same
            setattr(sys, name, nowhere)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str]) -> int:
    """Run a command line; the exit status."""
    try:
        code = cli.main(arguments, prog_name="reltask", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _stop_writing()
    except Exception as error:  # noqa: BLE001 - the one place where every error ends
        from reltask.cli.errors import report, report_lost_output  # noqa: PLC0415 - the good case does not pay for it

        if isinstance(error, OSError) and error.errno in NO_ROOM:
            _stop_writing()
            return report_lost_output(error)
        return report(error, debug="--debug" in arguments)
    return code if isinstance(code, int) else 0


def _stop_writing() -> int:
    """Whoever reads our output has seen enough, as `head` does. Ends quietly, with the status that click gives it."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
