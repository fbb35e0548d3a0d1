"""`reltask stats`."""

from __future__ import annotations

from datetime import timedelta

import click
import msgspec

from reltask.app import App
from reltask.cli.show import print_json, print_table
from reltask.cli.target import with_app_argument
from reltask.errors import UsageError
from reltask.model.duration import LONGEST, parse_duration
from reltask.model.metrics import TaskStats

COLUMNS = ["TASK", "RUNS", "FAILED", "SHARE", "SECONDS", "MAX", "LATE", "MAX LATE"]
MOST_MINUTES = LONGEST // timedelta(minutes=1)
NOTHING = "No runs were counted in this period. A worker counts finished runs once a minute."


@click.command(name="stats")
@with_app_argument
@click.option("--minutes", type=click.IntRange(1, MOST_MINUTES), help="The last N minutes.  [default: 60]")
@click.option("--since", metavar="DURATION", help="The period as a duration: 90m, 24h, 7d.")
@click.option("--task", metavar="NAME", help="Only this task.")
def command(app: App, *, minutes: int | None, since: str | None, task: str | None, as_json: bool) -> None:
    """Show for each task its runs and failures, and the mean and maximum duration and lateness in seconds.

    The command reads per-minute counts that workers keep, so it is fast whatever the size of the history. Runs that
    finished in the last minute may be missing.
    """
    stats = app.stats_sync(since=_length(minutes, since), task=task)
    if as_json:
        print_json([{**msgspec.structs.asdict(one), "failed_share": one.failed_share} for one in stats])
    else:
        print_table(COLUMNS, [_row(one) for one in stats], nothing=NOTHING)


def _length(minutes: int | None, since: str | None) -> timedelta:
    if minutes is not None and since is not None:
        raise UsageError("--minutes and --since cannot be used together.", remedy="Use one of them.")
    if since is None:
        return timedelta(minutes=minutes or 60)
    try:
        return parse_duration(since, name="--since")
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error)) from None


def _row(one: TaskStats) -> list[object]:
    lengths = (one.seconds_mean, one.seconds_most, one.late_mean, one.late_most)
    return [one.task, one.runs, one.failed, f"{one.failed_share:.1%}", *(f"{length:.3f}" for length in lengths)]
