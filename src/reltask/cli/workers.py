"""`reltask workers`."""

from __future__ import annotations

import click

from reltask.app import App
from reltask.cli.show import print_json, print_table
from reltask.cli.target import with_app_argument

COLUMNS = ["WORKER", "STATE", "HOST", "RUNNING", "OF", "QUEUES", "VERSION", "STARTED (UTC)", "LAST BEAT (UTC)"]


@click.command(name="workers")
@with_app_argument
def command(app: App, *, as_json: bool) -> None:
    """List workers, live ones first. Times are by the database's clock.

    A worker is "alive" while it refreshes its row in time, "stopped" after a regular shutdown, and otherwise "dead".
    """
    workers = app.workers_sync()
    if as_json:
        print_json(workers)
        return
    rows = [
        (w.id, w.state, w.host, w.running, w.concurrency, w.queues, w.version, w.started_at, w.heartbeat_at)
        for w in workers
    ]
    print_table(COLUMNS, rows, nothing="No worker has registered yet.")
