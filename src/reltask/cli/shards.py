"""`reltask shards`: the shards of a system, and draining one."""

from __future__ import annotations

import click

from reltask.app import App
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_json, print_line, print_table
from reltask.cli.target import ListByDefault, with_app_argument, with_app_option
from reltask.model.connection_url import safe_url
from reltask.model.views import ShardView

COLUMNS = ["SHARD", "DATABASE", "STATE", "JOBS"]


@click.group(name="shards", cls=ListByDefault)
def command() -> None:
    """List shards; drain one, so that it can be removed.

    Without a command: list.
    """


@command.command(name="list")
@with_app_argument
def list_(app: App, *, as_json: bool) -> int:
    """List the shards: whether each answers, is being drained, and how many jobs it has.

    Exit status 1 if one does not answer.
    """
    shards = app.shards_sync()
    if as_json:
        print_json(shards)
    else:
        rows = [
            [str(shard.number), safe_url(app.shard_urls[shard.number]), _state(shard), shard.jobs] for shard in shards
        ]
        print_table(COLUMNS, rows, nothing="This app has no shards.")
    return EXIT_OK if all(shard.answers for shard in shards) else EXIT_ERROR


@command.command()
@with_app_option
@click.argument("number", type=int)
@click.option("--undo", is_flag=True, help="Give it new jobs again.")
def drain(app: App, *, number: int, undo: bool, as_json: bool) -> None:
    """Give a shard no new jobs. Workers go on serving it until it is empty.

    Producers notice within ten seconds. Keys that belonged to it belong to other shards from then on; jobs that have
    them stay where they are. When it has no jobs left, write None in its place in shards=.
    """
    shard = app.drain_shard_sync(number, draining=not undo)
    if as_json:
        print_json(shard)
    elif undo:
        print_line(f"Shard {number} gets new jobs again.")
    else:
        print_line(f"Shard {number} gets no new jobs. It has {shard.jobs} left.")


def _state(shard: ShardView) -> str:
    if not shard.answers:
        return "away"
    return "draining" if shard.draining else "open"
