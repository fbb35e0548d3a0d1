"""`reltask jobs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

import click
import msgspec

from reltask.app import App
from reltask.cli.cancel import command as cancel
from reltask.cli.filters import find_jobs
from reltask.cli.job import print_job
from reltask.cli.runner import EXIT_ERROR, EXIT_OK
from reltask.cli.show import print_json, print_line, print_table, text, worker_text
from reltask.cli.target import COUNT, ListOfJobs, with_app_argument, with_app_option
from reltask.errors import ArgumentsError, UnknownJob
from reltask.model.escape import escape
from reltask.model.job import State
from reltask.model.views import JobView
from reltask.producer.job import Job

_ID = click.argument("job_id", type=click.UUID, metavar="ID")
COLUMNS = ["ID", "TASK", "KEY", "QUEUE", "STATE", "SLOT", "DUE (UTC)", "ATTEMPT", "WORKER"]
LISTED = ["due", "later", *(state.value for state in State if state is not State.GONE)]


@click.group(name="jobs", cls=ListOfJobs)
def command() -> None:
    """List and show jobs; cancel them; signal, pause, resume, run or discard one; wait for its result.

    Without a command: list.
    """


command.add_command(cancel)


@command.command(name="list")
@with_app_argument
@click.option("--state", type=click.Choice(LISTED), help="Only jobs in this state; ready is due or later.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option("--key", metavar="KEY", help="Only jobs with this key.")
@click.option("--limit", type=COUNT, default=50, show_default=True, help="List at most this many.")
def list_(
    app: App, *, state: str | None, task: str | None, queue: str | None, key: str | None, limit: int, as_json: bool
) -> None:
    """List jobs by due time."""
    jobs = find_jobs(app, state=state, task=task, queue=queue, key=key, limit=limit)
    if as_json:
        print_json(jobs)
    else:
        chosen = state or task or queue or key
        nothing = "No job matches." if chosen else "There are no jobs. Those that have ended: reltask runs."
        print_table(COLUMNS, [_row(job) for job in jobs], nothing=nothing)


def _row(job: JobView) -> list[object]:
    who = worker_text(job.locked_by)
    return [job.id, job.task, job.key, job.queue, job.state, job.slot_no, job.due_at, job.attempt, who]


@command.command()
@with_app_option
@_ID
@click.option("--arguments", is_flag=True, help="Show its arguments, too. What its task hides is masked.")
def show(app: App, *, job_id: UUID, arguments: bool, as_json: bool) -> None:
    """Show one job with its last runs; of a durable function also steps, children and signals that wait.

    Values are not shown. A one-off that is done is known as long as the ledger has its runs.
    """
    print_job(app.job(job_id), app.pauses_sync(), with_arguments=arguments, as_json=as_json)


@command.command()
@with_app_option
@_ID
@click.argument("name")
@click.argument("value", metavar="JSON")
@click.option("--id", "signal_id", metavar="TEXT", help="Send it once: a signal with the same id is the same signal.")
def signal(app: App, *, job_id: UUID, name: str, value: str, signal_id: str | None, as_json: bool) -> None:
    """Send a durable function a signal that it waits for, now or later: 'reltask jobs signal ID approved true'."""
    app.job(job_id).signal_sync(name, read_value(value), id=signal_id)
    print_changed([job_id], f"was sent the signal {name}", as_json=as_json)


@command.command()
@with_app_option
@_ID
@click.option("--timeout", metavar="30s", help="Wait no longer than this. Default: until the job ends.")
def result(app: App, *, job_id: UUID, timeout: str | None, as_json: bool) -> int:  # noqa: ARG001 - it is JSON anyway
    """Wait for a job's end, and write what it returned as JSON."""
    try:
        returned = app.job(job_id).result_sync(timeout=timeout)
    except TimeoutError as error:
        print_line(str(error), err=True)
        return EXIT_ERROR
    print_json(returned)
    return EXIT_OK


def read_value(text: str) -> Any:
    """The value of a signal. Errors do not quote the text, because it may hold secrets."""
    try:
        return msgspec.json.decode(text)
    except ValueError as error:
        raise ArgumentsError(
            f"The value is not JSON: {error}.", remedy="""Write '{"ok": true}', '7' or '"text"'."""
        ) from error


def find_job(app: App, job_id: UUID) -> JobView:
    """The row of a job, or UnknownJob."""
    job = app.job(job_id).view_sync()
    if job is None:
        raise UnknownJob(
            f"There is no job {job_id}.", remedy="A one-off is removed when it is done: see `reltask runs`."
        )
    return job


def _changing(change_one: Callable[[Job[Any]], None], name: str, done: str, help_text: str) -> None:
    """Add a command that does one thing to one job."""

    def change(app: App, *, job_id: UUID, as_json: bool) -> None:
        change_one(app.job(job_id))
        print_changed([job_id], done, as_json=as_json)

    command.command(name=name, help=help_text)(with_app_option(_ID(change)))


@command.command()
@with_app_option
@_ID
def run(app: App, *, job_id: UUID, as_json: bool) -> None:
    """Make a job due now.

    For a recurring job this runs its next slot early; the schedule continues with the one after it.
    """
    job = find_job(app, job_id)  # before the change: a worker may claim it at once
    app.job(job_id).run_now_sync()
    early = f" (its slot of {text(job.next_run_time)} UTC runs early)" if job.schedule else ""
    print_changed([job_id], f"is due now{early}{paused_note(job)}", as_json=as_json)


def paused_note(job: JobView) -> str:
    """A reminder that a paused job does not run although it is due."""
    return f", but paused: reltask jobs resume {job.id}" if job.state is State.PAUSED else ""


def print_changed(job_ids: list[UUID], done: str, *, as_json: bool) -> None:
    """Report the change of each job."""
    if as_json:
        print_json([{"id": job_id, "done": done} for job_id in job_ids])
        return
    for job_id in job_ids:
        print_line(f"{job_id} {done}")


@command.command(name="run-again")
@with_app_option
@_ID
def run_again(app: App, *, job_id: UUID, as_json: bool) -> None:
    """Enqueue another job with the arguments of this one, which may have ended.

    The ledger keeps arguments unless the setting history.arguments is off.
    """
    again = app.job(job_id).run_again_sync()
    if as_json:
        print_json([{"id": job_id, "done": "runs again", "job": again.id}])
    else:
        print_line(f"{job_id} runs again as {again.id}")


_changing(Job.pause_sync, "pause", "paused", "Pause a job: workers do not claim it; a current run continues.")
_changing(Job.resume_sync, "resume", "resumed", "Resume a paused job.")


@command.command()
@with_app_option
@_ID
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def discard(app: App, *, job_id: UUID, yes: bool, as_json: bool) -> None:
    """Remove a dead letter, or a recurring job that is not running: its schedule ends."""
    if not yes:
        job = find_job(app, job_id)
        what = f"the schedule {job.schedule}" if job.schedule else f"{job.state} job"
        click.confirm(escape(f"Remove {what} of task {job.task}?"), abort=True, err=True)
    app.job(job_id).discard_sync()
    print_changed([job_id], "discarded", as_json=as_json)
