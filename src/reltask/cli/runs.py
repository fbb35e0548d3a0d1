"""`reltask runs`."""

from __future__ import annotations

from uuid import UUID

import click

from reltask.app import App
from reltask.cli.show import first_line, print_json, print_table, worker_text
from reltask.cli.target import COUNT, with_app_argument
from reltask.model.views import RunView

COLUMNS = ["FINISHED", "TASK", "SLOT", "ATTEMPT", "OUTCOME", "SECONDS", "WORKER", "JOB", "ERROR"]
NONE_YET = "No run has finished yet."


@click.command(name="runs")
@with_app_argument
@click.option("--job", "job_id", type=click.UUID, metavar="ID", help="Only runs of this job.")
@click.option("--task", metavar="NAME", help="Only runs of this task.")
@click.option("--limit", type=COUNT, default=20, show_default=True, help="List at most this many.")
def command(app: App, *, job_id: UUID | None, task: str | None, limit: int, as_json: bool) -> None:
    """List finished runs, newest first."""
    runs = app.runs_sync(job_id=job_id, task=task, limit=limit)
    if as_json:
        print_json(runs)
    else:
        print_runs(runs, nothing="No finished run matches." if job_id or task else NONE_YET)


def print_runs(runs: list[RunView], *, nothing: str = NONE_YET) -> None:
    """One line per run."""
    print_table(COLUMNS, [_row(run) for run in runs], nothing=nothing)


def _row(run: RunView) -> list[object]:
    seconds = "-" if run.claimed_at is None else f"{(run.finished_at - run.claimed_at).total_seconds():.3f}"
    who = worker_text(run.worker)
    error = first_line(run.error)
    return [run.finished_at, run.task, run.slot_no, run.attempt, run.outcome, seconds, who, run.job_id, error]
