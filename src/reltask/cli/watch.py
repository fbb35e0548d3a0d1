"""`reltask status --watch`: the dashboard's overview in a terminal, over SSH as well.

Each frame is one read that costs the same however many jobs there are. On a terminal the frame is drawn over the last
one; into a pipe, frames follow each other; with `--json` each is one line.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import click
import msgspec

from reltask.app import App
from reltask.cli.show import print_line, print_table, text, worker_text
from reltask.errors import DatabaseError
from reltask.model.connection_url import safe_url
from reltask.model.doctor import Level
from reltask.model.overview import Overview, total
from reltask.model.problems import duration, find_problems

PERIOD = 2.0


def watch_status(app: App, *, as_json: bool, sleep: Callable[[float], None] = time.sleep) -> None:
    """Show frames until Ctrl+C."""
    while True:
        try:
            overview = app.overview_sync()
        except DatabaseError as error:
            print_line(f"The database does not answer: {error.message}", err=True)
        else:
            if as_json:
                print_line(msgspec.json.encode(overview).decode())
            else:
                click.clear()  # on a terminal only
                print_frame(app, overview)
        sleep(PERIOD)


def print_frame(app: App, overview: Overview) -> None:
    """One frame: what is wrong, the numbers, the queues."""
    print_line(f"{safe_url(app.url)} at {text(overview.now)} UTC")
    print_line()
    problems = find_problems(overview)
    wrong = [problem for problem in problems if problem.level is Level.PROBLEM]
    if not wrong:
        print_line("Nothing is wrong.")
    for problem in problems:
        print_line(f"{'!' if problem.level is Level.PROBLEM else ' '} {problem.text}")
        if problem.remedy and problem.level is Level.PROBLEM:
            print_line(f"    {problem.remedy}")
    print_line()
    runs, failed = sum(task.runs for task in overview.tasks), sum(task.failed for task in overview.tasks)
    print_line(
        f"due {overview.due}, running {overview.running} of {overview.places}, later {overview.later}, "
        f"suspended {overview.suspended}, paused {overview.paused_jobs}, dead {overview.dead_jobs}"
    )
    print_line(f"workers {overview.workers('alive')}; last hour {runs:,} runs, {failed:,} failed")
    print_line()
    rows = [_queue(overview, name) for name in overview.queues]
    print_table(["QUEUE", "OLDEST DUE", "DUE", "RUNNING", "DEAD", "WORKERS"], rows, nothing="There is no queue yet.")
    for lease in overview.leases[:5]:
        print_line(f"{lease.name}: {worker_text(lease.holder) if lease.held else 'no holder'}, term {lease.term}")


def _queue(overview: Overview, name: str) -> list[object]:
    oldest = overview.oldest_due(name)
    return [
        name,
        None if oldest is None else duration(overview.age(oldest)),
        str(total(lane.due for lane in overview.lanes if lane.queue == name)),
        sum(group.jobs for group in overview.claimed if group.queue == name),
        sum(group.jobs for group in overview.dead if group.queue == name),
        overview.serves(name) or "none",
    ]
