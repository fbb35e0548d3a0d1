"""The command line. `reltask --help` answers at once: a command's module is imported when the command is called."""

from __future__ import annotations

import contextlib
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
    "demo": (
        "demo",
        "Run three workers on one file; kill one, stop one; check that each slot was completed exactly once.",
    ),
    "enqueue": ("enqueue", "Enqueue a job: run a task now or later."),
    "status": ("status", "Show the state of the whole system."),
    "jobs": (
        "jobs",
        "List and show jobs; cancel them; signal, pause, resume, run or discard one; wait for its result.",
    ),
    "steps": ("steps", "Make a durable function's steps run again."),
    "schedules": ("schedules", "List schedules with their next times; preview the times of a rule."),
    "queues": ("queues", "List queues; pause or resume one. Workers claim no job of a paused queue."),
    "tasks": ("tasks", "List tasks; pause or resume one."),
    "runs": ("runs", "List finished runs, newest first."),
    "workers": ("workers", "List workers: alive, dead and stopped."),
    "leases": ("leases", "List leases, their holders and their progress; release a lease."),
    "limits": ("limits", "List limits and how much of each is in use; change one."),
    "shards": ("shards", "List shards; drain one, so that it can be removed."),
    "stats": ("stats", "Show runs, failures, durations and lateness by task."),
    "audit": ("audit", "Check the ledger: every slot completed once, none lost."),
    "doctor": ("doctor", "Check the database: connection, schema, permissions, server settings."),
    "dead": ("dead", "List and show dead letters; retry or discard them."),
    "dashboard": ("dashboard", "Serve a web page that says what is wrong, and shows jobs, queues and workers."),
    "actions": ("actions", "List what operators did through the dashboard."),
    "exporter": ("exporter", "Serve metrics that are read from the database to Prometheus."),
    "migrate": ("migrate", "Create or upgrade reltask's tables."),
    "explain": ("explain", "Say what an error code means, and what to do."),
    "sql": ("sql", "Print the SQL that reltask runs."),
    "config": ("config", "Show each setting and where it was set."),
}
"""Each command with its module in this package and its line in the help."""

HELP = """Scheduled and background tasks on the SQL database that you have. See it work: reltask demo.

Name an app as MODULE:app or MODULE:create_app(), or set RELTASK_APP. Exit status: 0 success, 1 failure, 2 wrong
command line, 69 database unavailable, 70 bug in reltask or runs left unfinished, 78 wrong configuration or schema.
"""

EXIT_INTERRUPTED = 130
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk when writing our output. Nothing else writes to a disk except the database driver, which raises
errors of its own."""


class LazyGroup(click.Group):
    """Knows its commands by name; imports a command's module when it is called."""

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
    """All commands; users see HELP."""


def main(arguments: list[str] | None = None) -> NoReturn:
    """The program `reltask`."""
    _prepare_streams()
    _leave(run(sys.argv[1:] if arguments is None else arguments))


def _leave(code: int) -> NoReturn:
    """End the process, with this status.

    SQL Server's driver hangs or aborts at exit if the server does not answer: its connections are closed here, for a
    limited time, and then the process ends without it.
    """
    driver = sys.modules.get("reltask.stores.mssql.connections")
    if driver is None:
        sys.exit(code)
    driver.close_all()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _prepare_streams() -> None:
    """Make sure that output which cannot be written changes neither the work nor the exit status.

    A closed standard stream is opened on the null device. Otherwise its file descriptor would go to the next file that
    is opened, perhaps the database. Characters that the stream's encoding lacks are escaped.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            null = open(os.devnull, mode, encoding="utf-8")  # noqa: PTH123, SIM115 - stays open; takes the lowest free number
            os.set_inheritable(null.fileno(), True)  # child processes would have the same problem
            setattr(sys, name, null)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(arguments: list[str], *, program: str = "reltask") -> int:
    """Run a command line and return the exit status. `program` is what the help calls it."""
    try:
        code = cli.main(arguments, prog_name=program, standalone_mode=False)
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

        if isinstance(error, OSError) and error.errno in DISK_FULL:
            _stop_writing()
            return report_lost_output(error)
        return report(error, debug="--debug" in arguments)
    return code if isinstance(code, int) else 0


def _stop_writing() -> int:
    """The reader of our output has closed the pipe, as `head` does: end without a message, with click's status."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1
