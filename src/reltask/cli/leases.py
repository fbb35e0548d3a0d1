"""`reltask leases`: which leases are held, by which holder."""

from __future__ import annotations

from datetime import datetime, timedelta

import click
import msgspec

from reltask.app import App
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_fields, print_json, print_line, print_table, text, worker_text
from reltask.cli.target import ListByDefault, with_app_argument, with_app_option
from reltask.errors import UsageError
from reltask.model.duration import format_duration, parse_duration
from reltask.model.escape import escape
from reltask.model.lease import Term
from reltask.model.views import LeaseView

COLUMNS = ["LEASE", "HOLDER", "TERM", "HELD FOR", "LAST BEAT", "LEFT", "LAST RUN (UTC)", "ITEMS", "ERRORS", "WAITING"]


@click.group(name="leases", cls=ListByDefault)
def command() -> None:
    """List leases, their holders and their progress; release a lease.

    Without a command: list.
    """


@command.command(name="list")
@with_app_argument
@click.option(
    "--stuck", is_flag=True, help="Only leases whose holder has finished no work. Exit status 1 if there are any."
)
@click.option("--for", "long", metavar="DURATION", default="5m", show_default=True, help="How long, for --stuck.")
def list_(app: App, *, stuck: bool, long: str, as_json: bool) -> int:
    """List leases: holder, term, times by the database's clock, and the holder's progress.

    A holder publishes when it last finished work, how many items it processed and how many errors occurred.
    """
    leases = [lease for lease in app.leases_sync() if not stuck or lease.is_stuck(_length(long))]
    if as_json:
        print_json([{**msgspec.structs.asdict(lease), "metadata": lease.published} for lease in leases])
    else:
        nothing = "No lease is stuck." if stuck else "No lease has ever been requested."
        print_table(COLUMNS, [_row(lease) for lease in leases], nothing=nothing)
    return EXIT_ERROR if stuck and leases else EXIT_OK


@command.command()
@with_app_option
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def release(app: App, *, name: str, yes: bool, as_json: bool) -> None:
    """Take a lease away from its holder; another process can acquire it at once.

    Only the term that is shown is ended, not a newer one. The holder notices at its next heartbeat; its guarded writes
    under the old term are refused.
    """
    lease = _held(app, name)
    if not as_json:
        print_fields(list(zip((column.lower() for column in COLUMNS), _row(lease), strict=True)))
    if not yes:
        click.confirm(escape(f"Take lease {name} away from {lease.holder}?"), abort=True, err=True)
    if not app.release_lease_sync(Term(name, lease.term)):
        raise UsageError(
            f"Term {lease.term} of lease {name} is already over; nothing was changed.", remedy="See: reltask leases"
        )
    if as_json:
        print_json({"lease": name, "term": lease.term, "released": True})
    else:
        print_line(f"Ended term {lease.term} of lease {name}.")


def _held(app: App, name: str) -> LeaseView:
    leases = {lease.name: lease for lease in app.leases_sync() if lease.held}
    if name not in leases:
        raise UsageError(f"No process holds a lease {name!r}.", remedy=f"Held leases: {', '.join(leases) or 'none'}.")
    return leases[name]


def _row(lease: LeaseView) -> list[object]:
    published = lease.published
    if not lease.held:
        times = [None, text(lease.heartbeat_at), "expired" if lease.holder else "released"]
    else:
        times = [
            _ago(lease.acquired_at, lease.now),
            _ago(lease.heartbeat_at, lease.now),
            _ago(lease.now, lease.expires_at),
        ]
    counts = [published.get("items"), published.get("errors"), lease.waiting]
    return [lease.name, worker_text(lease.holder), lease.term, *times, lease.last_run, *counts]


def _ago(earlier: datetime, later: datetime) -> str:
    """A duration in whole seconds; under a minute, in tenths."""
    length = max(later - earlier, timedelta(0))
    unit = timedelta(seconds=0.1 if length < timedelta(minutes=1) else 1)
    return format_duration(length // unit * unit)


def _length(duration: str) -> timedelta:
    try:
        return parse_duration(duration, name="--for")
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from None
