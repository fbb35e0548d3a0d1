"""`reltask schedules`: which there are, and when a rule would fire."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from reltask.app import App
from reltask.cli.show import print_json, print_table, text
from reltask.cli.target import COUNT, ListByDefault, with_app_argument
from reltask.errors import DeclarationError, UsageError
from reltask.model.duration import parse_duration
from reltask.model.preview import FIRES, preview
from reltask.model.schedule import Schedule, make_schedule


@click.group(name="schedules", cls=ListByDefault)
def command() -> None:
    """List schedules with their next fires; preview when a rule would fire.

    Without a command: list.
    """


@command.command(name="list")
@with_app_argument
@click.option("--task", metavar="NAME", help="Only schedules of this task.")
@click.option("--limit", type=COUNT, default=100, show_default=True, help="List at most this many.")
def list_(app: App, *, task: str | None, limit: int, as_json: bool) -> None:
    """List schedules by task and key, with their next fires in UTC."""
    schedules = app.schedules_sync(task=task, limit=limit)
    if as_json:
        print_json(schedules)
        return
    rows = [
        (view.id, view.task, view.key, view.state, view.rule, ", ".join(map(text, view.next_fires[:2])))
        for view in schedules
    ]
    print_table(["ID", "TASK", "KEY", "STATE", "RULE", "NEXT (UTC)"], rows, nothing="There are no schedules.")


@command.command(name="preview")
@click.argument("rule")
@click.option("--timezone", metavar="NAME", help="The time zone of a cron expression. Default: UTC.")
@click.option("--count", type=click.IntRange(1, 1000), default=FIRES, show_default=True, help="Show this many fires.")
@click.option("--from", "since", metavar="TIME", help="Begin at this time, such as 2026-03-28T12:00Z. Default: now.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors.")
def preview_(rule: str, timezone: str | None, count: int, since: str | None, as_json: bool) -> None:
    """Show when RULE would fire: a cron expression such as '0 2 * * *', or an interval such as 10m.

    Each fire is shown in local time and in UTC. A change of the clock since the fire before is marked.
    """
    fires = preview(_read(rule, timezone), _time(since), count=count, timezone=timezone)
    if as_json:
        print_json(fires)
    else:
        rows = [(f"{fire.local:%a %Y-%m-%d %H:%M:%S %Z}", text(fire.utc), fire.note) for fire in fires]
        print_table(["LOCAL", "UTC", "NOTE"], rows, nothing="It never fires.")


def _read(rule: str, timezone: str | None) -> Schedule:
    try:
        parse_duration(rule)
    except ValueError:
        schedule = make_schedule(cron=rule, timezone=timezone)
    else:
        schedule = make_schedule(every=rule)
    if schedule is None:
        raise DeclarationError("There is no rule.", remedy='Write "0 2 * * *" or "10m".')
    return schedule


def _time(given: str | None) -> datetime:
    if given is None:
        return datetime.now(UTC)
    try:
        moment = datetime.fromisoformat(given)
    except ValueError:
        raise UsageError(f"--from: {given!r} is no time.", remedy="Write 2026-03-28T12:00Z.") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)
