"""`reltask actions`."""

from __future__ import annotations

import click

from reltask.app import App
from reltask.cli.show import print_json, print_table
from reltask.cli.target import COUNT, with_app_argument

COLUMNS = ["WHEN (UTC)", "WHO", "WHAT", "TO", "SEEN", "JOBS", "CHANGED", "OUTCOME"]


@click.command(name="actions")
@with_app_argument
@click.option("--limit", type=COUNT, default=50, show_default=True, help="List at most this many.")
def command(app: App, *, limit: int, as_json: bool) -> None:
    """List what operators did through the dashboard, newest first.

    An action without an outcome was cut off, and may be done.
    """
    found = app._client.run_sync(lambda store: store.list_actions(limit=limit), name="list_actions")  # noqa: SLF001
    if as_json:
        print_json(found)
        return
    rows = [
        (one.at, one.actor, one.action, one.target, one.seen, one.jobs, one.changed, one.outcome or "unknown")
        for one in found
    ]
    print_table(COLUMNS, rows, nothing="No action was done through the dashboard.")
