"""`reltask steps`."""

from __future__ import annotations

from uuid import UUID

import click

from reltask.app import App
from reltask.cli.show import print_json, print_line
from reltask.cli.target import with_app_option
from reltask.errors import UsageError
from reltask.model.durable import StepView


@click.group(name="steps")
def command() -> None:
    """Make a durable function's steps run again."""


@command.command()
@with_app_option
@click.argument("job_id", type=click.UUID, metavar="JOB")
@click.argument("name")
@click.option("--and-after", is_flag=True, help="Also the steps that were begun after it.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def forget(app: App, *, job_id: UUID, name: str, and_after: bool, yes: bool, as_json: bool) -> None:
    """Remove the record of a step from a job that is not running, so that it runs again.

    What the step has done is not undone: its function is called again, with the same idempotency key.
    """
    job = app.job(job_id)
    if not yes:
        concerned = _concerned(job.steps_sync(), name, and_after=and_after)
        print_line(f"Job {job_id} will run again: {', '.join(concerned)}", err=True)
        click.confirm("Remove these records?", abort=True, err=True)
    removed = job.forget_sync(name, and_after=and_after)
    if not removed:
        raise _no_such_step(name)
    if as_json:
        print_json({"id": job_id, "forgotten": removed})
    else:
        print_line(f"{job_id} has forgotten {removed} step{'' if removed == 1 else 's'}")


def _concerned(steps: list[StepView], name: str, *, and_after: bool) -> list[str]:
    """The names that will be removed, in the order of their start."""
    names = [step.name for step in steps]
    if name not in names:
        raise _no_such_step(name)
    return names[names.index(name) :] if and_after else [name]


def _no_such_step(name: str) -> UsageError:
    return UsageError(
        f"No step {name!r} was removed: there is none of that name in the current slot, or the job is running.",
        remedy="See: reltask jobs show ID",
    )
