"""`reltask workers`."""

from __future__ import annotations

import click

from reltask.app import App
from reltask.cli.show import print_json, print_table
from reltask.cli.target import about_all

COLUMNS = ["WORKER", "STATE", "HOST", "RUNNING", "OF", "QUEUES", "VERSION", "STARTED (UTC)", "LAST BEAT (UTC)"]


@click.command(name="workers")
@about_all
def command(app: App, *, as_json: bool) -> None:
    """List the workers that the database has seen, living ones first. Times are the database's.

    A worker is alive while it gives signs of life as it has promised, otherwise dead; one that was stopped has said
    goodbye.
    """
    workers = app.workers_sync()
    if as_json:
        print_json(workers)
        return
    rows = [
        (w.id, w.state, w.host, w.running, w.concurrency, w.queues, w.version, w.started_at, w.heartbeat_at)
        for w in workers
    ]
    print_table(COLUMNS, rows, nothing="No worker has been here.")
