"""`reltask worker`."""

from __future__ import annotations

import click

from reltask.app import App
from reltask.cli.runner import run_worker
from reltask.cli.target import app_command


@click.command(name="worker")
@app_command
@click.option("--queues", metavar="A,B", help="The queues to serve.")
@click.option("--concurrency", metavar="N", help="How many jobs run at the same time.")
@click.option("--name", metavar="NAME", help="The first part of the worker's id.")
@click.option("--poll", metavar="5s", help="The longest sleep between two polls.")
@click.option("--once", is_flag=True, help="Run the jobs that are due, then exit: for cron, CI and batch hosts.")
@click.option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
@click.option("--log-format", metavar="FORMAT", help="text, json, or auto: text on a terminal, JSON otherwise.")
@click.option("--no-uvloop", is_flag=True, help="Use Python's own event loop even if uvloop is installed.")
def command(
    app: App,
    *,
    queues: str | None,
    concurrency: str | None,
    name: str | None,
    poll: str | None,
    once: bool,
    log_level: str | None,
    log_format: str | None,
    no_uvloop: bool,
) -> int:
    """Run a worker of MODULE:app until SIGTERM or Ctrl+C.

    After the first signal, running jobs may finish within worker.shutdown_grace; a second signal stops them now. All
    other settings come from the environment and the settings file: see `reltask config`.
    """
    app.configure(
        worker__queues=queues,
        worker__concurrency=concurrency,
        worker__name=name,
        worker__poll=poll,
        log__level=log_level,
        log__format=log_format,
    )
    return run_worker(app, once=once, uvloop=not no_uvloop)
