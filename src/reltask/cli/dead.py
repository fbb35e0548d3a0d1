"""`reltask dead`: jobs that have used up their attempts."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from uuid import UUID

import click
import msgspec
from msgspec import Struct

from reltask.app import App
from reltask.cli.each import do_each
from reltask.cli.filters import find_dead
from reltask.cli.job import print_job
from reltask.cli.jobs import find_job, paused_note
from reltask.cli.show import first_line, print_json, print_line, print_lines, print_table
from reltask.cli.target import COUNT, Command, ListOfJobs, with_app_argument, with_app_option
from reltask.errors import UnknownJob, UsageError
from reltask.model.job import Outcome, State
from reltask.model.views import JobView, RunView
from reltask.producer.job import Job

COLUMNS = ["ID", "TASK", "KEY", "QUEUE", "ATTEMPTS", "LAST FAILURE (UTC)", "ERROR"]
ALL_AT_ONCE = 1_000
"""Jobs listed per query."""
MANY = 1_000_000
"""More dead letters than this are removed in several calls, if a person is asked."""


_TASK = click.option("--task", metavar="NAME", help="Only those of this task.")


class Filter(Struct, frozen=True):
    """Which dead letters `--all` means."""

    everything: bool
    task: str | None
    queue: str | None
    error: str | None
    count: int | None
    """Change nothing unless exactly this many match."""

    @property
    def narrows(self) -> bool:
        return any(one is not None for one in (self.task, self.queue, self.error, self.count))


def _with_filter(function: Command) -> Command:
    """Add ids, `--all`, and what `--all` can be narrowed to."""

    @functools.wraps(function)
    def command(
        app: App,
        *,
        job_ids: tuple[UUID, ...],
        everything: bool,
        task: str | None,
        queue: str | None,
        error: str | None,
        count: int | None,
        **options: bool,
    ) -> int | None:
        return function(app, job_ids, Filter(everything, task, queue, error, count), **options)

    for option in (
        click.argument("job_ids", type=click.UUID, nargs=-1, metavar="ID..."),
        click.option("--all", "everything", is_flag=True, help="All dead letters, or all that the next options leave."),
        _TASK,
        click.option("--queue", metavar="NAME", help="Only those of this queue."),
        click.option("--error", metavar="TEXT", help="Only those with this error, as the dashboard groups them."),
        click.option("--count", type=click.IntRange(min=0), help="Change nothing unless exactly this many match."),
    ):
        command = option(command)
    return with_app_option(command)


@click.group(name="dead", cls=ListOfJobs)
def command() -> None:
    """List and show dead letters; retry or discard them.

    Without a command: list.
    """


@command.command(name="list")
@with_app_argument
@_TASK
@click.option("--limit", type=COUNT, default=50, show_default=True, help="List at most this many.")
def list_(app: App, *, task: str | None, limit: int, as_json: bool) -> None:
    """List the jobs that have used up their attempts, with their last error."""
    jobs = app.jobs_sync(state=State.DEAD, task=task, limit=limit)
    failures = {job.id: _last_failure(app, job.id) for job in jobs}
    if as_json:
        print_json([{**msgspec.structs.asdict(job), "last_failure": failures[job.id]} for job in jobs])
        return
    rows = [(job.id, job.task, job.key, job.queue, job.attempt, *_failure_cells(failures[job.id])) for job in jobs]
    print_table(COLUMNS, rows, nothing="There are no dead letters.")


@command.command()
@with_app_option
@click.argument("job_id", type=click.UUID, metavar="ID")
def show(app: App, *, job_id: UUID, as_json: bool) -> None:
    """Show a dead letter with the traceback of its last failure."""
    _dead(app, job_id)
    print_job(app.job(job_id), as_json=as_json)
    failure = _last_failure(app, job_id)
    if failure is not None and failure.error and not as_json:
        print_line()
        print_lines(failure.error.rstrip())


@command.command()
@_with_filter
def retry(app: App, job_ids: tuple[UUID, ...], wanted: Filter, *, as_json: bool) -> int:
    """Give dead letters a new set of attempts, due at once."""
    return _change(app, Job.retry_sync, _retried, _named(app, job_ids, wanted), as_json=as_json)


@command.command()
@_with_filter
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def discard(app: App, job_ids: tuple[UUID, ...], wanted: Filter, *, yes: bool, as_json: bool) -> int:
    """Remove dead letters; the ledger keeps their runs."""
    named = _named(app, job_ids, wanted) if yes else _agreed(app, job_ids, wanted)
    return _change(app, Job.discard_sync, lambda *_: "discarded", named, as_json=as_json)


def _named(app: App, job_ids: tuple[UUID, ...], wanted: Filter) -> Iterable[UUID]:
    """The dead letters that the command line names."""
    if bool(job_ids) == wanted.everything or (wanted.narrows and not wanted.everything):
        raise UsageError(
            "No dead letters were named.",
            remedy="Give job ids, or --all, but not both; --task, --queue, --error and --count need --all.",
        )
    if not wanted.narrows:
        return job_ids or _all_dead(app)
    found = [letter.id for letter in find_dead(app, task=wanted.task, queue=wanted.queue, error=wanted.error)]
    if wanted.count is not None and len(found) != wanted.count:
        raise UsageError(f"{len(found):,} dead letters match, not {wanted.count:,}. Nothing was changed.")
    return found


def _agreed(app: App, job_ids: tuple[UUID, ...], wanted: Filter) -> list[UUID]:
    """Those that are named now, if the person who was asked says yes; none that dies after the question."""
    found = _named(app, job_ids, wanted)
    is_listed = job_ids or wanted.narrows
    named = list(found) if is_listed else [job.id for job in app.jobs_sync(state=State.DEAD, limit=MANY)]
    if named:
        letters = f"{len(named):,} dead letter{'' if len(named) == 1 else 's'}"
        click.confirm(f"Remove {letters}, with arguments and steps?", abort=True, err=True)
    return named


def _retried(app: App, job_id: UUID) -> str:
    """The result of a retry. A job that no longer exists was not paused: a worker has already run it."""
    paused = ""
    with contextlib.suppress(UnknownJob):
        paused = paused_note(find_job(app, job_id))
    return f"will be tried again{paused}"


def _change(
    app: App,
    change: Callable[[Job[Any]], None],
    result_of: Callable[[App, UUID], str],
    job_ids: Iterable[UUID],
    *,
    as_json: bool,
) -> int:
    """Change each dead letter, and report what was done."""

    def do(job_id: UUID) -> str:
        _dead(app, job_id)  # "discard" removes any job that is not running; here only a dead one may be removed
        change(app.job(job_id))
        return result_of(app, job_id)

    return do_each(job_ids, do, label="done", nothing="There are no dead letters.", as_json=as_json)


def _all_dead(app: App) -> Iterator[UUID]:
    """Every dead letter. The caller changes each before it asks for the next; a job that dies again is not repeated."""
    seen: set[UUID] = set()
    while True:
        listed = [job.id for job in app.jobs_sync(state=State.DEAD, limit=ALL_AT_ONCE)]
        new = [job_id for job_id in listed if job_id not in seen]
        yield from new
        if not new or len(listed) < ALL_AT_ONCE:
            return
        seen.update(new)


def _dead(app: App, job_id: UUID) -> JobView:
    """The dead letter of this id, or UnknownJob."""
    job = find_job(app, job_id)
    if job.state is not State.DEAD:
        raise UnknownJob(f"Job {job_id} is {job.state}, not dead.", remedy=f"See: reltask jobs show {job_id}")
    return job


def _last_failure(app: App, job_id: UUID) -> RunView | None:
    runs = app.runs_sync(job_id=job_id, limit=5)
    return next((run for run in runs if run.outcome in (Outcome.FAILED, Outcome.LOST)), None)


def _failure_cells(run: RunView | None) -> tuple[object, object]:
    if run is None:
        return None, None
    return run.finished_at, first_line(run.error) if run.error else run.outcome
