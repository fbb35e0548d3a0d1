"""`reltask status`."""

from __future__ import annotations

import click
import msgspec

from reltask.app import App
from reltask.cli.pauses import pause_text
from reltask.cli.show import print_fields, print_json, print_line, print_table, text, worker_text
from reltask.cli.target import with_app_argument
from reltask.model.connection_url import safe_url
from reltask.model.job import State
from reltask.model.lease import MAINTENANCE
from reltask.model.views import JobView, LeaseView, StatusView, WorkerView

SHOWN_WORKERS = 10
CHECKED_JOBS = 100
"""How many jobs are checked for a worker that serves their queue."""


@click.command(name="status")
@with_app_argument
@click.option("--watch", is_flag=True, help="Show it live, every two seconds, until Ctrl+C.")
def command(app: App, *, watch: bool, as_json: bool) -> None:
    """Show the state of the whole system."""
    if watch:
        from reltask.cli.watch import watch_status  # noqa: PLC0415 - only this option needs it

        watch_status(app, as_json=as_json)
        return
    status, workers, leader = app.status_sync(), app.workers_sync(), _leader(app.leases_sync())
    alive = [worker for worker in workers if worker.state == "alive"]
    unserved = _unserved(app.jobs_sync(state=State.READY, limit=CHECKED_JOBS), status, alive)
    pauses = app.pauses_sync()
    last = next(iter(app.runs_sync(limit=1)), None)
    if as_json:
        left = [{"queue": queue, "task": task} for queue, task in unserved]
        print_json(
            {
                **msgspec.structs.asdict(status),
                "unserved": left,
                "pauses": pauses,
                "workers": alive,
                "maintenance": leader,
                "last_run": last and {"task": last.task, "outcome": last.outcome, "finished_at": last.finished_at},
            }
        )
        return
    print_line(f"{safe_url(app.url)} at {text(status.now)} UTC")
    print_line()
    led = f"led by {worker_text(leader)}" if leader else "no leader"
    ran = f"{last.task} {last.outcome} at {text(last.finished_at)}   see: reltask runs" if last else "none yet"
    print_fields([*_counts(status), ("last run", ran), ("maintenance", led)])
    print_line()
    for pause in pauses:
        print_line(pause_text(pause))
    for name, count in sorted(status.unknown.items()):
        print_line(f"No live worker knows task {name}: {count} due.")
    for queue, task in unserved:
        print_line(f"No live worker takes task {task} from queue {queue}.")
    _print_workers(alive)


def _counts(status: StatusView) -> list[tuple[str, object]]:
    return [
        ("workers alive", status.workers_alive),
        ("due", status.due),
        ("running", status.running),
        ("failing", status.failing),
        ("dead", f"{status.dead}{'   see: reltask dead list' if status.dead else ''}"),
        ("expired", f"{status.expired}{'   their locks have expired' if status.expired else ''}"),
        ("paused", status.paused),
        ("suspended", status.suspended),
        ("waiting", status.ready),
        ("next due", status.next_due),
    ]


def _unserved(jobs: list[JobView], status: StatusView, alive: list[WorkerView]) -> list[tuple[str, str]]:
    """Queues and tasks of due jobs that no live worker takes, although one knows the task.

    The first jobs by due time are enough: a job that no worker takes has been due longest.
    """
    due = {(job.queue, job.task) for job in jobs if job.due_at <= status.now and job.task not in status.unknown}
    return sorted(
        (queue, task)
        for queue, task in due
        if not any(queue in worker.queues and task in worker.tasks for worker in alive)
    )


def _leader(leases: list[LeaseView]) -> str | None:
    """The worker that holds the maintenance lease; None with another coordination."""
    return next((lease.holder for lease in leases if lease.held and lease.name == MAINTENANCE), None)


def _print_workers(workers: list[WorkerView]) -> None:
    rows = [
        (worker_text(worker.id), worker.running, worker.concurrency, worker.queues, worker.heartbeat_at)
        for worker in workers[:SHOWN_WORKERS]
    ]
    print_table(["WORKER", "RUNNING", "OF", "QUEUES", "LAST SEEN"], rows, nothing="No worker is alive.")
    if len(workers) > SHOWN_WORKERS:
        print_line(f"and {len(workers) - SHOWN_WORKERS} more: reltask workers")
