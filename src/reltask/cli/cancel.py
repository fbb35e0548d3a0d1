"""`reltask jobs cancel`."""

from __future__ import annotations

from uuid import UUID

import click

from reltask.app import App
from reltask.cli.each import do_each
from reltask.cli.filters import find_jobs
from reltask.cli.target import with_app_option
from reltask.errors import UsageError
from reltask.model.job import State

CANCELLED = ["due", "later", *(state.value for state in State if state not in (State.GONE, State.DEAD))]
ALL = 1_000_000
"""More jobs than this are cancelled in several calls."""


@click.command(name="cancel")
@with_app_option
@click.argument("job_ids", type=click.UUID, nargs=-1, metavar="[ID]...")
@click.option("--task", metavar="NAME", help="All jobs of this task.")
@click.option("--queue", metavar="NAME", help="All jobs of this queue.")
@click.option("--state", type=click.Choice(CANCELLED), help="All jobs in this state; ready is due or later.")
@click.option("--count", type=click.IntRange(min=0), help="Cancel nothing unless exactly this many match.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(
    app: App,
    *,
    job_ids: tuple[UUID, ...],
    task: str | None,
    queue: str | None,
    state: str | None,
    count: int | None,
    yes: bool,
    as_json: bool,
) -> int:
    """Cancel jobs, by id or by task, queue and state; bodies that run are stopped, wherever they run.

    Writes for each job "cancelled", "stopping" or "ended". Of a recurring job the next slot follows. Dead letters are
    not cancelled: see 'reltask dead discard'.
    """
    if bool(job_ids) == bool(task or queue or state):
        raise UsageError("No jobs were named.", remedy="Give job ids, or --task, --queue and --state, but not both.")
    found = job_ids or _matching(app, task, queue, state)
    if count is not None and len(found) != count:
        raise UsageError(f"{len(found):,} jobs match, not {count:,}. Nothing was cancelled.")
    if found and not yes:
        click.confirm(f"Cancel {len(found):,} job{'' if len(found) == 1 else 's'}?", abort=True, err=True)
    return do_each(
        found, lambda job_id: app.job(job_id).cancel_sync(), label="answer", nothing="No job matches.", as_json=as_json
    )


def _matching(app: App, task: str | None, queue: str | None, state: str | None) -> tuple[UUID, ...]:
    """Exactly those that match now: what is enqueued after the question was asked is not cancelled."""
    jobs = find_jobs(app, state=state, task=task, queue=queue, key=None, limit=ALL)
    return tuple(job.id for job in jobs if job.state is not State.DEAD)
